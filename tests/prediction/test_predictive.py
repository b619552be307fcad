"""The expectation of a softmax: quadrature and many draws in float64 are the oracles."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kalmanclip.prediction import LogitGaussian, averaged, expected_softmax, mean_field


def gaussian(seed: int = 0, images: int = 5, classes: int = 4, shared: int | None = 3, size: float = 1.0):
    g = torch.Generator().manual_seed(seed)
    mean = 2 * torch.randn(images, classes, generator=g, dtype=torch.float64)
    own = size * torch.rand(images, classes, generator=g, dtype=torch.float64)
    factor = None
    if shared is not None:
        factor = size * torch.randn(images, classes, shared, generator=g, dtype=torch.float64)
    return LogitGaussian(mean, own, factor)


def two_class_integral(mean: float, variance: float) -> float:
    """The logistic function under N(mean, variance), by Gauss-Hermite quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    values = 1 / (1 + np.exp(-(mean + math.sqrt(variance) * nodes)))
    return float((weights * values).sum() / weights.sum())


@pytest.mark.parametrize(("mean", "variance"), [(0.0, 4.0), (1.5, 0.5), (-2.0, 3.0), (4.0, 9.0)])
def test_two_classes_against_quadrature(mean, variance):
    logits = LogitGaussian(torch.tensor([[mean, 0.0]]).double(), torch.tensor([[0.25, 0.75]]).double() * variance)
    expected = two_class_integral(mean, variance)
    assert expected_softmax(logits, 20_000).probabilities[0, 0].item() == pytest.approx(expected, abs=5e-3)


@pytest.mark.parametrize(("mean", "variance"), [(0.0, 4.0), (1.5, 0.5), (-2.0, 3.0), (4.0, 9.0)])
def test_the_formula_is_the_probit_approximation(mean, variance):
    logits = LogitGaussian(torch.tensor([[mean, 0.0]]).double(), torch.full((1, 2), variance).double())
    assert mean_field(logits)[0, 0].item() == pytest.approx(two_class_integral(mean, variance), abs=0.02)


def test_the_covariance_of_the_draws_is_the_one_meant():
    logits = gaussian()
    draws = logits.draws(200_000)
    away = draws - logits.mean
    found = torch.einsum("snc,snd->ncd", away, away) / len(draws)
    expected = torch.diag_embed(logits.own) + logits.shared @ logits.shared.mT
    torch.testing.assert_close(found, expected, atol=0.15, rtol=0.02)
    torch.testing.assert_close(found.diagonal(dim1=1, dim2=2).sqrt(), logits.std, atol=0.05, rtol=0.02)
    torch.testing.assert_close(draws.mean(dim=0), logits.mean, atol=1e-12, rtol=0)


def test_what_moves_all_classes_alike_moves_no_probability():
    mean = gaussian().mean
    logits = LogitGaussian(mean, torch.zeros_like(mean), torch.full((*mean.shape, 1), 7.0).double())
    torch.testing.assert_close(expected_softmax(logits).probabilities, mean.softmax(dim=1))
    assert not torch.allclose(mean_field(logits), mean.softmax(dim=1), atol=0.01)  # it knows no correlations


def test_few_draws_are_near_many():
    logits = gaussian(size=0.5)
    many, few = expected_softmax(logits, 100_000), expected_softmax(logits)
    torch.testing.assert_close(few.probabilities, many.probabilities, atol=0.05, rtol=0)
    torch.testing.assert_close(few.entropy, many.entropy, atol=0.1, rtol=0)


def test_images_are_independent_of_their_company(monkeypatch):
    logits = gaussian(images=7)
    whole = expected_softmax(logits)
    monkeypatch.setattr("kalmanclip.prediction.predictive._NUMBERS", 64 * 4 * 2)
    parts = expected_softmax(logits)
    torch.testing.assert_close(whole.probabilities, parts.probabilities, rtol=0, atol=1e-14)
    alone = expected_softmax(LogitGaussian(logits.mean[3:4], logits.own[3:4], logits.shared[3:4]))
    torch.testing.assert_close(whole.probabilities[3:4], alone.probabilities, rtol=0, atol=1e-14)


def test_no_images():
    none = LogitGaussian(torch.empty(0, 3), torch.empty(0, 3))
    assert expected_softmax(none).probabilities.shape == (0, 3)
    assert expected_softmax(none).entropy.shape == (0,)


def test_an_odd_number_of_draws():
    logits = gaussian(shared=None)
    assert logits.draws(5).shape == (5, 5, 4)
    torch.testing.assert_close(logits.draws(5)[0] + logits.draws(5)[1], 2 * logits.mean)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.floats(0.0, 30.0), st.integers(2, 9))
def test_probabilities_are_probabilities(seed, size, classes):
    logits = gaussian(seed, classes=classes, size=size)
    for p in (expected_softmax(logits).probabilities, mean_field(logits)):
        assert (p >= 0).all()
        torch.testing.assert_close(p.sum(dim=1), torch.ones(5, dtype=torch.float64))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000))
def test_without_variance_it_is_the_softmax(seed):
    logits = gaussian(seed).scaled(0.0)
    expected = averaged(logits.mean.unsqueeze(0))
    torch.testing.assert_close(expected_softmax(logits).probabilities, logits.mean.softmax(dim=1))
    torch.testing.assert_close(expected_softmax(logits).entropy, expected.entropy)
    torch.testing.assert_close(mean_field(logits), logits.mean.softmax(dim=1))


def test_scaling_the_covariance():
    logits = gaussian()
    torch.testing.assert_close(logits.scaled(0.25).std, logits.std / 2)
    assert torch.equal(logits.scaled(0.25).mean, logits.mean)

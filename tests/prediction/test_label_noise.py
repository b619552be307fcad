"""The noise model of labels, against the sum over all ways in which labels can be wrong."""

import itertools
import math

import numpy as np
import pytest
import scipy.special
import torch

from kalmanclip.prediction.label_noise import PRIOR, SUSPECT, LabelCheck, label_noise, likely_labels, sharpened


def predicted(N, C, seed=0, sharpness=2.0):
    generator = torch.Generator().manual_seed(seed)
    p = (sharpness * torch.randn(N, C, generator=generator, dtype=torch.float64)).softmax(dim=1)
    return p, torch.randint(0, C, (N,), generator=generator)


def noisy(N, rate, C=6):
    """Labels drawn from the model itself, and which of them are wrong."""
    p, _ = predicted(N, C, sharpness=3.0)
    generator = torch.Generator().manual_seed(1)
    true = torch.multinomial(p, 1, generator=generator).squeeze(1)
    flipped = torch.rand(N, generator=generator) < rate
    return p, torch.where(flipped, (true + torch.randint(1, C, (N,), generator=generator)) % C, true), flipped


@pytest.mark.parametrize(("N", "C"), [(1, 2), (6, 2), (7, 5), (9, 3)])
def test_it_is_the_sum_over_all_patterns_of_wrong_labels(N, C):
    """The rate has a Beta prior, so the probability of a pattern is a quotient of Beta functions: no integral."""
    p, labels = predicted(N, C)
    own = p[torch.arange(N), labels].numpy()
    total, wrong, rate = 0.0, np.zeros(N), 0.0
    for pattern in itertools.product((False, True), repeat=N):
        bad = np.array(pattern)
        k = bad.sum()
        prior = scipy.special.beta(1 + k, PRIOR + N - k) / scipy.special.beta(1, PRIOR)
        probability = prior * np.prod(np.where(bad, (1 - own) / (C - 1), own))
        total += probability
        wrong += probability * bad
        rate += probability * (1 + k) / (1 + PRIOR + N)
    found = label_noise(p, labels)
    np.testing.assert_allclose(found.wrong.numpy(), wrong / total, rtol=1e-5)
    assert found.rate == pytest.approx(rate / total, rel=1e-5)
    assert found.log_evidence == pytest.approx(math.log(total), abs=1e-5)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.4])
def test_it_finds_the_rate_and_means_its_probabilities(rate):
    """Labels drawn from the model itself, as many as a large set of images has: several batches of rows."""
    N = 5000
    p, labels, flipped = noisy(N, rate)
    found = label_noise(p, labels)
    assert found.rate == pytest.approx(rate, abs=0.02)
    sure = found.wrong > 0.5
    assert float(found.wrong[sure].sum()) == pytest.approx(int(flipped[sure].sum()), abs=2 * math.sqrt(N))
    assert float(found.wrong.sum()) == pytest.approx(int(flipped.sum()), abs=200)


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 2.0])
def test_predictions_that_are_too_vague_are_sharpened(sharpness):
    """Vague ones hide the noise: they foresee it."""
    p, labels, _ = noisy(1500, 0.2)
    given = p ** (1 / sharpness)
    given /= given.sum(dim=1, keepdim=True)
    found, noise = sharpened(given, labels)
    assert noise.rate == pytest.approx(0.2, abs=0.04)
    torch.testing.assert_close(noise.wrong, label_noise(found, labels).wrong)
    torch.testing.assert_close(found, p, atol=1e-9, rtol=0)
    if sharpness > 1:
        assert label_noise(given, labels).rate < 0.12


def test_impossible_labels_and_single_precision():
    p = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    found = label_noise(p, torch.tensor([0, 0, 0]))
    assert found.wrong.dtype == torch.float32
    assert found.wrong.tolist() == pytest.approx([0, 1, 0], abs=1e-6)
    assert math.isfinite(found.log_evidence)


def test_no_images():
    found = label_noise(torch.empty(0, 3), torch.empty(0, dtype=torch.int64))
    assert len(found.wrong) == 0
    assert found.rate == pytest.approx(1 / (1 + PRIOR), rel=1e-5)  # the prior's mean


def test_the_likely_label_is_the_most_probable_other_one():
    """By Bayes' rule over the true class: the label's own class, or another with the noise's share of it."""
    p, labels = predicted(8, 4)
    rate = 0.2
    own = p[torch.arange(8), labels]
    posterior = p * rate / 3
    posterior[torch.arange(8), labels] = (1 - rate) * own
    posterior /= posterior.sum(dim=1, keepdim=True)
    wrong = 1 - posterior[torch.arange(8), labels]
    found, probability = likely_labels(p, labels, wrong)
    posterior[torch.arange(8), labels] = -1
    best, expected = posterior.max(dim=1)
    assert torch.equal(found, expected)
    torch.testing.assert_close(probability, best)


def test_suspects_are_the_surest_first():
    p = torch.tensor([[0.9, 0.1], [0.01, 0.99], [0.4, 0.6], [0.001, 0.999]])
    labels = torch.tensor([0, 0, 0, 0])
    check = LabelCheck.of(["cat", "dog"], labels, p, label_noise(p, labels))
    assert check.suspects().tolist() == [3, 1]
    assert check.suspects(float(check.wrong[2]) - 1e-6).tolist() == [3, 1, 2]
    assert (check.wrong > SUSPECT).tolist() == [False, True, False, True]
    assert check.likely.tolist() == [1, 1, 1, 1]
    np.testing.assert_allclose(check.likely_probability, check.wrong, rtol=1e-6)  # there is no third class

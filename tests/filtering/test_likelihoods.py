"""Labels, yes or no, and counts as observations, their predictive log-likelihoods, and the prior chosen by them."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from kalmanclip.errors import ConfigError, NumericalError
from kalmanclip.filtering import (
    Dense,
    FilterConfig,
    KalmanFilter,
    Observation,
    choose_prior,
    flat_parameters,
    make_belief,
    observe_binary,
    observe_counts,
    observe_labels,
)

from .structures import normal, positive_definite

PLAIN = FilterConfig(alpha=0.0)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(5)


def linear(outputs, bias=True):
    return nn.Linear(3, outputs, bias=bias, dtype=torch.float64)


def log_density(kind, z, y):
    """Return the log-likelihood of one batch of natural parameters, as textbooks write it."""
    if kind == "labels":
        return torch.log_softmax(z, dim=1)[range(len(y)), y].sum()
    if kind == "binary":
        return torch.distributions.Bernoulli(logits=z[:, 0]).log_prob(y.double()).sum()
    return torch.distributions.Poisson(z[:, 0].exp()).log_prob(y).sum()


CASES = {
    "labels": (observe_labels, 4, torch.tensor([3, 0, 1, 1, 2])),
    "binary": (observe_binary, 1, torch.tensor([1, 0, 0, 1, 1])),
    "counts": (observe_counts, 1, torch.tensor([0, 2, 1, 7, 3])),
}


@pytest.mark.parametrize("kind", CASES)
def test_gradient_and_information_are_those_of_the_log_likelihood(kind, generator):
    observe, outputs, y = CASES[kind]
    module, x = linear(outputs), normal(5, 3, generator=generator)
    mu = normal(flat_parameters(module).numel(), generator=generator)

    def outputs_at(theta):
        W, b = theta[: 3 * outputs].view(outputs, 3), theta[3 * outputs :]
        return x @ W.mT + b

    seen = observe(module, x, y)(mu)
    gradient = torch.func.grad(lambda theta: log_density(kind, outputs_at(theta), y))(mu)
    torch.testing.assert_close(seen.H.mT @ seen.innovation, gradient, rtol=1e-9, atol=1e-9)
    # the Hessian of a linear model in natural parameters is minus the Fisher information, whatever the targets
    information = -torch.func.hessian(lambda theta: log_density(kind, outputs_at(theta), y))(mu)
    torch.testing.assert_close(seen.H.mT @ seen.H, information, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(seen.R, torch.eye(len(seen.y), dtype=torch.float64))


def test_the_bound_has_the_same_gradient_and_more_information(generator):
    _, outputs, y = CASES["labels"]
    module, x = linear(outputs), normal(5, 3, generator=generator)
    mu = normal(flat_parameters(module).numel(), generator=generator)
    exact, bound = (observe_labels(module, x, y, bounded)(mu) for bounded in (False, True))
    torch.testing.assert_close(bound.H.mT @ bound.innovation, exact.H.mT @ exact.innovation)
    difference = torch.linalg.eigvalsh(bound.H.mT @ bound.H - exact.H.mT @ exact.H)
    assert difference.min() > -1e-12
    assert difference.max() > 0.1
    # of the weights before the biases: x x^T, times Boehning's bound of the curvature
    boehning = 0.5 * (torch.eye(4) - 1 / 4).double()
    torch.testing.assert_close((bound.H.mT @ bound.H)[:12, :12], torch.kron(boehning, x.mT @ x))


@pytest.mark.parametrize("kind", CASES)
def test_a_module_that_is_sure_and_wrong_does_no_harm_to_the_numbers(kind):
    observe, outputs, y = CASES[kind]
    module, x = linear(outputs).float(), torch.ones(5, 3)
    belief = make_belief("diagonal", torch.full_like(flat_parameters(module), -9.0), 1.0)
    belief.mean[0] = 30.0 if kind == "labels" else -30.0
    step = KalmanFilter(belief, config=PLAIN).step(observe(module, x, y))
    assert not step.skipped
    assert belief.mean.isfinite().all()


def predictive_by_quadrature(kind, module, x, y, belief):
    """Return the sum of ``log E p(y | z)`` under the Gaussian of each output, by Gauss-Hermite quadrature in numpy."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    total = 0.0
    for row, target in zip(x.numpy(), y.tolist(), strict=True):
        J = np.append(row, 1.0)
        mean, std = J @ belief.mean.numpy(), math.sqrt(J @ belief.covariance.numpy() @ J)
        z = mean + std * nodes
        p = stats.bernoulli(1 / (1 + np.exp(-z))) if kind == "binary" else stats.poisson(np.exp(z))
        total += math.log(weights @ p.pmf(target) / math.sqrt(2 * math.pi))
    return total


@pytest.mark.parametrize("kind", ["binary", "counts"])
def test_predictive_log_likelihood_of_one_output(kind, generator):
    observe, _, y = CASES[kind]
    module, x = linear(1), normal(5, 3, generator=generator)
    belief = Dense(normal(4, generator=generator), 0.3 * positive_definite(4, generator))
    exact = predictive_by_quadrature(kind, module, x, y, belief)
    likelihood = observe(module, x, y)
    assert likelihood.log_likelihood(belief, 100_000) == pytest.approx(exact, abs=0.02)
    assert likelihood.log_likelihood(belief) == likelihood.log_likelihood(belief)
    at_mean = log_density(kind, x @ belief.mean[:3, None] + belief.mean[3], y)
    assert abs(float(at_mean) - exact) > 0.05  # the belief matters here


def test_two_labels_are_yes_or_no(generator):
    """Logits (0, z): the same predictive probabilities as a log-odds z."""
    y = CASES["binary"][2]
    x = normal(5, 3, generator=generator)

    class Pair(nn.Module):
        def __init__(self, one):
            super().__init__()
            self.one = one

        def forward(self, x):
            z = self.one(x)
            return torch.cat([torch.zeros_like(z), z], dim=1)

    one = linear(1)
    belief = Dense(normal(4, generator=generator), positive_definite(4, generator))
    both = observe_labels(Pair(one), x, y), observe_binary(one, x, y)
    assert both[0].log_likelihood(belief) == pytest.approx(both[1].log_likelihood(belief), rel=1e-12)
    after = []
    for likelihood in both:
        copy = Dense(belief.mean.clone(), belief.covariance.clone())
        KalmanFilter(copy, config=PLAIN).step(likelihood)
        after.append(copy)
    torch.testing.assert_close(after[0].mean, after[1].mean)
    torch.testing.assert_close(after[0].covariance, after[1].covariance)


def test_the_prior_of_a_linear_model_has_the_largest_evidence(generator):
    X, noise = normal(30, 4, generator=generator), 0.25
    y = X @ normal(4, generator=generator) * 1.3 + math.sqrt(noise) * normal(30, generator=generator)

    def observe(rows):
        H, seen = X[rows], y[rows]
        return lambda mu: Observation(seen, H @ mu, H, noise * torch.eye(len(seen), dtype=torch.float64))

    def make(variance):
        return KalmanFilter(make_belief("dense", torch.zeros(4, dtype=torch.float64), variance), config=PLAIN)

    grid = [0.01, 0.1, 1.0, 10.0]
    choice = choose_prior(make, [observe(rows) for rows in torch.arange(30).split(7)], grid)
    evidence = [
        stats.multivariate_normal(np.zeros(30), v * X.numpy() @ X.numpy().T + noise * np.eye(30)).logpdf(y.numpy())
        for v in grid
    ]
    np.testing.assert_allclose([choice.log_likelihoods[v] for v in grid], evidence, rtol=1e-9)
    assert choice.variance == grid[int(np.argmax(evidence))]
    assert choice.kalman.steps == 5
    exact = np.linalg.solve(np.eye(4) * noise / choice.variance + X.numpy().T @ X.numpy(), X.numpy().T @ y.numpy())
    np.testing.assert_allclose(choice.kalman.belief.mean, exact, rtol=1e-9)


def test_each_batch_is_scored_by_what_was_known_before_it(generator):
    """The score of labels is taken once the belief was predicted for its batch, and before it is learned."""
    module, x = linear(4), normal(5, 3, generator=generator)
    y = CASES["labels"][2]
    config = FilterConfig(alpha=0.0, q=0.3)

    def make(variance):
        return KalmanFilter(make_belief("dense", torch.zeros(16, dtype=torch.float64), variance), config=config)

    batches = [observe_labels(module, x[rows], y[rows]) for rows in torch.arange(5).split(2)]
    choice = choose_prior(make, batches, [0.5])
    kalman, expected = make(0.5), 0.0
    for batch in batches:
        predicted = Dense(kalman.belief.mean.clone(), kalman.belief.covariance + 0.3 * torch.eye(16))
        expected += batch.log_likelihood(predicted)
        kalman.step(batch)
    assert choice.log_likelihoods == {0.5: pytest.approx(expected, rel=1e-9)}
    torch.testing.assert_close(choice.kalman.belief.mean, kalman.belief.mean)


def test_a_prior_under_which_steps_break_down_is_not_chosen():
    def breaking(limit):
        def observe(mu):
            bad = float("nan") if made[-1] > limit else 2.0
            return Observation(torch.tensor([bad]), mu[:1], torch.eye(1, 2), torch.eye(1))

        return observe

    made = []

    def make(variance):
        made.append(variance)
        return KalmanFilter(make_belief("dense", torch.zeros(2), variance), config=PLAIN)

    choice = choose_prior(make, [breaking(1.0)], [0.01, 1.0, 100.0])
    assert (choice.variance, choice.log_likelihoods[100.0]) == (1.0, -math.inf)
    with pytest.raises(NumericalError, match="none of the prior variances"):
        choose_prior(make, [breaking(0.0)], [0.01, 1.0])
    with pytest.raises(ConfigError, match="at least one batch"):
        choose_prior(make, [])


@pytest.mark.parametrize(
    ("observe", "outputs", "y", "wrong"),
    [
        (observe_labels, 2, [0, 2], "label 2 needs more outputs"),
        (observe_labels, 2, [0, -1], "from 0"),
        (observe_labels, 2, [0.0, 1.0], "whole numbers"),
        (observe_labels, 2, [0, 1, 1], "one target per example"),
        (observe_binary, 1, [0, 2], "0 and 1"),
        (observe_binary, 2, [0, 1], "one output per example, not 2"),
        (observe_counts, 1, [0, -1], "not be negative"),
    ],
)
def test_mistakes_are_explained(observe, outputs, y, wrong):
    module = nn.Linear(3, outputs)
    with pytest.raises(ConfigError, match=wrong):
        observe(module, torch.ones(2, 3), torch.tensor(y))(flat_parameters(module))

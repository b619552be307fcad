"""What the public tests of dynamax, rebayes and bong check, computed here anew: numpy, float64, other formulas.

- dynamax: an extended Kalman filter of a linear model is the Kalman filter; the filter with conditional moments of the
  exponential family. The states and all observations of a linear model are one Gaussian: conditioning it is the oracle.
- rebayes: a recursive estimate of regression weights is that of all data at once, whatever holds the covariance.
- bong: a step of Bayesian online natural gradient, linearised at the mean, in natural parameters.
"""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from kalmanclip.filtering import (
    Dense,
    FilterConfig,
    KalmanFilter,
    Observation,
    make_belief,
    observe_binary,
    observe_counts,
    observe_labels,
    observe_module,
)

PLAIN = FilterConfig(alpha=0.0)
EXACT = {"rtol": 1e-8, "atol": 1e-10}


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def spd(n, rng):
    A = rng.standard_normal((n, n))
    return A @ A.T / n + 0.3 * np.eye(n)


def tensor(array):
    return torch.as_tensor(array, dtype=torch.float64)


def test_an_extended_kalman_filter_of_a_linear_model_is_the_kalman_filter(rng):
    """A random walk, observed linearly: its last state given all observations, by one large Gaussian."""
    n, m, T, q = 3, 2, 6, 0.07
    mu_0, Sigma_0, R = rng.standard_normal(n), spd(n, rng), spd(m, rng)
    H, y = rng.standard_normal((T, m, n)), rng.standard_normal((T, m))

    # Cov(theta_s, theta_t) = Sigma_0 + q min(s, t) I, for s, t = 1..T
    steps = np.arange(1, T + 1)
    Theta = np.kron(np.ones((T, T)), Sigma_0) + np.kron(q * np.minimum.outer(steps, steps), np.eye(n))
    big = np.zeros((T * m, T * n))
    for t in range(T):
        big[t * m : (t + 1) * m, t * n : (t + 1) * n] = H[t]
    Y = big @ Theta @ big.T + np.kron(np.eye(T), R)
    mean_y = big @ np.tile(mu_0, T)
    cross = Theta[-n:] @ big.T
    mean = mu_0 + cross @ np.linalg.solve(Y, y.ravel() - mean_y)
    covariance = Theta[-n:, -n:] - cross @ np.linalg.solve(Y, cross.T)
    evidence = stats.multivariate_normal(mean_y, Y).logpdf(y.ravel())

    belief = Dense(tensor(mu_0), tensor(Sigma_0))
    kalman = KalmanFilter(belief, config=FilterConfig(alpha=0.0, q=q))
    total = 0.0
    for H_t, y_t in zip(tensor(H), tensor(y), strict=True):
        step = kalman.step(lambda mu, H_t=H_t, y_t=y_t: Observation(y_t, H_t @ mu, H_t, tensor(R)))
        total += step.log_likelihood
    np.testing.assert_allclose(belief.mean, mean, **EXACT)
    np.testing.assert_allclose(belief.covariance, covariance, **EXACT)
    assert total == pytest.approx(evidence, rel=1e-9)


@pytest.mark.parametrize("kind", ["dense", "block", "low_rank"])
def test_a_recursive_regression_is_that_of_all_data_at_once(kind, rng):
    n, N, noise, variance = 4, 25, 0.2, 1.7
    X, y = rng.standard_normal((N, n)), rng.standard_normal(N)
    precision = np.eye(n) / variance + X.T @ X / noise
    mean = np.linalg.solve(precision, X.T @ y / noise)
    options = {"block": {"groups": [n]}, "low_rank": {"rank": n}}.get(kind, {})
    module = nn.Linear(n, 1, bias=False, dtype=torch.float64)
    belief = make_belief(kind, torch.zeros(n, dtype=torch.float64), variance, **options)
    kalman = KalmanFilter(belief, config=PLAIN)
    for i in rng.permutation(N):  # one at a time
        R = noise * torch.eye(1, dtype=torch.float64)
        kalman.step(observe_module(module, tensor(X[i : i + 1]), tensor(y[i : i + 1, None]), R))
    np.testing.assert_allclose(belief.mean, mean, **EXACT)
    variances = np.einsum("ij,jk,ik->i", X, np.linalg.inv(precision), X)
    np.testing.assert_allclose(belief.variance(tensor(X)), variances, **EXACT)


def moments(kind, z):
    """Return mean and covariance of the sufficient statistic of one example; labels without the last class."""
    if kind == "binary":
        p = 1 / (1 + np.exp(-z))
        return p, np.diag(p * (1 - p))
    if kind == "counts":
        return np.exp(z), np.diag(np.exp(z))
    p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
    return p[:-1], (np.diag(p) - np.outer(p, p))[:-1]  # all columns: Cov(T, all of z)


FAMILY = {
    "binary": (observe_binary, 1, [1, 0, 1, 1]),
    "counts": (observe_counts, 1, [2, 0, 1, 4]),
    "labels": (observe_labels, 3, [0, 2, 1, 2]),
}


@pytest.mark.parametrize("kind", FAMILY)
def test_the_filter_of_the_exponential_family(kind, rng):
    """Conditional moments as Gaussian noise, one example at a time, in covariance form and not whitened."""
    observe, K, targets = FAMILY[kind]
    d, n = 3, 3 * K
    module = nn.Linear(d, K, bias=False, dtype=torch.float64)
    X, mu, Sigma = rng.standard_normal((4, d)), 0.3 * rng.standard_normal(n), 0.2 * spd(n, rng)
    belief = Dense(tensor(mu.copy()), tensor(Sigma.copy()))
    kalman = KalmanFilter(belief, config=PLAIN)
    for x, target in zip(X, targets, strict=True):
        J = np.kron(np.eye(K), x)  # of z = W x, with W row by row
        mean, slope = moments(kind, J @ mu)
        R = slope[:, : len(mean)]
        seen = np.eye(K)[target][:-1] if kind == "labels" else np.array([target])
        H = slope @ J
        gain = Sigma @ H.T @ np.linalg.inv(H @ Sigma @ H.T + R)
        mu = mu + gain @ (seen - mean)
        keep = np.eye(n) - gain @ H
        Sigma = keep @ Sigma @ keep.T + gain @ R @ gain.T  # Joseph's form
        kalman.step(observe(module, tensor(x[None]), torch.tensor([target])))
        np.testing.assert_allclose(belief.mean, mu, **EXACT)
        np.testing.assert_allclose(belief.covariance, Sigma, **EXACT)


@pytest.mark.parametrize("kind", FAMILY)
def test_a_step_of_bayesian_online_natural_gradient(kind, rng):
    """A whole batch, in natural parameters: the precision gains the Fisher information, the mean the gradient."""
    observe, K, targets = FAMILY[kind]
    d, n = 3, 3 * K
    X, mu, Sigma = rng.standard_normal((4, d)), 0.3 * rng.standard_normal(n), 0.2 * spd(n, rng)
    precision, gradient = np.linalg.inv(Sigma), np.zeros(n)
    for x, target in zip(X, targets, strict=True):
        J = np.kron(np.eye(K), x)
        z = J @ mu
        if kind == "labels":
            p = np.exp(z) / np.exp(z).sum()
            residual, information = np.eye(K)[target] - p, np.diag(p) - np.outer(p, p)
        else:
            mean, information = moments(kind, z)
            residual = np.array([target]) - mean
        precision = precision + J.T @ information @ J
        gradient = gradient + J.T @ residual
    belief = Dense(tensor(mu), tensor(Sigma))
    module = nn.Linear(d, K, bias=False, dtype=torch.float64)
    start = mu.copy()
    KalmanFilter(belief, config=PLAIN).step(observe(module, tensor(X), torch.tensor(targets)))
    np.testing.assert_allclose(np.linalg.inv(belief.covariance), precision, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(belief.mean, start + np.linalg.solve(precision, gradient), rtol=1e-7, atol=1e-9)

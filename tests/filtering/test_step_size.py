"""Many passes that count the data once: the fixed point is the posterior of a linear model, known exactly."""

import pytest
import torch

from kalmanclip.errors import ConfigError
from kalmanclip.filtering import FilterConfig, KalmanFilter, Observation, make_belief


@pytest.fixture
def problem():
    """Rows H (m, n) and targets y of a linear model with unit noise; prior mean and variances."""
    generator = torch.Generator().manual_seed(3)
    H, y, mean = (torch.randn(*size, generator=generator, dtype=torch.float64) for size in ((12, 5), (12,), (5,)))
    return H, y, mean, torch.rand(5, generator=generator, dtype=torch.float64) + 0.5


def passes(problem, step_size, count, batches=1, reference=False):
    H, y, mean, s = problem
    belief = make_belief("diagonal", mean.clone(), s, update="precision")
    kalman = KalmanFilter(belief, config=FilterConfig(alpha=0, step_size=step_size), reference=reference)

    def observe(rows):
        eye = torch.eye(len(rows), dtype=H.dtype)
        return lambda mu: Observation(y[rows], H[rows] @ mu, H[rows], eye)

    for _ in range(count):
        for rows in torch.arange(len(y)).chunk(batches):
            kalman.step(observe(rows), share=len(rows) / len(y))
    return kalman


def exact(problem):
    H, y, mean, s = problem
    return torch.linalg.solve(torch.diag(1 / s) + H.mT @ H, mean / s + H.mT @ y)


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("step_size", [1.0, 0.3, 0.05])
def test_the_fixed_point_is_the_posterior(problem, step_size, reference):
    H, _, _, s = problem
    belief = passes(problem, step_size, 1000, reference=reference).belief
    assert torch.allclose(belief.mean, exact(problem), atol=1e-10)
    assert torch.allclose(1 / belief.s, 1 / s + H.square().sum(0), rtol=1e-10)


def test_with_small_batches_it_is_near_and_nearer_with_smaller_steps(problem):
    posterior = exact(problem)
    far, near = (
        (passes(problem, size, count, batches=4).belief.mean - posterior).norm()
        for size, count in ((0.2, 300), (0.01, 3000))
    )
    assert near < 0.1 * far
    assert near < 0.01 * posterior.norm()


def test_without_a_step_size_every_pass_counts_again(problem):
    H, _, _, s = problem
    belief = passes(problem, None, 7).belief
    assert torch.allclose(1 / belief.s, 1 / s + 7 * H.square().sum(0), rtol=1e-10)


def test_what_cannot_be_is_refused(problem):
    for bad in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(ConfigError, match="step_size"):
            FilterConfig(step_size=bad)
    mean = problem[2]
    kalman = KalmanFilter(make_belief("dense", mean.clone(), 1.0), config=FilterConfig(step_size=0.5))
    with pytest.raises(ConfigError, match="diagonal"):
        kalman.step(lambda mu: Observation(mu, mu, torch.eye(5, dtype=mu.dtype), torch.eye(5, dtype=mu.dtype)))
    kalman = KalmanFilter(make_belief("diagonal", mean.clone(), 1.0), config=FilterConfig(step_size=0.5))
    with pytest.raises(ConfigError, match="noise"):
        kalman.step(lambda mu: Observation(mu, mu, torch.eye(5, dtype=mu.dtype)))

"""The fast path says what the reference says, step by step, and leaves to it whatever is not plainly sound."""

import math
from dataclasses import astuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kalmanclip.filtering import (
    CapturedStep,
    FilterConfig,
    KalmanFilter,
    NoiseConfig,
    Observation,
    ObservationNoise,
    make_belief,
)
from kalmanclip.filtering import kalman as kalman_module

N = 30


def twins(update="precision", regulate=("mean", "covariance", "noise"), dtype=torch.float64, device="cpu", **noise):
    """The same filter twice: fast, and as the reference."""
    pair = []
    for reference in (False, True):
        belief = make_belief("diagonal", torch.zeros(N, dtype=dtype, device=device), 0.3, update=update)
        config = FilterConfig(alpha=0.2, q=0.01, regulate=regulate)
        pair.append(KalmanFilter(belief, ObservationNoise(NoiseConfig(**noise)), config, reference=reference))
    return pair


def batches(sizes, given_noise=False, dtype=torch.float64, seed=0, device="cpu"):
    """Observations of a nonlinear function of the parameters."""
    g = torch.Generator().manual_seed(seed)
    for m in sizes:
        A, y = (torch.randn(*shape, generator=g, dtype=dtype).to(device) for shape in ((m, N), (m,)))
        root = torch.randn(m, m, generator=g, dtype=dtype).to(device)
        R = root @ root.mT + torch.eye(m, dtype=dtype, device=device) if given_noise else None

        def observe(mu, A=A, y=y, R=R):
            y_hat = torch.tanh(A @ mu)
            return Observation(y, y_hat, (1 - y_hat**2)[:, None] * A, R)

        yield observe


def agree(fast, reference, **tolerance):
    torch.testing.assert_close(fast.belief.mean, reference.belief.mean, **tolerance)
    torch.testing.assert_close(fast.belief.s, reference.belief.s, **tolerance)
    assert (fast.noise.R is None) == (reference.noise.R is None)
    if fast.noise.R is not None:
        torch.testing.assert_close(fast.noise.R, reference.noise.R, **tolerance)


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    update=st.sampled_from(["covariance", "precision"]),
    structure=st.sampled_from(["full", "exchangeable"]),
    method=st.sampled_from([1, 2]),
    given_noise=st.booleans(),
    regulate=st.sets(st.sampled_from(["mean", "covariance", "noise"])),
)
def test_equal_to_the_reference(sizes, update, structure, method, given_noise, regulate):
    fast, reference = twins(update, tuple(regulate), structure=structure, method=method)
    for observe in batches(sizes, given_noise):
        records = [astuple(kalman.step(observe))[:6] for kalman in (fast, reference)]
        assert records[0] == pytest.approx(records[1], rel=1e-9, abs=1e-9)
        agree(fast, reference, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("update", ["covariance", "precision"])
def test_float32_stays_close_to_float64(update):
    """Twenty steps: within 1e-4 of the mean's size."""
    fast, _ = twins(update, dtype=torch.float32)
    _, exact = twins(update)
    for observe in batches([4] * 20):
        fast.step(lambda mu, observe=observe: observe(mu.double()))
        exact.step(observe)
    assert (fast.belief.mean.double() - exact.belief.mean).norm() < 1e-4 * exact.belief.mean.norm()
    torch.testing.assert_close(fast.belief.s.double(), exact.belief.s, rtol=1e-3, atol=1e-6)


def test_the_fast_path_is_taken(monkeypatch):
    """From the second step on (the first sets the noise), and never by the reference."""
    fast, reference = twins()
    made = []
    monkeypatch.setattr(
        KalmanFilter, "_update", lambda self, seen, f=KalmanFilter._update: made.append(self) or f(self, seen)
    )
    for observe in batches([4] * 3):
        fast.step(observe)
        reference.step(observe)
    assert made == [fast, reference, reference, reference]


@pytest.mark.parametrize("where", ["H", "y"])
def test_broken_numbers_are_refused_as_by_the_reference(where):
    fast, reference = twins()
    first, second = batches([4, 4])

    def broken(mu):
        seen = second(mu)
        getattr(seen, where)[0] = math.nan
        return seen

    for kalman in (fast, reference):
        kalman.step(first)
    before = fast.belief.mean.clone(), fast.belief.s.clone(), fast.noise.R.clone()
    steps = [kalman.step(broken) for kalman in (fast, reference)]
    assert [s.skipped for s in steps] == [True, True]
    assert steps[0].reason == steps[1].reason
    assert torch.equal(fast.belief.mean, before[0])
    assert torch.equal(fast.belief.s, before[1] + 0.01)  # predicted, not updated
    assert torch.equal(fast.noise.R, before[2])


def test_a_singular_noise_is_repaired_by_the_reference():
    """Twice the same target with noise that knows it: no plain factor, but a good answer."""
    fast, reference = twins()
    (observe,) = batches([1])

    def doubled(mu):
        seen = observe(mu)
        return Observation(seen.y.repeat(2), seen.y_hat.repeat(2), seen.H.repeat(2, 1), torch.ones(2, 2).double())

    assert not fast.step(doubled).skipped
    reference.step(doubled)
    agree(fast, reference, rtol=1e-12, atol=0)


def test_a_pivot_of_rounding_error_is_left_to_the_reference():
    """Twice the same target, but for the last bit of its variance: a plain factor exists, and its inverse is noise."""
    fast, reference = twins(dtype=torch.float32)
    (observe,) = batches([1], dtype=torch.float32)
    R = torch.ones(2, 2)
    R[1, 1] += torch.finfo(torch.float32).eps
    assert torch.linalg.cholesky_ex(R).info.item() == 0

    def doubled(mu):
        seen = observe(mu)
        return Observation(seen.y.repeat(2), seen.y_hat.repeat(2), seen.H.repeat(2, 1), R)

    for kalman in (fast, reference):
        assert not kalman.step(doubled).skipped
    assert torch.equal(fast.belief.mean, reference.belief.mean)
    assert torch.equal(fast.belief.s, reference.belief.s)


def test_the_order_within_a_batch_does_not_matter():
    fast, other = twins(structure="exchangeable")
    other.reference = False
    order = torch.tensor([2, 0, 3, 1])
    for observe in batches([4] * 4):

        def shuffled(mu, observe=observe):
            seen = observe(mu)
            return Observation(seen.y[order], seen.y_hat[order], seen.H[order])

        fast.step(observe)
        other.step(shuffled)
    agree(fast, other, rtol=1e-10, atol=1e-10)


def test_capturing_needs_a_gpu():
    fast, _ = twins()
    with pytest.raises(kalman_module.ConfigError, match="CUDA"):
        CapturedStep(fast, lambda mu: None, ())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("structure", ["full", "exchangeable"])
@pytest.mark.parametrize("update", ["covariance", "precision"])
def test_a_captured_step_is_the_same(update, structure):
    """Equal to 1e-5, also after a shorter batch and after a batch that had to be refused."""
    options = {"dtype": torch.float32, "device": "cuda"}
    captured, plain = twins(update, structure=structure, **options)
    plain.reference = False
    g = torch.Generator().manual_seed(1)

    def observe(mu, A, y):
        y_hat = torch.tanh(A @ mu)
        return Observation(y, y_hat, (1 - y_hat**2)[:, None] * A)

    step = None
    for k, m in enumerate([4, 4, 4, 2, 4, 4, 4]):
        A, y = torch.randn(m, N, generator=g).cuda(), torch.randn(m, generator=g).cuda()
        if k == 5:
            A[0, 0] = torch.nan
        if k == 1:
            step = CapturedStep(captured, observe, (A, y))
        of_plain = plain.step(lambda mu, A=A, y=y: observe(mu, A, y))
        plainly = step is None or m != 4
        of_captured = captured.step(lambda mu, A=A, y=y: observe(mu, A, y)) if plainly else step(A, y)
        assert of_captured.skipped == of_plain.skipped == (k == 5)
        agree(captured, plain, rtol=1e-5, atol=1e-6)
    assert captured.steps == plain.steps == 7
    with pytest.raises(kalman_module.ConfigError, match="captured for"):
        step(A[:2], y[:2])

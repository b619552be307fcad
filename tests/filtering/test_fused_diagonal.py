"""The fused step: its two passes against dense algebra, and the whole against the reference, step by step."""

import math
import os
import subprocess
import sys
from dataclasses import astuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kalmanclip.errors import ConfigError
from kalmanclip.filtering import (
    CapturedStep,
    FilterConfig,
    KalmanFilter,
    NoiseConfig,
    Observation,
    ObservationNoise,
    make_belief,
)
from kalmanclip.filtering import kalman as algorithm
from kalmanclip.filtering.accelerated import fused_diagonal as fused

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
        algorithm, "update", lambda belief, *rest, f=algorithm.update: made.append(belief) or f(belief, *rest)
    )
    for observe in batches([4] * 3):
        fast.step(observe)
        reference.step(observe)
    assert made == [kalman.belief for kalman in (fast, reference, reference, reference)]


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
    with pytest.raises(ConfigError, match="CUDA"):
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
    with pytest.raises(ConfigError, match="captured for"):
        step(A[:2], y[:2])


def problem(m, n, seed=0, dtype=torch.float64):
    """mu, s, H, S^-1, e, lam, R^-1 of a random diagonal step."""
    g = torch.Generator().manual_seed(seed)
    mu, s = torch.randn(n, generator=g, dtype=dtype), torch.rand(n, generator=g, dtype=dtype) + 0.1
    H, e = torch.randn(m, n, generator=g, dtype=dtype), torch.randn(m, generator=g, dtype=dtype)
    root = torch.randn(m, m, generator=g, dtype=dtype)
    R = root @ root.mT + torch.eye(m, dtype=dtype)
    S_inv = torch.linalg.inv((H * s) @ H.mT + R)
    return mu, s, H, S_inv, e, torch.tensor(0.7, dtype=dtype), torch.linalg.inv(R)


def exact(mu, s, H, S_inv, e, lam, R_inv):
    """The same by dense matrices: the new mean, the new variances, the squared norm of the gain."""
    Sigma = torch.diag(s)
    K = Sigma @ H.mT @ S_inv
    if R_inv is None:
        new = (Sigma - lam * K @ H @ Sigma).diagonal()
    else:
        new = 1 / (torch.linalg.inv(Sigma) + lam * H.mT @ R_inv @ H).diagonal()
    return mu + K @ e, new, K.square().sum()


@settings(deadline=None)
@given(m=st.integers(1, 7), n=st.integers(1, 40), chunk=st.integers(1, 60), by_precision=st.booleans())
def test_any_chunks_make_the_exact_step(m, n, chunk, by_precision):
    mu, s, H, S_inv, e, lam, R_inv = problem(m, n)
    R_inv = R_inv if by_precision else None
    mean, variance, gain = exact(mu, s, H, S_inv, e, lam, R_inv)
    before = dict(fused.CHUNK)
    fused.CHUNK["cpu"] = chunk
    try:
        torch.testing.assert_close(fused.project(H, s), H @ torch.diag(s) @ H.mT, rtol=1e-12, atol=1e-12)
        norm = fused.update(mu, s, H, S_inv, e, lam, R_inv, torch.tensor(True))
    finally:
        fused.CHUNK.update(before)
    torch.testing.assert_close(mu, mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(s, variance, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(norm, gain, rtol=1e-10, atol=1e-10)


def test_nothing_changes_where_it_may_not():
    mu, s, H, S_inv, e, lam, R_inv = problem(3, 10)
    H[0, 0] = torch.nan
    kept = mu.clone(), s.clone()
    fused.update(mu, s, H, S_inv, e, lam, R_inv, torch.tensor(False))
    assert torch.equal(mu, kept[0])
    assert torch.equal(s, kept[1])


def test_variances_stay_positive():
    """A factor that rounding makes zero or negative, and a variance that would underflow."""
    one = torch.ones(1)
    s = one.clone()
    fused.update(one.clone(), s, one[None], 2 * one[None], one, torch.tensor(1.0), None, torch.tensor(True))
    assert s.item() == pytest.approx(torch.finfo(torch.float32).eps)
    s = torch.full((1,), torch.finfo(torch.float32).tiny)
    fused.update(one.clone(), s, one[None], 1e38 * one[None], one, torch.tensor(1.0), None, torch.tensor(True))
    assert s.item() >= torch.finfo(torch.float32).tiny  # below it lie numbers whose reciprocal is infinite


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_captured_step_that_forgets_is_the_same():
    """By the share of the batch, towards the prior; what else the observation changes is as if never captured."""
    config = FilterConfig(alpha=0.0, step_size=0.2)
    generator = torch.Generator().manual_seed(1)
    found = []
    for capture in (False, True):
        generator.manual_seed(1)
        belief = make_belief("diagonal", torch.zeros(N, device="cuda"), 1.0, update="precision")
        kalman, seen, step = KalmanFilter(belief, config=config), torch.zeros((), device="cuda"), None

        def observe(mu, A, y, seen=seen):
            seen.add_(1)
            return Observation(y, A @ mu, A, torch.eye(len(y), device="cuda"))

        for k in range(6):
            A, y = torch.randn(4, N, generator=generator).cuda(), torch.randn(4, generator=generator).cuda()
            if capture and k == 2:
                step = CapturedStep(kalman, observe, (A, y), 0.25, state=(seen,))
            record = step(A, y) if step else kalman.step(lambda mu, A=A, y=y: observe(mu, A, y), 0.25)
            assert not record.skipped
        found.append((belief.mean, belief.marginal_variance(), seen))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the test on the GPU says more")
def test_kernels_in_their_interpreter():
    """Triton can run its kernels on the CPU, slowly: the same numbers as the chunks, to float32 rounding."""
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


INTERPRETED = """
import torch
from kalmanclip.filtering.accelerated import fused_diagonal as fused, triton_kernels as kernels
from tests.filtering.test_fused_diagonal import problem

kernels._processors = lambda device: 1
kernels._PROJECT |= {'elements': 512}
kernels._UPDATE |= {'columns': 32}
for m, n in ((1, 5), (10, 300), (13, 70)):
    for by_precision in (False, True):
        mu, s, H, S_inv, e, lam, R_inv = problem(m, n, dtype=torch.float32)
        R_inv = R_inv if by_precision else None
        torch.testing.assert_close(kernels.project(H, s), fused.project(H, s), rtol=1e-5, atol=1e-4)
        ours, theirs = (mu.clone(), s.clone()), (mu.clone(), s.clone())
        gain = fused.update(*theirs, H, S_inv, e, lam, R_inv, torch.tensor(True))
        torch.testing.assert_close(kernels.update(*ours, H, S_inv, e, lam, R_inv, torch.tensor(True)), gain)
        for a, b in zip(ours, theirs):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        kernels.update(*ours, H * torch.nan, S_inv, e, lam, R_inv, torch.tensor(False))
        assert torch.isfinite(ours[0]).all() and torch.isfinite(ours[1]).all()
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("by_precision", [False, True])
@pytest.mark.parametrize(("m", "n"), [(1, 5), (10, 100_003), (16, 5_000), (64, 5_000), (100, 5_000)])
def test_kernels_on_a_gpu(m, n, by_precision):
    mu, s, H, S_inv, e, lam, R_inv = (t.cuda() for t in problem(m, n, dtype=torch.float32))
    R_inv = R_inv if by_precision else None
    exactly = [t.double() if t is not None else None for t in (mu, s, H, S_inv, e, lam, R_inv)]
    torch.testing.assert_close(
        fused.project(H, s).double(), fused.project(*(exactly[2], exactly[1])), rtol=1e-4, atol=1
    )
    ok = torch.tensor(True, device="cuda")
    gain = fused.update(mu, s, H, S_inv, e, lam, R_inv, ok)
    expected = fused.update(*exactly, ok)
    torch.testing.assert_close(gain.double(), expected, rtol=1e-4, atol=0)
    torch.testing.assert_close(mu.double(), exactly[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(s.double(), exactly[1], rtol=1e-4, atol=1e-6)

"""The two fused passes: chunked, and as kernels, against dense algebra."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kalmanclip.filtering import fused


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
from kalmanclip.filtering import fused, kernels
from tests.filtering.test_fused import problem

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

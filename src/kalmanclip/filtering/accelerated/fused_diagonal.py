"""Algorithm 1 for independent parameters, as fast as memory allows; `kalmanclip.filtering.kalman` is its reference.

The step goes over the n parameters twice, and each pass reads every number once. `project` reads H and s; `update`,
which needs the result of the first for all parameters together, reads H, mu and s again and writes mu and s. Neither `H
Sigma` nor the gain `K` (m x n) is ever formed. On CUDA each pass is one Triton kernel (`triton_kernels`); elsewhere,
and for batches that do not fit a kernel's registers, it goes through the columns in chunks that stay in the processor's
cache.

Between the passes, `fused_update` does the small algebra for all m x m matrices together and takes no decision that
waits for the device: whether the numbers can be trusted is itself a number, which the update obeys. A matrix that
cannot be factored as it is, or anything that is not finite, is left for the reference to repair or to refuse.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Collection, Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kalmanclip.filtering.linalg import solve_lower
from kalmanclip.filtering.noise import Noise
from kalmanclip.filtering.observation import Observation

if TYPE_CHECKING:
    from kalmanclip.filtering.beliefs.diagonal import Diagonal

CHUNK = {"cpu": 1 << 19, "cuda": 1 << 26}
"""Elements of H in one chunk: as many as a cache holds; on a GPU, enough to keep all of it busy."""

PROJECT_ROWS, UPDATE_ROWS = 64, 16
"""The largest batches that the kernels take: beyond them a block no longer fits the registers."""


def fused_update(belief: Diagonal, noise: Noise, seen: Observation, alpha: float, regulate: Collection[str]) -> Tensor:
    """Update belief and noise in place, or leave both untouched.

    Args:
        belief: already inflated.
        noise: R, of this observation or of the filter, which already holds a batch of this size.
        seen: in the belief's dtype and on its device.
        alpha: scale of the regulation.
        regulate: which updates lambda scales: "mean", "covariance", "noise".

    Returns:
        The six numbers of `kalmanclip.filtering.filter.Step`, and a seventh which is 1 if the update was made: (7,).
    """
    # On a GPU every line below costs a launch or several, whatever its size: there are as few as can be.
    H, e = seen.H, seen.innovation
    m, one = e.shape[0], e.new_ones(())
    R = noise.previous(e)
    root_R, broken = torch.linalg.cholesky_ex(R)
    d_M = torch.linalg.vector_norm(solve_lower(root_R, e.unsqueeze(1)))
    lam = torch.exp(-alpha * d_M)
    lam_mu, lam_Sigma, lam_R = (lam if line in regulate else one for line in ("mean", "covariance", "noise"))
    HSH = belief.project(H)
    R_k = noise.estimate(e, HSH, lam_R)

    matrices = torch.stack([HSH + R, HSH + R_k] + [R_k] * (belief.update == "precision"))
    roots, broken_too = torch.linalg.cholesky_ex(matrices)
    L_inv = solve_lower(roots, torch.eye(m, dtype=e.dtype, device=e.device).expand_as(roots))
    S_inv, *R_inv = (L_inv[1:].mT @ L_inv[1:]).unbind()
    white = L_inv[0] @ e
    log_likelihood = torch.sub(L_inv[0].diagonal().log().sum(), white @ white, alpha=0.5) - m / 2 * math.log(
        2 * math.pi
    )
    # no entry of the gain is larger than sqrt(s) times the root of this
    gain_bound = HSH.trace() * torch.linalg.vector_norm(S_inv).square()
    numbers = torch.stack([d_M, lam, torch.linalg.vector_norm(e), R_k.trace(), log_likelihood, gain_bound])

    # As in `linalg.cholesky`, a pivot smaller than rounding error is noise. NaN compares false, and 0 * inf is NaN.
    pivots = torch.cat([root_R.diagonal(), roots.diagonal(dim1=-2, dim2=-1).flatten()])
    entries = torch.cat([R.diagonal(), matrices.diagonal(dim1=-2, dim2=-1).flatten()])
    sound = (pivots.square() > m * torch.finfo(e.dtype).eps * entries).all()
    ok = sound & (broken + broken_too.sum() == 0) & ((0 * numbers).sum() == 0)

    gain = belief.condition(H, S_inv, lam_mu * e, lam_Sigma, R_inv[0] if R_inv else None, ok)
    noise.accept(R_k, ok)
    return torch.cat([numbers[:4], torch.stack([gain.sqrt(), log_likelihood, ok.to(e.dtype)])])


def project(H: Tensor, s: Tensor) -> Tensor:
    """Return `H diag(s) H^T` (m, m).

    Args:
        H: (m, n).
        s: (n,).
    """
    kernels = _kernels(PROJECT_ROWS, H, s)
    if kernels is not None:
        projected: Tensor = kernels.project(H, s)
        return projected
    total = H.new_zeros(H.shape[0], H.shape[0])
    for part in _chunks(H):
        h = H[:, part]
        total.addmm_(h * s[part], h.mT)
    return total


def update(
    mu: Tensor, s: Tensor, H: Tensor, S_inv: Tensor, e: Tensor, lam: Tensor, R_inv: Tensor | None, ok: Tensor
) -> Tensor:
    """Update mean and variances in place: `mu += K e`, and s shrinks, with `K = diag(s) H^T S^-1`.

    Args:
        mu: (n,).
        s: (n,), positive.
        H: (m, n).
        S_inv: inverse (m, m) of the innovation covariance.
        e: the innovation (m,), times the regulation of the mean.
        lam: regulation of the covariance, a 0-d tensor.
        R_inv: None keeps the diagonal of the posterior covariance: s times `1 - lam diag(K H)`. The inverse (m, m) of
            the noise keeps that of the posterior precision: `1 / (1/s + lam diag(H^T R^-1 H))`.
        ok: a 0-d boolean; where it is false, nothing is changed.

    Returns:
        The squared Frobenius norm of K, a 0-d tensor.
    """
    kernels = _kernels(UPDATE_ROWS, H, mu, s)
    if kernels is not None:
        squared: Tensor = kernels.update(mu, s, H, S_inv, e, lam, R_inv, ok)
        return squared
    least, tiny = torch.finfo(H.dtype).eps, torch.finfo(H.dtype).tiny
    gain = H.new_zeros(())
    for part in _chunks(H):
        h, mean, variance = H[:, part], mu[part], s[part]
        K = (S_inv @ h).mul_(variance)
        gain += torch.linalg.vector_norm(K).square()
        mean.add_(torch.where(ok, e @ K, 0))
        if R_inv is None:
            factor = K.mul_(h).sum(0).mul_(-lam).add_(1).clamp_(least, 1)
        else:
            information = torch.mm(R_inv, h, out=K).mul_(h).sum(0).clamp_min_(0)
            factor = information.mul_(variance).mul_(lam).add_(1).reciprocal_()
        variance.mul_(torch.where(ok, factor, 1)).clamp_min_(tiny)
    return gain


def _kernels(rows: int, H: Tensor, *vectors: Tensor) -> ModuleType | None:
    """Return the kernels if they take this Jacobian (m, n) and these vectors (n,), and can be built here."""
    fits = H.is_cuda and H.dtype == torch.float32 and H.shape[0] <= rows
    if not (fits and all(t.stride(-1) == 1 for t in (H, *vectors))):
        return None
    return _built(H.device)


@functools.cache
def _built(device: torch.device) -> ModuleType | None:
    """Return the kernels if they can be built here: Triton needs a C compiler, which not every machine has."""
    try:
        from kalmanclip.filtering.accelerated import triton_kernels as kernels

        one = torch.ones(1, 1, device=device)
        kernels.project(one, one[0])
        return kernels
    except Exception as problem:
        warnings.warn(
            f"The fused kernels cannot be built ({type(problem).__name__}: {problem}); going on without them. "
            "Installing a C compiler usually helps.",
            RuntimeWarning,
            stacklevel=4,
        )
        return None


def _chunks(H: Tensor) -> Iterator[slice]:
    m, n = H.shape
    width = max(1, CHUNK.get(H.device.type, CHUNK["cpu"]) // m)
    return (slice(start, start + width) for start in range(0, n, width))

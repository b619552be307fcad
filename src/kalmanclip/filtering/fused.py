"""The two passes of a diagonal Kalman step over its n parameters, each reading every number once.

`project` reads H and s; `update`, which needs the result of the first for all parameters together, reads H, mu and s
again and writes mu and s. Nothing of size m x n is made on the way: neither `H Sigma` nor the gain `K`, which the
algebra of `kalmanclip.filtering.kalman` writes down.

On CUDA each pass is one Triton kernel (`kalmanclip.filtering.kernels`); elsewhere, and for batches that do not fit a
kernel's registers, it goes through the columns in chunks that stay in the processor's cache.
"""

import functools
import warnings
from collections.abc import Iterator
from types import ModuleType

import torch
from torch import Tensor

CHUNK = {"cpu": 1 << 19, "cuda": 1 << 26}
"""Elements of H in one chunk: as many as a cache holds; on a GPU, enough to keep all of it busy."""

PROJECT_ROWS, UPDATE_ROWS = 64, 16
"""The largest batches that the kernels take: beyond them a block no longer fits the registers."""


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
    """The kernels, if they take this Jacobian (m, n) and these vectors (n,), and can be built here."""
    fits = H.is_cuda and H.dtype == torch.float32 and H.shape[0] <= rows
    if not (fits and all(t.stride(-1) == 1 for t in (H, *vectors))):
        return None
    return _built(H.device)


@functools.cache
def _built(device: torch.device) -> ModuleType | None:
    """The kernels, if they can be built here: Triton needs a C compiler, which not every machine has."""
    try:
        from kalmanclip.filtering import kernels

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

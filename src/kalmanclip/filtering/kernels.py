"""The passes of `kalmanclip.filtering.fused` as Triton kernels.

A program takes blocks of columns in turn, with all m rows of H at once: m is the size of a batch, n that of a model.
Sums over the columns (the m x m projection, the norm of the gain) are kept by each program and added up at the end, in
a fixed order, so that a step gives the same numbers every time.

Only `kalmanclip.filtering.fused` imports this file, and only on a GPU: Triton is not everywhere, and slow to import.
"""

# Triton has no types, and its own grammar
# mypy: disable-error-code="no-untyped-def, import-untyped, import-not-found, untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

_LEAST_ROWS = 16  # of a matrix product in Triton; smaller batches are padded with zeros
_ELEMENTS = 8192  # of H in one block
_PROGRAMS_PER_PROCESSOR = 4


def project(H: Tensor, s: Tensor) -> Tensor:
    """`H diag(s) H^T` (m, m), as in `fused`."""
    (m, n), M = H.shape, _rows(H)
    programs = _programs(H)
    sums = H.new_empty(programs, m, m)
    _project[(programs,)](H, s, sums, m, n, H.stride(0), M=M, B=_ELEMENTS // M, P=programs)
    return sums.sum(0)


def update(
    mu: Tensor, s: Tensor, H: Tensor, S_inv: Tensor, e: Tensor, lam: Tensor, W: Tensor | None, ok: Tensor
) -> Tensor:
    """Mean and variances in place, and the squared norm of the gain, as in `fused`."""
    (m, n), M = H.shape, _rows(H)
    programs = _programs(H)
    sums = H.new_zeros(programs)
    S_inv, e, root = S_inv.contiguous(), e.contiguous(), (S_inv if W is None else W).contiguous()
    limits = torch.finfo(H.dtype)
    _update[(programs,)](
        mu, s, H, S_inv, root, e, lam, ok, sums, m, n, H.stride(0), limits.eps, limits.tiny,
        BY_PRECISION=W is not None, M=M, B=_ELEMENTS // M, P=programs,
    )  # fmt: skip
    return sums.sum()


def _rows(H: Tensor) -> int:
    return max(_LEAST_ROWS, int(triton.next_power_of_2(H.shape[0])))


def _programs(H: Tensor) -> int:
    blocks = -(-H.shape[1] // (_ELEMENTS // _rows(H)))
    return min(blocks, _PROGRAMS_PER_PROCESSOR * _processors(H.device))


def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@triton.jit
def _project(H, s, sums, m, n, stride, M: tl.constexpr, B: tl.constexpr, P: tl.constexpr):
    rows, columns = tl.arange(0, M), tl.arange(0, B)
    total = tl.zeros((M, M), dtype=tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(n, B), P):
        j = block * B + columns
        inside = (rows[:, None] < m) & (j[None, :] < n)
        h = tl.load(H + rows[:, None].to(tl.int64) * stride + j[None, :], mask=inside, other=0.0)
        variance = tl.load(s + j, mask=j < n, other=0.0)
        total += tl.dot(h * variance[None, :], tl.trans(h), input_precision="ieee")
    at = (tl.program_id(0) * m + rows[:, None]) * m + rows[None, :]
    tl.store(sums + at, total, mask=(rows[:, None] < m) & (rows[None, :] < m))


@triton.jit
def _update(
    mu, s, H, S_inv, root, e, lam, ok, sums, m, n, stride, least, tiny,
    BY_PRECISION: tl.constexpr, M: tl.constexpr, B: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    if tl.load(ok) == 0:
        return
    rows, columns = tl.arange(0, M), tl.arange(0, B)
    square = rows[:, None] * m + rows[None, :]
    within = (rows[:, None] < m) & (rows[None, :] < m)
    A = tl.load(S_inv + square, mask=within, other=0.0)
    W = tl.load(root + square, mask=within, other=0.0)
    innovation = tl.load(e + rows, mask=rows < m, other=0.0)
    scale = tl.load(lam)
    gain = tl.zeros((B,), dtype=tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(n, B), P):
        j = block * B + columns
        inside = (rows[:, None] < m) & (j[None, :] < n)
        h = tl.load(H + rows[:, None].to(tl.int64) * stride + j[None, :], mask=inside, other=0.0)
        variance = tl.load(s + j, mask=j < n, other=0.0)
        K = tl.dot(A, h, input_precision="ieee") * variance[None, :]
        gain += tl.sum(K * K, axis=0)
        mean = tl.load(mu + j, mask=j < n, other=0.0) + tl.sum(K * innovation[:, None], axis=0)
        if BY_PRECISION:
            white = tl.dot(W, h, input_precision="ieee")
            factor = 1 / (1 + scale * variance * tl.sum(white * white, axis=0))
        else:
            factor = tl.minimum(tl.maximum(1 - scale * tl.sum(K * h, axis=0), least), 1.0)
        tl.store(mu + j, mean, mask=j < n)
        tl.store(s + j, tl.maximum(variance * factor, tiny), mask=j < n)
    tl.store(sums + tl.program_id(0), tl.sum(gain))

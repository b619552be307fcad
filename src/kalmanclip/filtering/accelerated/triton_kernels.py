"""The passes of `fused_diagonal` as Triton kernels.

A program takes blocks of columns in turn, with all m rows of H at once: m is the size of a batch, n that of a model.
Sums over the columns (the m x m projection, the norm of the gain) are kept by each program and added up at the end, in
a fixed order, so that a step gives the same numbers every time.

All that an update needs of a column h are quadratic forms and a product: `h^T S^-1 h`, `|S^-1 h|^2`, `e^T S^-1 h`, and
`h^T R^-1 h`. The rows are unrolled, so that a thread holds its columns in registers and no number crosses threads.

Only `fused_diagonal` imports this file, and only on a GPU: Triton is not everywhere, and slow to import.
"""

# Triton has no types, and its own grammar
# mypy: disable-error-code="no-untyped-def, no-untyped-call, import-untyped, import-not-found, untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

_PROJECT = {"elements": 2048, "num_warps": 1, "programs": 8}  # elements of H in a block, programs on a processor
_UPDATE = {"columns": 512, "num_warps": 4, "programs": 16}


def project(H: Tensor, s: Tensor) -> Tensor:
    """Return `H diag(s) H^T` (m, m), as in `fused_diagonal`."""
    m, n = H.shape
    M = max(16, triton.next_power_of_2(m))  # rows of a matrix product in Triton; what is missing is zero
    B = max(16, _PROJECT["elements"] // M)
    P = min(-(-n // B), _PROJECT["programs"] * _processors(H.device))
    sums = H.new_empty(P, m, m)
    with torch.cuda.device_of(H):  # Triton launches on the current device, whatever it is given
        _project[(P,)](H, s, sums, m, n, H.stride(0), M=M, B=B, P=P, num_warps=_PROJECT["num_warps"])
    return sums.sum(0)


def update(
    mu: Tensor, s: Tensor, H: Tensor, S_inv: Tensor, e: Tensor, lam: Tensor, R_inv: Tensor | None, ok: Tensor
) -> Tensor:
    """Update mean and variances in place and return the squared norm of the gain, as in `fused_diagonal`."""
    m, n = H.shape
    B = _UPDATE["columns"]
    P = min(-(-n // B), _UPDATE["programs"] * _processors(H.device))
    sums = H.new_zeros(P)
    limits = torch.finfo(H.dtype)
    shrink = (S_inv if R_inv is None else R_inv).contiguous()
    with torch.cuda.device_of(H):
        _update[(P,)](
            mu, s, H, S_inv @ e, shrink, S_inv @ S_inv, lam, ok, sums, n, H.stride(0), limits.eps, limits.tiny,
            BY_PRECISION=R_inv is not None, m=m, B=B, P=P, num_warps=_UPDATE["num_warps"],
        )  # fmt: skip
    return sums.sum()


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
        # three products of the tensor cores for one of float32, and as precise
        total += tl.dot(h * variance[None, :], tl.trans(h), input_precision="tf32x3")
    at = (tl.program_id(0) * m + rows[:, None]) * m + rows[None, :]
    tl.store(sums + at, total, mask=(rows[:, None] < m) & (rows[None, :] < m))


@triton.jit
def _update(
    mu, s, H, S_inv_e, shrink, S_inv_squared, lam, ok, sums, n, stride, least, tiny,
    BY_PRECISION: tl.constexpr, m: tl.constexpr, B: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    if tl.load(ok) == 0:
        return
    scale = tl.load(lam)
    far = tl.zeros((), dtype=tl.int64) + stride  # m n may exceed 32 bits
    gain = tl.zeros((B,), dtype=tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(n, B), P):
        j = block * B + tl.arange(0, B)
        inside = j < n
        column = H + j
        step = tl.zeros((B,), dtype=tl.float32)  # e^T S^-1 h
        form = tl.zeros((B,), dtype=tl.float32)  # h^T S^-1 h, or h^T R^-1 h
        norm = tl.zeros((B,), dtype=tl.float32)  # h^T S^-2 h
        for i in tl.static_range(m):
            h_i = tl.load(column + i * far, mask=inside, other=0.0)
            a = tl.load(shrink + i * m + i) * h_i
            b = tl.load(S_inv_squared + i * m + i) * h_i
            for k in tl.static_range(i + 1, m):  # above the diagonal, twice: the matrices are symmetric
                h_k = tl.load(column + k * far, mask=inside, other=0.0)  # not read again: the compiler keeps it
                a += 2 * tl.load(shrink + i * m + k) * h_k
                b += 2 * tl.load(S_inv_squared + i * m + k) * h_k
            step += tl.load(S_inv_e + i) * h_i
            form += h_i * a
            norm += h_i * b
        variance = tl.load(s + j, mask=inside, other=0.0)
        mean = tl.load(mu + j, mask=inside, other=0.0) + variance * step
        if BY_PRECISION:
            factor = 1 / (1 + scale * variance * tl.maximum(form, 0.0))
        else:
            factor = tl.minimum(tl.maximum(1 - scale * variance * form, least), 1.0)
        gain += variance * variance * norm
        tl.store(mu + j, mean, mask=inside)
        tl.store(s + j, tl.maximum(variance * factor, tiny), mask=inside)
    tl.store(sums + tl.program_id(0), tl.sum(gain))

"""Small dense linear algebra: factors of symmetric matrices, and what is computed from them.

The matrices here are m x m (the size of a batch) or rank x rank; nothing in this file costs more than one
pass over an array of n columns.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from kalmanclip.errors import NumericalError

# Relative diagonal shifts tried in turn when a factorisation fails. The first is a little above the rounding
# error of the dtype; beyond the last, the shift would change the answer and not merely repair it.
JITTER = {
    torch.float32: (1e-6, 1e-5, 1e-4, 1e-3, 1e-2),
    torch.float64: (1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2),
}


def check_finite(tensor: Tensor, what: str) -> Tensor:
    """Return `tensor` unchanged, or raise `NumericalError` if any entry is NaN or infinite."""
    # The largest magnitude is NaN or infinite if any entry is. One pass; isfinite(...).all() takes several.
    if tensor.numel() and not math.isfinite(torch.linalg.vector_norm(tensor, ord=math.inf).item()):
        raise NumericalError(f"{what} is not finite")
    return tensor


def symmetrise(matrix: Tensor) -> Tensor:
    """Return the symmetric part `(A + A^T) / 2` of a square matrix (m, m)."""
    return (matrix + matrix.mT) / 2


def cholesky(matrix: Tensor, what: str = "matrix") -> Tensor:
    """Factor a symmetric positive (semi-)definite matrix: `A = L L^T`.

    A matrix that is singular up to rounding is factored with the smallest shift of its diagonal that works,
    relative to the mean of the diagonal. A pivot smaller than rounding error counts as a failure too: it is
    rounding noise.

    Args:
        matrix: A (m, m), float32 or float64; only its symmetric part is used.
        what: name of the matrix in an error message.

    Returns:
        L (m, m), lower triangular with a positive diagonal.

    Raises:
        NumericalError: the matrix is not finite, or not positive definite even after the largest shift.
    """
    matrix = symmetrise(matrix)
    m = matrix.shape[0]
    tolerance = m * torch.finfo(matrix.dtype).eps
    diagonal = matrix.diagonal()
    for jitter in (0.0, *JITTER[matrix.dtype]):
        shifted = matrix + torch.diag((jitter * diagonal.mean()).expand(m)) if jitter else matrix
        factor: Tensor
        factor, info = torch.linalg.cholesky_ex(shifted)
        numbers = torch.cat([factor.diagonal(), diagonal]).tolist()  # one transfer for both
        pivots, entries = numbers[:m], numbers[m:]
        # NaN compares false, so a factor that is not finite is never trusted.
        trusted = all(p * p > tolerance * abs(a) for p, a in zip(pivots, entries, strict=True))
        if trusted and not info.item():
            return factor
        if not jitter:
            check_finite(matrix, what)
    raise NumericalError(f"{what} is not positive definite")


def solve_lower(factor: Tensor, B: Tensor) -> Tensor:
    """Return `L^-1 B` (..., m, k) for a lower triangular L (..., m, m) and B (..., m, k)."""
    solution: Tensor = torch.linalg.solve_triangular(factor, B, upper=False)
    return solution


def mahalanobis(e: Tensor, R: Tensor) -> Tensor:
    """Return the Mahalanobis distance `sqrt(e^T R^-1 e)` of e (m,) under the covariance R (m, m): a scalar tensor."""
    return solve_lower(cholesky(R, "the observation noise R"), e[:, None]).square().sum().sqrt()


def log_density(e: Tensor, S: Tensor) -> Tensor:
    """Return the log-density `log N(e; 0, S)` of e (m,) for a covariance S (m, m): a scalar tensor."""
    factor = cholesky(S, "the innovation covariance H Sigma H^T + R")
    half_square = solve_lower(factor, e[:, None]).square().sum() / 2
    half_log_determinant = factor.diagonal().log().sum()
    return -half_square - half_log_determinant - e.shape[0] / 2 * math.log(2 * math.pi)


def whiten(R: Tensor, H: Tensor) -> Tensor:
    """Return `L^-1 H` with `R = L L^T`, so that `H^T R^-1 H` is the Gram matrix of the result.

    The small triangular matrix is inverted first: one product with the wide H (m, n) is several times faster
    than a triangular solve with n right-hand sides. A diagonal R, which likelihoods that bring their own R
    tend to have, needs not even that product.
    """
    variances = R.diagonal()
    if torch.equal(R, torch.diag(variances)) and bool((variances > 0).all()):
        return H * variances.rsqrt()[:, None]
    factor = cholesky(R, "the observation noise R")
    identity = torch.eye(R.shape[0], dtype=R.dtype, device=R.device)
    return solve_lower(factor, identity) @ H


def gram(A: Tensor) -> Tensor:
    """Return the Gram matrix `A^T A` (r, r) of a tall A (n, r), accumulated in float64 whatever the dtype of A."""
    A = A.double()
    return A.mT @ A


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues (r,), ascending, and eigenvectors (r, r) of a symmetric matrix, both in float64."""
    # torch raises an error of its own on NaN; the filter must see a NumericalError to skip the step.
    matrix = check_finite(symmetrise(matrix.double()), "a matrix to be decomposed")
    try:
        values, vectors = torch.linalg.eigh(matrix)
    except torch.linalg.LinAlgError as error:
        raise NumericalError(f"an eigenvalue decomposition failed: {error}") from error
    return values, vectors


def spectral(matrix: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a scalar function to the eigenvalues of a positive semi-definite matrix: `V f(max(s, 0)) V^T`.

    The decomposition runs in float64; the result (r, r) is float64 too, for the caller to cast.
    """
    values, vectors = eigh(matrix)
    return (vectors * function(values.clamp_min(0))) @ vectors.mT

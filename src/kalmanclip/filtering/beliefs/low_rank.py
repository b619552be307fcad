"""Low rank plus diagonal precision, in memory linear in n: LO-FI (Chang et al. 2023)."""

import torch
from torch import Tensor

from kalmanclip.errors import ConfigError
from kalmanclip.filtering.beliefs.base import Belief, check_inflation, prior_variance
from kalmanclip.filtering.linalg import check_finite, cholesky, eigh, gram, solve_lower, spectral, whiten


class LowRankPlusDiagonal(Belief, kind="low_rank"):
    """Sigma^-1 = diag(d) + W W^T.

    With `A = D^-1/2 W` the covariance is `D^-1/2 (I + A A^T)^-1 D^-1/2`, and (Woodbury, for the square root)
    `(I + A A^T)^-1/2 = I - A M A^T` with `M = f(A^T A)`, `f(x) = 1 / (r (r + 1))`, `r = sqrt(1 + x)`.
    Everything below is this root applied once or twice: exact, linear in n, positive by construction, and in
    float32 far more accurate than the difference `D^-1 - D^-1 W (...)^-1 W^T D^-1`, which cancels in the
    directions that are observed well.

    Attributes:
        mean: mu (n,).
        d: diagonal part of the precision (n,), positive.
        W: low-rank part of the precision (n, rank).
    """

    tensors = ("mean", "d", "W")

    def __init__(self, mean: Tensor, d: Tensor, W: Tensor) -> None:
        super().__init__(mean)
        if d.shape != mean.shape or W.ndim != 2 or W.shape[0] != mean.shape[0]:
            raise ConfigError(f"d {tuple(d.shape)} and W {tuple(W.shape)} do not fit {mean.shape[0]} parameters")
        self._assign(d, W)

    @classmethod
    def prior(cls, mean: Tensor, variance: float | Tensor, rank: int = 10) -> "LowRankPlusDiagonal":
        """Make the belief with a diagonal precision; `rank` is the number of directions learned beside it."""
        if rank < 1:
            raise ConfigError(f"the rank must be at least 1, not {rank}")
        return cls(mean, 1 / prior_variance(mean, variance), mean.new_zeros(mean.shape[0], rank))

    def _assign(self, d: Tensor, W: Tensor) -> None:
        """Set the state to d (n,) and W (n, rank), together with what is computed from them."""
        scale = d.rsqrt()
        A = check_finite(scale[:, None] * W, "the updated precision")
        M = spectral(gram(A), lambda x: 1 / (1 + x + (1 + x).sqrt())).to(A.dtype)
        self.d, self.W = check_finite(d, "the updated precision"), W
        self._scale, self._A, self._M = scale, A, M

    def _root(self, X: Tensor) -> Tensor:
        """Return `X (I + A A^T)^-1/2` for X (k, n)."""
        return X - ((X @ self._A) @ self._M) @ self._A.mT

    def inflate(self, q: float) -> None:
        """Add process noise, exactly and without changing the rank.

        `(Sigma + q I)^-1 = D' + B (I + q W^T (I + q D)^-1 W)^-1 B^T` with `D' = D / (1 + q D)` and
        `B = W / (1 + q d)`: the matrix inversion lemma, twice, arranged so that nothing is subtracted.
        """
        check_inflation(q)
        if q == 0:
            return
        damped = 1 + q * self.d
        B = self.W / damped[:, None]
        identity = torch.eye(self.W.shape[1], dtype=self.W.dtype, device=self.W.device)
        root = cholesky(identity + q * (self.W.mT @ B), "the low-rank precision")
        self._assign(self.d / damped, solve_lower(root, B.mT).mT.contiguous())

    def times(self, H: Tensor) -> Tensor:
        """Return `H Sigma` (m, n)."""
        return self._root(self._root(H * self._scale)) * self._scale

    def project(self, H: Tensor) -> Tensor:
        """Return `H Sigma H^T` (m, m), a Gram matrix."""
        root = self._root(H * self._scale)
        return root @ root.mT

    def variance(self, J: Tensor) -> Tensor:
        """Return `diag(J Sigma J^T)` (m,), a sum of squares."""
        return self._root(J * self._scale).square().sum(1)

    def update_covariance(self, K: Tensor, H: Tensor, HS: Tensor, R: Tensor, lam: float | Tensor) -> None:
        """Add the information `lam H^T R^-1 H`, then truncate to the rank.

        The regulation scales the information increment here, since that is what this structure stores. Of the
        directions of `[W, sqrt(lam) H^T R^-T/2]` the strongest are kept; of the others the diagonal goes into
        d, so that the diagonal of the precision is exact. Any orthogonal basis V leaves `(W V)(W V)^T` as it
        was: the accuracy of the eigenvectors decides how good the truncation is, not whether it is right.
        """
        rank = self.W.shape[1]
        root_lam = torch.as_tensor(lam, dtype=H.dtype, device=H.device).sqrt()
        W = torch.cat([self.W, (root_lam * whiten(R, H)).mT], dim=1)
        _, V = eigh(gram(W))  # ascending
        rotated = W @ V.to(W.dtype)
        dropped, kept = rotated[:, :-rank], rotated[:, -rank:]
        self._assign(self.d + dropped.square().sum(1), kept.contiguous())

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw parameter vectors (count, n)."""
        return self.mean + self._root(self._noise(count, generator)) * self._scale

    def marginal_variance(self) -> Tensor:
        """Return the diagonal of Sigma (n,)."""
        # 1 - diag(A (I + A^T A)^-1 A^T) cancels where one parameter is well observed, hence float64.
        A = self._A.double()
        C = spectral(A.mT @ A, lambda x: 1 / (1 + x))
        left = (1 - ((A @ C) * A).sum(1)).clamp_min(torch.finfo(torch.float64).eps)
        return (left / self.d).to(self.mean.dtype)

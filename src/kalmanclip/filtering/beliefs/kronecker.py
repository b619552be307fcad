"""Kronecker covariance: a matrix of parameters whose rows are independent and share one covariance."""

import math

import torch
from torch import Tensor

from kalmanclip.errors import ConfigError
from kalmanclip.filtering.beliefs.base import Belief, check_inflation, check_memory, prior_variance
from kalmanclip.filtering.linalg import check_finite, whiten


class Kronecker(Belief, kind="kronecker"):
    """Sigma = I_C (x) P with P = L L^T, for parameters Theta (C, d) whose mean is stored flat, row after row.

    The precision of the exact posterior p after an observation is `Lambda = I_C (x) P^-1 + H^T R^-1 H`, which is
    not of this form. Of the Gaussians `q = N(mu, I_C (x) P')` with the mean of p, this structure takes the one that
    minimises `KL(q || p)`, the variational one. But for a constant,

        2 KL(q || p) = tr(Lambda (I_C (x) P')) - log det(I_C (x) P')
                     = sum_c tr(Lambda_cc P') - C log det P',

    which is convex in P', and its derivative `sum_c Lambda_cc - C P'^-1` is zero where `P'^-1` is the average of the
    diagonal blocks of the precision. With H_a (C, d) the a-th row of H, written as a matrix,

        P'^-1 = P^-1 + (1/C) sum_ab (R^-1)_ab H_a^T H_b.

    (`KL(p || q)` would give the average of the diagonal blocks of the covariance, which is never smaller and takes all
    of `Lambda^-1` to compute.) So this is the "precision" update of `Diagonal`, with rows for entries. It is exact for
    C = 1, and for an observation that tells every row the same about itself and nothing about its relation to the
    others.

    What is stored is a square root of P, for the reasons given at `BlockDiagonal`. It is not triangular.

    Attributes:
        mean: mu (n,), n = C d.
        factor: the root L (d, d).
        rows: C.
    """

    tensors = ("mean", "factor")

    def __init__(self, mean: Tensor, factor: Tensor) -> None:
        super().__init__(mean)
        d = factor.shape[0] if factor.ndim else 0
        if factor.shape != (d, d) or d < 1 or mean.shape[0] < 1 or mean.shape[0] % d:
            raise ConfigError(f"a factor {tuple(factor.shape)} does not fit rows of {mean.shape[0]} parameters")
        self.factor = factor
        self.rows = mean.shape[0] // d

    @classmethod
    def prior(cls, mean: Tensor, variance: float | Tensor, rows: int) -> "Kronecker":
        """Make the belief with a diagonal P; `rows` is C, and a variance (n,) must be the same for every row."""
        n = mean.shape[0] if mean.ndim else 0
        if not isinstance(rows, int) or rows < 1 or n < 1 or n % rows:
            raise ConfigError(f"rows must be a whole number > 0 that divides {n} parameters, not {rows!r}")
        check_memory([n // rows], mean)
        s = prior_variance(mean, variance).reshape(rows, -1)
        if not torch.equal(s, s[:1].expand_as(s)):
            raise ConfigError(
                f"the rows of a kronecker belief share one covariance, so their prior variances must be equal, but "
                f"those of the {rows} rows given are not; use a block belief for rows that differ"
            )
        return cls(mean, torch.diag(s[0].sqrt()))

    def inflate(self, q: float) -> None:
        """Add process noise, `P + q I`: the root is computed anew, O(d^3); free when q = 0."""
        check_inflation(q)
        if q == 0:
            return
        noise = math.sqrt(q) * torch.eye(len(self.factor), dtype=torch.float64, device=self.factor.device)
        self._replace(_joint_root(self.factor.mT, noise).mT)

    def times(self, H: Tensor) -> Tensor:
        """Return `H Sigma` (m, n): `H_a P` for every row a of H."""
        return (self._rooted(H) @ self.factor.mT).reshape(H.shape)

    def project(self, H: Tensor) -> Tensor:
        """Return `H Sigma H^T` (m, m), a Gram matrix."""
        root = self._rooted(H).reshape(H.shape)
        return root @ root.mT

    def variance(self, J: Tensor) -> Tensor:
        """Return `diag(J Sigma J^T)` (m,), a sum of squares."""
        return self._rooted(J).reshape(J.shape).square().sum(1)

    def _rooted(self, H: Tensor) -> Tensor:
        """Return the products `H_a L`, one above the other: (m C, d)."""
        return H.reshape(-1, len(self.factor)) @ self.factor

    def update_covariance(self, K: Tensor, H: Tensor, HS: Tensor, R: Tensor, lam: float | Tensor) -> None:
        """Add the rows' average information: `P^-1 + (lam / C) sum_ab (R^-1)_ab H_a^T H_b`, O(m n d + d^3).

        With G (m C, d) the rows of `sqrt(lam / C) R^-1/2 H`, times L, the new P is `L (I + G^T G)^-1 L^T`. The
        root of `I + G^T G` comes from the QR decomposition of I above G: the product itself would lose the I where
        an observation is very precise, and with it all that was known of the directions it does not inform.
        """
        weight = torch.as_tensor(lam, dtype=H.dtype, device=H.device).div(self.rows).sqrt()
        G = weight * self._rooted(whiten(R, H))
        identity = torch.eye(len(self.factor), dtype=G.dtype, device=G.device)
        T = _joint_root(identity, G)
        self._replace(torch.linalg.solve_triangular(T, self.factor.double(), upper=True, left=False))

    def _replace(self, factor: Tensor) -> None:
        self.factor = check_finite(factor.to(self.mean.dtype), "the updated covariance").contiguous()

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw parameter vectors (count, n)."""
        rows = self._noise(count, generator).reshape(-1, len(self.factor)) @ self.factor.mT
        return self.mean + rows.reshape(count, -1)

    def marginal_variance(self) -> Tensor:
        """Return the diagonal of Sigma (n,)."""
        return self.factor.square().sum(1).repeat(self.rows)


def _joint_root(A: Tensor, B: Tensor) -> Tensor:
    """Return the upper triangular T (d, d) with `T^T T = A^T A + B^T B` for A and B of d columns, computed in float64.

    Neither sum nor product is formed: the condition number is that of T, not its square. A has full rank d.
    """
    T: Tensor = torch.linalg.qr(torch.cat([A.double(), B.double()]), mode="r").R
    return T

"""Diagonal covariance, the one the paper uses: linear in the number of parameters (Chang et al. 2022)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from kalmanclip.errors import ConfigError
from kalmanclip.filtering.accelerated import fused_diagonal
from kalmanclip.filtering.beliefs.base import Belief, check_inflation, prior_variance
from kalmanclip.filtering.linalg import check_finite, whiten

UPDATES = ("covariance", "precision")


class Diagonal(Belief, kind="diagonal"):
    """Sigma = diag(s).

    The exact posterior is not diagonal, and there are two ways to make it so:

    - "covariance" (fdekf) keeps the diagonal of the posterior covariance: `s - lam diag(K H Sigma)`;
    - "precision" (vdekf) keeps the diagonal of the posterior precision: `1 / (1/s + lam diag(H^T R^-1 H))`.
      Its variances are the smaller ones: it takes every other parameter as known.

    Attributes:
        mean: mu (n,).
        s: the variances (n,), all positive; like the mean updated in place and never replaced.
        update: "covariance" or "precision".
    """

    def __init__(self, mean: Tensor, s: Tensor, update: str = "covariance") -> None:
        super().__init__(mean)
        if update not in UPDATES:
            raise ConfigError(f"unknown diagonal update {update!r}; choose one of {', '.join(UPDATES)}")
        if s.shape != mean.shape:
            raise ConfigError(f"the variances must be of shape {tuple(mean.shape)}, not {tuple(s.shape)}")
        self.s = s
        self.update = update

    @classmethod
    def prior(cls, mean: Tensor, variance: float | Tensor, update: str = "covariance") -> "Diagonal":
        """Make the belief; `update` chooses how the posterior is made diagonal again."""
        return cls(mean, prior_variance(mean, variance), update)

    def inflate(self, q: float) -> None:
        """Add process noise: `s += q`."""
        check_inflation(q)
        if q:
            self.s.add_(q)

    def forget(self, share: float, mean: Tensor, variance: Tensor) -> None:
        """See `Belief.forget`."""
        kept, back = (1 - share) / self.s, share / variance
        precision = kept + back
        self.mean.copy_((kept * self.mean + back * mean) / precision)
        self.s.copy_(1 / precision)

    def times(self, H: Tensor) -> Tensor:
        """Return `H Sigma` (m, n): column i scaled by s_i."""
        return H * self.s

    def project(self, H: Tensor) -> Tensor:
        """Return `H Sigma H^T` (m, m) in one pass over H (m, n)."""
        return fused_diagonal.project(H, self.s)

    def variance(self, J: Tensor) -> Tensor:
        """Return `diag(J Sigma J^T)` (m,)."""
        return J.square() @ self.s

    def update_covariance(self, K: Tensor, H: Tensor, HS: Tensor, R: Tensor, lam: float | Tensor) -> None:
        """Shrink every variance by a factor in (0, 1]; see the class for the two updates."""
        if self.update == "covariance":
            # diag(K H Sigma) = s * diag(K H), so the update is a factor 1 - lam diag(K H). Exactly,
            # 0 <= diag(K H) < 1; rounding can push it to 1 or beyond, where the variance would vanish or turn
            # negative. A factor below the rounding error of 1 cannot be told from 0, so it stops there.
            fraction = (K.mT * H).sum(0)
            factor = (1 - lam * fraction).clamp(torch.finfo(H.dtype).eps, 1)
        else:
            information = whiten(R, H).square_().sum(0)
            factor = 1 / (1 + lam * self.s * information)
        # However often it shrinks, a variance never underflows to zero: it could not be divided by any more.
        s = (self.s * factor).clamp_min(torch.finfo(H.dtype).tiny)
        self._accept(s)

    def _accept(self, s: Tensor) -> None:
        """Replace the variances by new ones (n,), if they are finite."""
        self.s.copy_(check_finite(s, "the updated variance"))

    def condition(self, H: Tensor, S_inv: Tensor, e: Tensor, lam: Tensor, R_inv: Tensor | None, ok: Tensor) -> Tensor:
        """Update variances and mean in one pass over H: `update_covariance` and `mu += K e`, without forming K.

        Args:
            H: Jacobian (m, n).
            S_inv: inverse (m, m) of the innovation covariance.
            e: innovation (m,), regulated.
            lam: regulation of the covariance, a 0-d tensor.
            R_inv: inverse (m, m) of the noise, for the update "precision"; else None.
            ok: a 0-d boolean; where it is false, nothing is changed.

        Returns:
            The squared Frobenius norm of K, a 0-d tensor.
        """
        return fused_diagonal.update(self.mean, self.s, H, S_inv, e, lam, R_inv, ok)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw parameter vectors (count, n)."""
        return self.mean + self.s.sqrt() * self._noise(count, generator)

    def marginal_variance(self) -> Tensor:
        """Return the variances (n,)."""
        return self.s.clone()

    def _state(self) -> dict[str, Tensor]:
        # The update is part of the state: as its position in UPDATES, since a file of tensors holds no text.
        return {"mean": self.mean, "s": self.s, "update": torch.tensor(UPDATES.index(self.update))}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> "Diagonal":
        """Rebuild the belief from `state_dict`."""
        return cls(state["mean"], state["s"], UPDATES[int(state["update"])])

"""Block-diagonal covariance: groups of parameters (layers) that are independent of each other, the decoupled filter."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kalmanclip.errors import ConfigError
from kalmanclip.filtering.beliefs.base import Belief, check_inflation, check_memory, prior_variance
from kalmanclip.filtering.linalg import check_finite, cholesky, solve_lower, spectral


class BlockDiagonal(Belief, kind="block"):
    """Sigma = blockdiag(L_1 L_1^T, ..., L_B L_B^T), one square root L_b per group of consecutive parameters.

    Square roots and not covariances, because a covariance that is updated by subtraction in float32 loses its
    definiteness in the end: its rounding error is relative to the largest eigenvalue and swamps the small
    ones. `L L^T` is positive semi-definite whatever the rounding, and L has the square root of the condition
    number. The roots are not triangular: restoring the triangle at every update would cost O(n_b^3).

    All groups share one innovation covariance `S = sum_b H_b Sigma_b H_b^T + R`; the updated blocks are the
    diagonal blocks of the exact posterior.

    Attributes:
        mean: mu (n,).
        factors: the roots L_b (n_b, n_b).
        groups: the sizes n_b, which sum to n.
    """

    def __init__(self, mean: Tensor, factors: Sequence[Tensor]) -> None:
        super().__init__(mean)
        self.groups = [factor.shape[0] for factor in factors]
        if sum(self.groups) != mean.shape[0] or any(L.shape != (L.shape[0], L.shape[0]) for L in factors):
            raise ConfigError(
                f"blocks of shapes {[tuple(L.shape) for L in factors]} do not make {mean.shape[0]} parameters"
            )
        self.factors = list(factors)

    @classmethod
    def prior(cls, mean: Tensor, variance: float | Tensor, groups: Sequence[int]) -> "BlockDiagonal":
        """Make the belief with diagonal blocks; `groups` are the sizes n_b, in order, and must sum to n."""
        if any(size < 1 for size in groups) or sum(groups) != mean.shape[0]:
            raise ConfigError(f"groups must be sizes > 0 that sum to {mean.shape[0]}, not {list(groups)}")
        check_memory(groups, mean)
        s = prior_variance(mean, variance)
        return cls(mean, [torch.diag(part.sqrt()) for part in torch.split(s, list(groups))])

    def inflate(self, q: float) -> None:
        """Add process noise: every root is computed anew from `L L^T + q I`, O(n_b^3); free when q = 0."""
        check_inflation(q)
        if q == 0:
            return
        factors = []
        for L in self.factors:
            block = L @ L.mT
            block.diagonal().add_(q)
            factors.append(cholesky(block, "a covariance block"))
        self.factors = factors

    def times(self, H: Tensor) -> Tensor:
        """Return `H Sigma` (m, n)."""
        return torch.cat([Y @ L.mT for Y, L in zip(self._rooted(H), self.factors, strict=True)], dim=1)

    def variance(self, J: Tensor) -> Tensor:
        """Return `diag(J Sigma J^T)` (m,), a sum of squares."""
        return torch.stack([Y.square().sum(1) for Y in self._rooted(J)]).sum(0)

    def _rooted(self, H: Tensor) -> list[Tensor]:
        """Return the products `H_b L_b` (m, n_b)."""
        return [H_b @ L for H_b, L in zip(torch.split(H, self.groups, dim=1), self.factors, strict=True)]

    def update_covariance(self, K: Tensor, H: Tensor, HS: Tensor, R: Tensor, lam: float | Tensor) -> None:
        """Subtract in every block: `Sigma_b - lam K_b H_b Sigma_b`, on the roots and at O(n_b^2 m).

        With `G = sqrt(lam) S^-1/2 H_b L_b` (m, n_b) the new block is `L_b (I - G^T G) L_b^T`, and
        `(I - G^T G)^1/2 = I - G^T N G` for `N = f(G G^T)`, `f(x) = 1 / (1 + sqrt(1 - x))`.
        """
        root_S = cholesky(HS @ H.mT + R, "the innovation covariance H Sigma H^T + R")
        root_lam = torch.as_tensor(lam, dtype=H.dtype, device=H.device).sqrt()
        eps = torch.finfo(H.dtype).eps

        def shrink(x: Tensor) -> Tensor:
            # Exactly, x < 1. At 1 a direction would lose all its variance for ever, only by rounding.
            return 1 / (1 + (1 - x).clamp_min(eps).sqrt())

        factors = []
        for Y, L in zip(self._rooted(H), self.factors, strict=True):
            G = root_lam * solve_lower(root_S, Y)
            N = spectral(G @ G.mT, shrink).to(G.dtype)
            factors.append(check_finite(L - (L @ G.mT) @ (N @ G), "an updated covariance block"))
        self.factors = factors

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw parameter vectors (count, n)."""
        parts = torch.split(self._noise(count, generator), self.groups, dim=1)
        return self.mean + torch.cat([z @ L.mT for z, L in zip(parts, self.factors, strict=True)], dim=1)

    def marginal_variance(self) -> Tensor:
        """Return the diagonal of Sigma (n,)."""
        return torch.cat([L.square().sum(1) for L in self.factors])

    def _state(self) -> dict[str, Tensor]:
        return {"mean": self.mean, **{f"factor.{b}": L for b, L in enumerate(self.factors)}}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> "BlockDiagonal":
        """Rebuild the belief from `state_dict`."""
        count = sum(name.startswith("factor.") for name in state)
        return cls(state["mean"], [state[f"factor.{b}"] for b in range(count)])

"""Dense covariance: exact, quadratic in the number of parameters. For reference, and for tiny problems."""

import torch
from torch import Tensor

from kalmanclip.errors import ConfigError
from kalmanclip.filtering.beliefs.base import Belief, check_inflation, check_memory, prior_variance
from kalmanclip.filtering.linalg import check_finite, cholesky, symmetrise


class Dense(Belief, kind="dense"):
    """Sigma as a full matrix, updated as in the textbooks.

    In float32 it loses its definiteness where observations are some 10^6 times as precise as the prior; a
    `BlockDiagonal` with a single group is the same belief, stored so that it does not.

    Attributes:
        mean: mu (n,).
        covariance: Sigma (n, n), symmetric positive definite.
    """

    tensors = ("mean", "covariance")

    def __init__(self, mean: Tensor, covariance: Tensor) -> None:
        super().__init__(mean)
        if covariance.shape != (mean.shape[0], mean.shape[0]):
            raise ConfigError(f"a covariance {tuple(covariance.shape)} does not fit {mean.shape[0]} parameters")
        self.covariance = covariance

    @classmethod
    def prior(cls, mean: Tensor, variance: float | Tensor) -> "Dense":
        """Make the belief with a diagonal Sigma."""
        check_memory([mean.shape[0]], mean)
        return cls(mean, torch.diag(prior_variance(mean, variance)))

    def inflate(self, q: float) -> None:
        """Add process noise: `Sigma += q I`."""
        check_inflation(q)
        self.covariance.diagonal().add_(q)

    def times(self, H: Tensor) -> Tensor:
        """Return `H Sigma` (m, n)."""
        return H @ self.covariance

    def update_covariance(self, K: Tensor, H: Tensor, HS: Tensor, R: Tensor, lam: float | Tensor) -> None:
        """Subtract: `Sigma - lam K H Sigma`.

        Written as `(1 - lam) Sigma + lam Sigma'` with `Sigma'` in Joseph's form,
        `(I - K H) Sigma (I - K H)^T + K R K^T`: an error in K then enters squared, where it enters the plain
        difference as it is. Multiplied out so that it costs O(n^2 m).
        """
        half = self.covariance - K @ HS
        posterior = half - (half @ H.mT) @ K.mT + K @ R @ K.mT
        covariance = symmetrise((1 - lam) * self.covariance + lam * posterior)
        self.covariance = check_finite(covariance, "the updated covariance")

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw parameter vectors (count, n)."""
        return self.mean + self._noise(count, generator) @ cholesky(self.covariance, "the covariance").mT

    def marginal_variance(self) -> Tensor:
        """Return the diagonal of Sigma (n,)."""
        return self.covariance.diagonal().clone()

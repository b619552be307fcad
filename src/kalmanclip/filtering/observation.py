"""The observation of a mini-batch: targets, predictions and their Jacobian."""

from dataclasses import dataclass

from torch import Tensor

from kalmanclip.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Observation:
    """One mini-batch, linearised at the predicted mean.

    Attributes:
        y: targets (m,).
        y_hat: predictions `h(B, mu)` (m,).
        H: Jacobian of the predictions with respect to the parameters (m, n).
        R: covariance (m, m) of the targets given the predictions, when the likelihood knows it (an
            exponential family: `Cov(T(y) | y_hat)`). `None` leaves it to the filter's moving average.
    """

    y: Tensor
    y_hat: Tensor
    H: Tensor
    R: Tensor | None = None

    def __post_init__(self) -> None:
        if self.y.ndim != 1 or self.y.shape[0] == 0:
            raise ConfigError(f"y must be a vector of at least one target, not of shape {tuple(self.y.shape)}")
        m = self.y.shape[0]
        if self.y_hat.shape != (m,):
            raise ConfigError(f"y_hat must have the shape of y, ({m},), not {tuple(self.y_hat.shape)}")
        if self.H.ndim != 2 or self.H.shape[0] != m:
            raise ConfigError(f"H must have one row per target, ({m}, n), not {tuple(self.H.shape)}")
        if self.R is not None and self.R.shape != (m, m):
            raise ConfigError(f"R must be a ({m}, {m}) matrix, not of shape {tuple(self.R.shape)}")

    @property
    def innovation(self) -> Tensor:
        """The prediction error `e = y - y_hat` (m,)."""
        return self.y - self.y_hat

    def matching(self, mean: Tensor) -> "Observation":
        """Return this observation detached, in the dtype and on the device of `mean` (n,), and check n."""
        if self.H.shape[1] != mean.shape[0]:
            raise ConfigError(f"H has {self.H.shape[1]} columns but the belief is over {mean.shape[0]} parameters")
        parts = [self.y, self.y_hat, self.H] + ([] if self.R is None else [self.R])
        if all(t.dtype == mean.dtype and t.device == mean.device and not t.requires_grad for t in parts):
            return self
        return Observation(*[t.detach().to(mean) for t in parts])

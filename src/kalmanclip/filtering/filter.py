"""The filter: Algorithm 1 (`kalman`) or its accelerated form, steps that are skipped, and the record of each."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from kalmanclip.errors import ConfigError, NumericalError
from kalmanclip.filtering import kalman
from kalmanclip.filtering.accelerated.fused_diagonal import fused_update
from kalmanclip.filtering.beliefs.base import Belief, check_inflation
from kalmanclip.filtering.beliefs.diagonal import Diagonal
from kalmanclip.filtering.noise import GivenNoise, Noise, ObservationNoise
from kalmanclip.filtering.observation import Observation


@dataclass(frozen=True)
class FilterConfig:
    """Options of the filter.

    Attributes:
        alpha: scale of the regulation `lambda = exp(-alpha d_M)`; 0 turns it off.
        q: process noise, `Q = q I`.
        regulate: which updates lambda scales: "mean", "covariance", "noise". All three is the paper's prose; Algorithm
            1 as printed leaves out the covariance.
        step_size: None is the paper: every pass counts the data once more. A number ``gamma`` in (0, 1]: however many
            passes there are, the data count once. A step with a share ``w`` of them forgets ``gamma w`` of what was
            learned (`Belief.forget`) and adds ``gamma`` times its information; the fixed point is the posterior.
    """

    alpha: float = 0.1
    q: float = 0.0
    regulate: tuple[str, ...] = kalman.REGULATED
    step_size: float | None = field(default=None, metadata={"quiet": True})  # see `kalmanclip.config.QUIET`

    def __post_init__(self) -> None:
        object.__setattr__(self, "regulate", tuple(self.regulate))  # a configuration file holds a list
        if not (self.alpha >= 0 and math.isfinite(self.alpha)):
            raise ConfigError(f"alpha must be finite and not negative, not {self.alpha}")
        check_inflation(self.q)
        if self.step_size is not None and not 0 < self.step_size <= 1:
            raise ConfigError(f"step_size must be None or lie in (0, 1], not {self.step_size}")
        unknown = set(self.regulate) - set(kalman.REGULATED)
        if unknown:
            raise ConfigError(f"cannot regulate {sorted(unknown)}; choose from {', '.join(kalman.REGULATED)}")


@dataclass(frozen=True)
class Step:
    """Record of one step. All numbers are NaN where the update was skipped.

    Attributes:
        distance: Mahalanobis distance d_M of the innovation under the previous noise.
        regulation: lambda = exp(-alpha d_M).
        innovation: length of e = y - y_hat.
        trace_R: trace of R_k.
        gain: Frobenius norm of the Kalman gain K.
        log_likelihood: `log N(e; 0, H Sigma H^T + R_{k-1})`, the log-density of this batch before it was learned from.
            Its sum over a run compares settings without held-out data.
        skipped: whether the update was left out because the numbers broke down.
        reason: why it was skipped.
    """

    distance: float = math.nan
    regulation: float = math.nan
    innovation: float = math.nan
    trace_R: float = math.nan
    gain: float = math.nan
    log_likelihood: float = math.nan
    skipped: bool = False
    reason: str = ""


class KalmanFilter:
    """A belief, the observation noise, and `step`.

    Attributes:
        belief: `N(mu, Sigma)`, changed in place by every step.
        noise: R; not consulted for observations that bring their own.
        config: the options.
        reference: whether to use Algorithm 1 as written (`kalman`) even where an accelerated form exists.
        prior: mean and variances (n,) before the data of the current passes; see `hold_prior`.
        steps: number of steps taken, skipped ones included.
        skipped: number of updates left out.
    """

    def __init__(
        self,
        belief: Belief,
        noise: ObservationNoise | None = None,
        config: FilterConfig | None = None,
        reference: bool = False,
    ) -> None:
        self.belief = belief
        self.reference = reference
        self.noise = noise or ObservationNoise()
        self.config = config or FilterConfig()
        self.prior: tuple[Tensor, Tensor] | None = None
        self.steps = 0
        self.skipped = 0

    def hold_prior(self) -> None:
        """Take the belief as it is for the prior of the data to come, which the ``step_size`` counts once."""
        self.prior = self.belief.mean.clone(), self.belief.marginal_variance()

    def step(self, observe: Callable[[Tensor], Observation], share: float = 1.0) -> Step:
        """Predict, observe, update.

        Args:
            observe: called once with the predicted mean mu_{k|k-1} (n,), which it must not change; returns the
                observation linearised there.
            share: of all data of a pass, how much this observation is; it matters with a ``step_size`` only.

        Returns:
            The record of the step. If the numbers break down (NaN or infinite values, a matrix that cannot be
            factored) the update is skipped: mean, covariance and noise stay as predicted.
        """
        return self.complete(lambda: self.launch(observe, share))

    def launch(self, observe: Callable[[Tensor], Observation], share: float = 1.0) -> tuple[Observation, Tensor | None]:
        """Predict, observe, and start the accelerated update if there is one, without waiting for the device.

        Returns:
            The observation, and the result (7,) of `fused_update`; None if the reference is to do the update.
        """
        kalman.predict(self.belief, self.config.q)
        step_size = self.config.step_size
        if step_size is not None:
            if self.prior is None:
                self.hold_prior()
            assert self.prior is not None
            self.belief.forget(step_size * share, *self.prior)
        seen = observe(self.belief.mean).matching(self.belief.mean)
        if step_size is not None:
            if seen.R is None:
                raise ConfigError("a step_size needs observations that bring their own noise R")
            seen = dataclasses.replace(seen, R=seen.R / step_size)
        noise = self._noise_of(seen)
        if self.reference or not isinstance(self.belief, Diagonal) or not noise.holds(len(seen.y)):
            return seen, None
        return seen, fused_update(self.belief, noise, seen, self.config.alpha, self.config.regulate)

    def complete(self, launch: Callable[[], tuple[Observation, Tensor | None]]) -> Step:
        """Launch a step and wait for it; an accelerated update that was refused is left to the reference."""
        self.steps += 1
        try:
            seen, numbers = launch()
            if numbers is not None:
                *record, made = numbers.tolist()  # the only synchronisation of the accelerated path
                if made:
                    return Step(*record)
            noise = self._noise_of(seen)
            return Step(*kalman.update(self.belief, noise, seen, self.config.alpha, self.config.regulate).tolist())
        except NumericalError as error:
            self.skipped += 1
            return Step(skipped=True, reason=str(error))

    def _noise_of(self, seen: Observation) -> Noise:
        """Return the noise of the observation, or else the filter's own."""
        return self.noise if seen.R is None else GivenNoise(seen.R)

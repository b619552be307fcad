"""Algorithm 1 of the paper, line for line and in its names."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kalmanclip.errors import ConfigError, NumericalError
from kalmanclip.filtering.belief import Belief, check_inflation
from kalmanclip.filtering.fast import fast_update, has_fast_update
from kalmanclip.filtering.linalg import check_finite, cholesky, log_density
from kalmanclip.filtering.noise import GivenNoise, Noise, ObservationNoise
from kalmanclip.filtering.observation import Observation

REGULATED = ("mean", "covariance", "noise")


@dataclass(frozen=True)
class FilterConfig:
    """Options of the filter.

    Attributes:
        alpha: scale of the regulation `lambda = exp(-alpha d_M)`; 0 turns it off.
        q: process noise, `Q = q I`.
        regulate: which updates lambda scales. All three is the paper's prose; Algorithm 1 leaves out the
            covariance.
    """

    alpha: float = 0.1
    q: float = 0.0
    regulate: tuple[str, ...] = REGULATED

    def __post_init__(self) -> None:
        object.__setattr__(self, "regulate", tuple(self.regulate))  # a configuration file holds a list
        if not (self.alpha >= 0 and math.isfinite(self.alpha)):
            raise ConfigError(f"alpha must be finite and not negative, not {self.alpha}")
        check_inflation(self.q)
        unknown = set(self.regulate) - set(REGULATED)
        if unknown:
            raise ConfigError(f"cannot regulate {sorted(unknown)}; choose from {', '.join(REGULATED)}")

    @property
    def regulated(self) -> tuple[bool, ...]:
        """Whether lambda scales the update of mean, covariance and noise."""
        return tuple(name in self.regulate for name in REGULATED)


@dataclass(frozen=True)
class Step:
    """What one step did. All numbers are NaN where the update was skipped.

    Attributes:
        distance: Mahalanobis distance d_M of the innovation under the previous noise.
        regulation: lambda = exp(-alpha d_M).
        innovation: length of e = y - y_hat.
        trace_R: trace of R_k.
        gain: Frobenius norm of the Kalman gain K.
        log_likelihood: `log N(e; 0, H Sigma H^T + R_{k-1})`, how well the filter foresaw this batch before it
            saw it. Its sum over a run compares settings without held-out data.
        skipped: whether the update was left out because the numbers broke down.
        reason: why, in words.
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
    """The filter: a belief, the observation noise, and `step`.

    Attributes:
        belief: `N(mu, Sigma)`, changed in place by every step.
        noise: R; not consulted for observations that bring their own.
        config: the options.
        reference: whether to do without `kalmanclip.filtering.fast`, which says the same of independent parameters.
        steps: how many steps were taken, skipped ones included.
        skipped: how many updates were left out.
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
        self.steps = 0
        self.skipped = 0

    def step(self, observe: Callable[[Tensor], Observation]) -> Step:
        """Predict, observe, update.

        Args:
            observe: called once with the predicted mean mu_{k|k-1} (n,), which it must not change; returns
                the observation linearised there.

        Returns:
            The record of the step. If the numbers break down (NaN or infinite values, a matrix that cannot be
            factored) the update is skipped: mean, covariance and noise stay as predicted.
        """
        return self.complete(lambda: self.launch(observe))

    def launch(self, observe: Callable[[Tensor], Observation]) -> tuple[Observation, Tensor | None]:
        """Predict, observe, and update by the fast path if there is one, without waiting for the device.

        Returns:
            The observation, and what `fast_update` says of it (7,); None if the reference is to do the update.
        """
        belief = self.belief
        # Prediction: mu_{k|k-1} = mu_{k-1}, Sigma_{k|k-1} = Sigma_{k-1} + q I
        belief.inflate(self.config.q)
        seen = observe(belief.mean).matching(belief.mean)
        noise = self._noise_of(seen)
        if self.reference or not has_fast_update(belief, noise, len(seen.y)):
            return seen, None
        return seen, fast_update(belief, noise, seen, self.config.alpha, self.config.regulated)

    def complete(self, launch: Callable[[], tuple[Observation, Tensor | None]]) -> Step:
        """Launch a step and wait for it; what the fast path has left undone is done by the reference, or skipped."""
        self.steps += 1
        try:
            seen, numbers = launch()
            if numbers is not None:
                *record, made = numbers.tolist()  # the only synchronisation of the fast path
                if made:
                    return Step(*record)
            return self._update(seen)
        except NumericalError as error:
            self.skipped += 1
            return Step(skipped=True, reason=str(error))

    def _update(self, seen: Observation) -> Step:
        belief, noise = self.belief, self._noise_of(seen)

        # Pre-updating
        H = seen.H
        e = check_finite(seen.innovation, "the innovation y - y_hat")
        d_M = noise.distance(e)
        lam = torch.exp(-self.config.alpha * d_M)
        lam_mu, lam_Sigma, lam_R = (lam if regulated else 1.0 for regulated in self.config.regulated)
        HS = belief.times(H)
        HSH = belief.summed(HS @ H.mT)
        R_k = noise.estimate(e, HSH, lam_R)
        log_likelihood = log_density(e, HSH + noise.previous(e))

        # Updating. S^-1 is small; multiplying by it is far faster than solving for the n columns of H Sigma.
        root_S = cholesky(HSH + R_k, "the innovation covariance H Sigma H^T + R")
        K = (torch.cholesky_inverse(root_S) @ HS).mT
        norms = torch.linalg.vector_norm(e), R_k.trace(), belief.norm(K)
        numbers = torch.stack([d_M, lam, *norms, log_likelihood]).tolist()  # one synchronisation for all
        if not all(map(math.isfinite, numbers)):
            raise NumericalError("the Kalman gain or the distance is not finite")
        # From here on the state changes. The covariance goes first, since it may still refuse.
        belief.contract(K, H, HS, R_k, lam_Sigma)
        belief.move(K @ (lam_mu * e))
        noise.accept(R_k)
        return Step(*numbers)

    def _noise_of(self, seen: Observation) -> Noise:
        """R as the observation brings it, or the filter's own."""
        return self.noise if seen.R is None else GivenNoise(seen.R)

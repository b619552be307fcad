"""A prior that needs no tuning: of several variances the one under which the data were foreseen best.

The sum over a run of the log-likelihood of each batch *before it is learned from* needs no held-out data. For a linear
Gaussian model it is exactly the logarithm of the evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from kalmanclip.errors import ConfigError, NumericalError
from kalmanclip.filtering.filter import KalmanFilter
from kalmanclip.filtering.likelihoods import ModuleLikelihood
from kalmanclip.filtering.observation import Observation

VARIANCES = tuple(10.0 ** (k / 2) for k in range(-6, 4))
"""From 0.001 to 32, two for each power of ten."""


class PriorChoice(NamedTuple):
    """The prior variance that was chosen.

    Attributes:
        variance: the best.
        kalman: the filter that began with it, after all batches.
        log_likelihoods: of the run, by variance; minus infinity where a step had to be skipped.
    """

    variance: float
    kalman: KalmanFilter
    log_likelihoods: dict[float, float]


def choose_prior(
    make: Callable[[float], KalmanFilter],
    batches: Sequence[Callable[[Tensor], Observation]],
    variances: Sequence[float] = VARIANCES,
) -> PriorChoice:
    """Filter the same batches from several priors, once each, and return the one that foresaw them best.

    Args:
        make: returns a new filter whose belief has this prior variance, and a mean of its own.
        batches: what `KalmanFilter.step` takes. Of `observe_labels` and its like, the predictive probability of the
            targets counts; of any other, `Step.log_likelihood`.
        variances: to choose from.

    Raises:
        NumericalError: there is none under which all steps could be taken.
    """
    if not batches or not variances:
        raise ConfigError("choosing a prior takes at least one batch and one variance")
    best: PriorChoice | None = None
    sums: dict[float, float] = {}
    for variance in variances:
        kalman = make(variance)
        total = math.fsum(_foreseen(kalman, batch) for batch in batches)
        sums[variance] = total if math.isfinite(total) else -math.inf
        if sums[variance] > (best.log_likelihoods[best.variance] if best else -math.inf):
            best = PriorChoice(variance, kalman, sums)
    if best is None:
        raise NumericalError(
            f"with none of the prior variances {', '.join(f'{v:g}' for v in variances)} could all steps be taken; "
            "try smaller ones, or observe_labels(..., bounded=True)"
        )
    return best


def _foreseen(kalman: KalmanFilter, batch: Callable[[Tensor], Observation]) -> float:
    """Take one step and return the log-likelihood of the batch before it."""
    if not isinstance(batch, ModuleLikelihood):
        return kalman.step(batch).log_likelihood
    before = math.nan

    def observe(mu: Tensor) -> Observation:
        nonlocal before
        before = batch.log_likelihood(kalman.belief)  # as it was predicted for this batch
        return batch(mu)

    return math.nan if kalman.step(observe).skipped else before

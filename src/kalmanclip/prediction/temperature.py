"""How much of a belief's covariance to average over: one number, fitted on held-out images.

The prior that is right for the *mode* of a belief over hundreds of directions is far too wide for its *average*: most
of the width lies where no training image says anything. So the covariance is scaled, ``Sigma -> s Sigma``, as a
tempered posterior is. The scale is the one with the largest held-out log-likelihood, under a prior around its typical
value: few images change it little, and many decide it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kalmanclip.prediction.predictive import LogitGaussian, expected_softmax

TYPICAL_SCALE = 0.03
"""The centre of the search, and the value where no image can be spared: chosen on training images outside the shots."""


def log_likelihood(logits: LogitGaussian, labels: Tensor) -> float:
    """Return the sum of the log-probabilities of the labels (N,), in nats."""
    p = expected_softmax(logits).probabilities
    return float(p.gather(1, labels.unsqueeze(1)).clamp_min(torch.finfo(p.dtype).tiny).log().sum())


def fit_covariance_scale(score: Callable[[float], float], around: float = TYPICAL_SCALE) -> float:
    """Return the factor ``s`` of the covariance.

    Args:
        score: the log-likelihood, in nats, of all held-out images for a given ``s``; it has one maximum.
        around: the mode of the prior over ``s``.
    """
    return most_probable_scale(score, around, factor=2.0, spread=1.0, reach=7)


class ScaleBelief(NamedTuple):
    """What is known of a positive number: in steps from a typical value it is ``N(mean, 1 / precision)``."""

    mean: float
    precision: float


UNDECIDED = ScaleBelief(0.0, 0.25)
"""Two steps up or down are one standard deviation."""


def most_probable_scale(
    score: Callable[[float], float], around: float, factor: float, spread: float, reach: int
) -> float:
    """Return the value ``around * factor**step`` of largest posterior probability, by hill climbing.

    Args:
        score: the log-likelihood of a value; it has one maximum.
        around: the mode of the log-normal prior.
        factor: between neighbouring values.
        spread: the prior's standard deviation, in steps.
        reach: steps either way at most.
    """
    return update_scale(score, around, factor, ScaleBelief(0.0, spread**-2), reach)[0]


def update_scale(
    score: Callable[[float], float], around: float, factor: float, prior: ScaleBelief, reach: int
) -> tuple[float, ScaleBelief]:
    """Return the most probable value as `most_probable_scale` does, and the posterior.

    That is the Gaussian whose logarithm goes through the best step and its neighbours.

    Args:
        score: the log-likelihood of a value; it has one maximum.
        around: the value of step zero.
        factor: between neighbouring values.
        prior: over the steps.
        reach: steps either way at most.
    """
    known: dict[int, float] = {}

    def posterior(step: int) -> float:
        if abs(step) > reach:
            return -math.inf
        if step not in known:
            known[step] = score(around * factor**step) - prior.precision * (step - prior.mean) ** 2 / 2
        return known[step]

    best = max(-reach, min(reach, round(prior.mean)))
    for direction in (-1, 1):
        while posterior(best + direction) > posterior(best):
            best += direction
    below, above = posterior(best - 1) - posterior(best), posterior(best + 1) - posterior(best)
    precision = -(below + above)
    if not prior.precision < precision < math.inf:  # at the end of the reach, or no maximum to speak of
        return around * factor**best, ScaleBelief(best, prior.precision)
    return around * factor**best, ScaleBelief(best + (above - below) / (2 * precision), precision)


def fuse_scales(beliefs: Sequence[ScaleBelief], prior: ScaleBelief) -> ScaleBelief:
    """Return the posterior after all that was learned apart from one prior, which counts once."""
    again = len(beliefs) - 1
    precision = sum(b.precision for b in beliefs) - again * prior.precision
    pull = sum(b.precision * b.mean for b in beliefs) - again * prior.precision * prior.mean
    return ScaleBelief(pull / precision, precision)

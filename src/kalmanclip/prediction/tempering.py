"""How much of a belief's covariance to average over: one number, fitted by how well labelled images are foreseen.

The prior that is right for the *mode* of a belief over hundreds of directions is far too wide for its *average*: most
of the width lies where no training image says anything. Tempering scales the covariance, ``Sigma -> t Sigma``. The
number is the one under which images that were not learned from are most probable, itself a little surprising if it is
unusual; so few images change it little, and many decide it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from kalmanclip.prediction.gaussian_softmax import LogitGaussian, expected_softmax

TYPICAL_TEMPER = 0.03
"""The centre of the search, and the value where no image can be spared: chosen on training images outside the shots."""

_STEP = 2.0  # of the search, a factor
_SPREAD = 1.0  # steps, one standard deviation
_REACH = 7  # steps either way at most


def log_score(logits: LogitGaussian, labels: Tensor) -> float:
    """Sum of the log-probabilities of the labels (N,), in nats."""
    p = expected_softmax(logits).probabilities
    return float(p.gather(1, labels.unsqueeze(1)).clamp_min(torch.finfo(p.dtype).tiny).log().sum())


def fit_temper(score: Callable[[float], float], around: float = TYPICAL_TEMPER) -> float:
    """The factor ``t`` of the covariance.

    Args:
        score: the log-probability, in nats, of all held-out images for a given ``t``; it has one summit.
        around: what is not surprising at all.
    """
    known: dict[int, float] = {}

    def posterior(step: int) -> float:
        if abs(step) > _REACH:
            return -math.inf
        if step not in known:
            known[step] = score(around * _STEP**step) - (step / _SPREAD) ** 2 / 2
        return known[step]

    best = 0
    for direction in (-1, 1):
        while posterior(best + direction) > posterior(best):
            best += direction
    return around * _STEP**best

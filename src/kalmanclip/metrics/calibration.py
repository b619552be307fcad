"""Calibration of probabilities: expected calibration error, reliability table, log loss, Brier score."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import sklearn.metrics
from numpy.typing import ArrayLike

BINS = 15
"""Equal-width bins of confidence, as the field reports its calibration errors."""


@dataclass(frozen=True)
class ReliabilityBin:
    """The images whose confidence lies in (lower, upper].

    Attributes:
        lower: exclusive, except that the first bin also holds a confidence of 0.
        upper: inclusive.
        images: how many there are.
        confidence: their mean; None without images.
        accuracy: the share of them that was recognised; None without images.
    """

    lower: float
    upper: float
    images: int
    confidence: float | None
    accuracy: float | None


def reliability_table(probabilities: ArrayLike, labels: ArrayLike, bins: int = BINS) -> list[ReliabilityBin]:
    """Return confidence against accuracy, one row per equal-width bin of the largest probability.

    Args:
        probabilities: (N, C).
        labels: (N,), in 0..C-1.
        bins: how many.
    """
    p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    confidence, correct = p.max(axis=1), p.argmax(axis=1) == y
    edges = np.linspace(0.0, 1.0, bins + 1)
    # rounding may carry a probability slightly past 1; it still belongs to the last bin
    place = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
    rows = []
    for b, (lower, upper) in enumerate(pairwise(map(float, edges))):
        inside = place == b
        means = (float(confidence[inside].mean()), float(correct[inside].mean())) if inside.any() else (None, None)
        rows.append(ReliabilityBin(lower, upper, int(inside.sum()), *means))
    return rows


def expected_calibration_error(probabilities: ArrayLike, labels: ArrayLike, bins: int = BINS) -> float:
    """Return the ECE, the mean distance of accuracy from confidence over the bins, weighted by their images; in 0..1.

    Args:
        probabilities: (N, C), N at least 1.
        labels: (N,), in 0..C-1.
        bins: equal-width; say how many when you print the number.
    """
    rows = reliability_table(probabilities, labels, bins)
    gaps = [r.images * abs(r.accuracy - r.confidence) for r in rows if r.accuracy is not None is not r.confidence]
    return float(sum(gaps) / sum(r.images for r in rows))


def negative_log_likelihood(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Return the NLL, the mean of ``-log p`` of the true classes, in nats.

    A probability of exactly 0 counts as the smallest step of its float type, so that one image cannot make it infinite.

    Args:
        probabilities: (N, C), rows that sum to 1.
        labels: (N,), in 0..C-1.
    """
    p = np.asarray(probabilities)
    return float(sklearn.metrics.log_loss(labels, p, labels=np.arange(p.shape[1])))


def brier_score(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Return the mean squared distance between ``p`` and the one-hot truth, summed over classes; in 0..2.

    Args:
        probabilities: (N, C).
        labels: (N,), in 0..C-1.
    """
    p = np.array(probabilities, dtype=np.float64)
    p[np.arange(len(p)), np.asarray(labels)] -= 1.0
    return float(np.square(p).sum(axis=1).mean())

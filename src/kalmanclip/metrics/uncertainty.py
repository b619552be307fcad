"""What a confidence is good for: failure prediction, selective prediction, out-of-distribution detection.

In every function a *larger* score means "more certain", or "more like the known classes". In detection, images of the
known classes ('inside') are the positives, all others ('outside') the negatives.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import sklearn.metrics
from numpy.typing import ArrayLike


def failure_auroc(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Return the probability that a right answer is more confident than a wrong one; ties count half.

    Args:
        confidence: (N,), any score that grows with certainty.
        correct: (N,), whether each answer was right; nan unless there are right and wrong ones.
    """
    right = np.asarray(correct, dtype=bool)
    if right.all() or not right.any():
        return float("nan")
    return float(sklearn.metrics.roc_auc_score(right, np.asarray(confidence, dtype=np.float64)))


class RiskCoverage(NamedTuple):
    """The risk-coverage curve.

    Attributes:
        coverage: (N,), the shares 1/N, 2/N, ..., 1 of images that are answered, the most confident first.
        risk: (N,), the share of wrong answers among them.
    """

    coverage: np.ndarray
    risk: np.ndarray


def risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> RiskCoverage:
    """Return the risk at every coverage; equally confident images are answered in random order, in expectation.

    Args:
        confidence: (N,).
        correct: (N,).
    """
    c, wrong = np.asarray(confidence, dtype=np.float64), 1.0 - np.asarray(correct, dtype=np.float64)
    # each member of a tie carries the tie's mean error: the order within it cannot matter
    levels, place, counts = np.unique(-c, return_inverse=True, return_counts=True)
    errors = np.bincount(place, weights=wrong, minlength=len(levels)) / counts
    answered = np.arange(1, len(c) + 1)
    return RiskCoverage(answered / len(c), np.cumsum(np.repeat(errors, counts)) / answered)


def area_under_risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Return the AURC, the mean risk over the coverages 1/N, ..., 1; 0 is perfect, a random order gives the error rate.

    Args:
        confidence: (N,), N at least 1.
        correct: (N,).
    """
    return float(risk_coverage(confidence, correct).risk.mean())


def standardized_margin(mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Return how far the first choice is ahead of the second (N,), in standard deviations of their difference.

    The standard deviation of one logit says little by itself: what decides is the distance between the two largest.
    They are taken as independent.

    Args:
        mean: of the logits (N, C), C at least 2.
        std: of the logits (N, C), positive.
    """
    order = np.argsort(-mean, axis=1, kind="stable")[:, :2]
    first, second = np.take_along_axis(mean, order, axis=1).T
    spread = np.hypot(*np.take_along_axis(std, order, axis=1).T)
    return np.asarray((first - second) / np.maximum(spread, np.finfo(spread.dtype).tiny))


def maximum_softmax(logits: ArrayLike, temperature: float = 1.0) -> np.ndarray:
    """Return the reference score (N,): the largest softmax probability of ``logits / temperature`` (N, C).

    Of cosine similarities with temperature 1 it is the published MCM (maximum concept matching); of a model's logits
    it is its confidence.
    """
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    return np.asarray(1.0 / np.exp(scaled - scaled.max(axis=1, keepdims=True)).sum(axis=1))


def detection_auroc(inside: ArrayLike, outside: ArrayLike) -> float:
    """Return the probability that an image of the known classes (N,) scores above another one (M,); ties count half."""
    return failure_auroc(*_scores_and_truth(inside, outside))


def fpr_at_tpr(inside: ArrayLike, outside: ArrayLike, tpr: float = 0.95) -> float:
    """Return FPR95, the share of outside (M,) above the strictest threshold that accepts 95 % of inside (N,).

    Accepted is what scores at least the threshold.
    """
    # all thresholds: sklearn would drop those on straight pieces of the curve
    scores, truth = _scores_and_truth(inside, outside)
    false, true, _ = sklearn.metrics.roc_curve(truth, scores, drop_intermediate=False)
    # thresholds fall, so recall rises: the first that reaches it is the strictest; rounding must not skip it
    return float(false[np.argmax(true >= tpr - 1e-12)])


def _scores_and_truth(inside: ArrayLike, outside: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return all scores and which are inside, both (N + M,)."""
    a, b = np.asarray(inside, dtype=np.float64), np.asarray(outside, dtype=np.float64)
    return np.concatenate([a, b]), np.arange(len(a) + len(b)) < len(a)

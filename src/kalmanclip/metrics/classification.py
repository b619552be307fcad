"""Accuracy, the confusion matrix and what it says of each class, and the summary of all metrics of one test."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import sklearn.metrics
from numpy.typing import ArrayLike

from kalmanclip.metrics.calibration import brier_score, expected_calibration_error, negative_log_likelihood
from kalmanclip.metrics.uncertainty import failure_auroc


def accuracy(labels: ArrayLike, predicted: ArrayLike) -> float:
    """Return the share of N predictions (N,) that equal their label (N,)."""
    return float(sklearn.metrics.accuracy_score(labels, predicted))


def top_k_accuracy(labels: ArrayLike, scores: ArrayLike, k: int = 5) -> float:
    """Return the share of N images whose label is among its k largest scores; of equal scores the earlier class wins.

    (scikit-learn's own does not take two columns for two classes.)

    Args:
        labels: (N,), in 0..C-1.
        scores: (N, C), logits or probabilities.
        k: at C and above everything is right.
    """
    best = np.argsort(-np.asarray(scores), axis=1, kind="stable")[:, :k]
    return float((best == np.asarray(labels)[:, None]).any(axis=1).mean())


def confusion_matrix(labels: ArrayLike, predicted: ArrayLike, classes: int) -> np.ndarray:
    """Return counts (C, C): entry (i, j) is how many images of class i were taken for class j."""
    return np.asarray(sklearn.metrics.confusion_matrix(labels, predicted, labels=range(classes)))


@dataclass(frozen=True)
class ClassResult:
    """How one class fared.

    Attributes:
        images: how many there were.
        recall: the share that was recognised; None without images.
        precision: of the images that were taken for this class, the share that are of it; None if none was.
        f1: the harmonic mean of both; None if neither is defined.
        confused_with: the class that its images were most often taken for by mistake; None without mistakes.
        times: how often that happened.
    """

    images: int
    recall: float | None
    precision: float | None
    f1: float | None
    confused_with: int | None
    times: int


def per_class(matrix: np.ndarray) -> list[ClassResult]:
    """Return one result per class, in order, from a confusion matrix (C, C)."""
    results, taken = [], matrix.sum(axis=0)
    for label, row in enumerate(matrix):
        images, answers, right, mistakes = int(row.sum()), int(taken[label]), int(row[label]), row.copy()
        mistakes[label] = 0
        worst = int(mistakes.argmax())
        times = int(mistakes[worst])
        recall, precision = right / images if images else None, right / answers if answers else None
        f1 = 2 * right / (images + answers) if images + answers else None
        results.append(ClassResult(images, recall, precision, f1, worst if times else None, times))
    return results


def summarise(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float | None]:
    """Return all metrics of probabilities (N, C) and labels (N,), N at least 1; None for what is not defined on them.

    Commands and comparisons both use it, so that they cannot measure differently.

    The confidence of an answer, for ``failure_auroc``, is its probability. ``top5_accuracy`` needs more than 5 classes.
    """
    predicted = probabilities.argmax(axis=1)
    numbers = {
        "accuracy": accuracy(labels, predicted),
        "top5_accuracy": top_k_accuracy(labels, probabilities, 5) if probabilities.shape[1] > 5 else math.nan,
        "nll": negative_log_likelihood(probabilities, labels),
        "ece": expected_calibration_error(probabilities, labels),
        "brier": brier_score(probabilities, labels),
        "failure_auroc": failure_auroc(probabilities.max(axis=1), predicted == labels),
    }
    return {name: float(value) if math.isfinite(value) else None for name, value in numbers.items()}

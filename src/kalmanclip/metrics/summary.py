"""All numbers of one test at once, so that commands and comparisons cannot measure differently."""

from __future__ import annotations

import math

import numpy as np

from kalmanclip.metrics.calibration import brier_score, expected_calibration_error, negative_log_likelihood
from kalmanclip.metrics.classification import accuracy, top_k_accuracy
from kalmanclip.metrics.selective import failure_auroc


def summarise(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float | None]:
    """What probabilities (N, C) and labels (N,) say, N at least 1; None for what is not defined on them.

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

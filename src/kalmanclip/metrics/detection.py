"""Out-of-distribution detection: the reference score, AUROC, false positives at 95 % recall.

In every function a *larger* score means "more like the known classes"; images of the known classes ('inside') are the
positives, all others ('outside') the negatives.
"""

from __future__ import annotations

import numpy as np
import sklearn.metrics
from numpy.typing import ArrayLike


def maximum_softmax(logits: ArrayLike, temperature: float = 1.0) -> np.ndarray:
    """Return the reference score (N,): the largest softmax probability of ``logits / temperature`` (N, C).

    Of cosine similarities with temperature 1 it is the published MCM (maximum concept matching); of a model's logits
    it is its confidence.
    """
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    return np.asarray(1.0 / np.exp(scaled - scaled.max(axis=1, keepdims=True)).sum(axis=1))


def detection_auroc(inside: ArrayLike, outside: ArrayLike) -> float:
    """Return the probability that an image of the known classes (N,) scores above another one (M,); ties count half."""
    return float(sklearn.metrics.roc_auc_score(*_joined(inside, outside)))


def fpr_at_tpr(inside: ArrayLike, outside: ArrayLike, tpr: float = 0.95) -> float:
    """Return FPR95, the share of outside (M,) above the strictest threshold that accepts 95 % of inside (N,).

    Accepted is what scores at least the threshold.
    """
    # all thresholds: sklearn would drop those on straight pieces of the curve
    false, true, _ = sklearn.metrics.roc_curve(*_joined(inside, outside), drop_intermediate=False)
    # thresholds fall, so recall rises: the first that reaches it is the strictest; rounding must not skip it
    return float(false[np.argmax(true >= tpr - 1e-12)])


def _joined(inside: ArrayLike, outside: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return the truth (1 inside, 0 outside) and scores, both (N + M,)."""
    a, b = np.asarray(inside, dtype=np.float64), np.asarray(outside, dtype=np.float64)
    return np.concatenate([np.ones(len(a)), np.zeros(len(b))]), np.concatenate([a, b])

"""How sure a choice is, given what is known of the logits."""

from __future__ import annotations

import numpy as np


def lead(mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """How far the first choice is ahead of the second (N,), in standard deviations of their difference.

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

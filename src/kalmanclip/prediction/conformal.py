"""Sets of classes that hold the true one with a chosen probability: conformal prediction.

Images that were not learned from show how badly the classifier may miss: each gets the *nonconformity* of its true
class. A set holds all classes whose nonconformity is at most the ``ceil((n + 1) coverage)``-th smallest of those n. If
the n images and the new one are exchangeable, the set holds the true class with at least that probability, whatever the
classifier is worth: a bad one gets large sets. The probability is over both, the n images and the new one, and over all
classes together.

That is split conformal prediction, with images that were set aside. With CV+ no image is spent: the n images are the
training images, which were held out in parts, and the classifiers that had not seen a part are asked about the new
image, too. A class is in the set unless at least ``(n + 1) coverage`` of the images fit their classes better than the
new image fits this one, both by the classifier that had not seen the former. That covers at least
``1 - 2 (1 - coverage)``, less a term that vanishes for large parts, and in practice about ``coverage`` (Barber et al.
2021, Romano et al. 2020); it is not proven for classifiers with options that were chosen on the same images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from kalmanclip.errors import ConfigError

KINDS = ("lac", "aps", "raps")
"""- ``lac``: one minus the probability of the class. The smallest sets on average.
- ``aps``: the probability of everything at least as probable as the class. Sets grow where the classifier is unsure.
- ``raps``: the same, plus `PENALTY` for each rank beyond `FREE_RANKS`: no long tails of improbable classes.
"""

PENALTY = 0.01
FREE_RANKS = 5


def nonconformity(probabilities: ArrayLike, kind: str = "lac", noise: ArrayLike | None = None) -> np.ndarray:
    """Return how badly each class fits each image, (N, C).

    Args:
        probabilities: (N, C), rows that sum to one.
        kind: one of `KINDS`.
        noise: (N,), uniform draws in 0..1. With them 'aps' and 'raps' count only that share of the class's own
            probability, and reach the coverage exactly instead of exceeding it; calibration and prediction both need
            them then. None: all of it. 'lac' has no use for them.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    if kind == "lac":
        return 1.0 - p
    if kind not in KINDS:
        raise ConfigError(f"The nonconformity must be one of {', '.join(KINDS)}, not {kind!r}.")
    order = np.argsort(-p, axis=1, kind="stable")
    ordered = np.take_along_axis(p, order, axis=1)
    above = np.cumsum(ordered, axis=1)
    if noise is not None:
        above = above - (1.0 - np.asarray(noise, dtype=np.float64)[:, None]) * ordered
    if kind == "raps":
        above = above + PENALTY * np.maximum(np.arange(1, p.shape[1] + 1) - FREE_RANKS, 0)
    found = np.empty_like(above)
    np.put_along_axis(found, order, above, axis=1)
    return found


def images_needed(coverage: float) -> int:
    """Return the smallest number of calibration images that a coverage can be promised with."""
    _check(coverage)
    n = max(1, math.floor(coverage / (1 - coverage)))
    while _rank(n, coverage) > n:
        n += 1
    return n


def quantile(calibration: ArrayLike, coverage: float) -> float:
    """Return the score up to which classes are in the set: the ``ceil((n + 1) coverage)``-th smallest of n.

    The scores (n,) are those of the true classes of calibration images. If they are too few for this coverage, it is a
    `ConfigError`.
    """
    _check(coverage)
    scores = np.sort(np.asarray(calibration, dtype=np.float64))
    rank = _rank(len(scores), coverage)
    if rank > len(scores):
        raise ConfigError(
            f"A coverage of {coverage:g} needs at least {images_needed(coverage)} calibration images; there are "
            f"{len(scores)}. Hold out more, or ask for less."
        )
    return float(scores[rank - 1])


@dataclass(frozen=True, eq=False)
class Calibration:
    """The nonconformity of calibration images.

    Attributes:
        scores: (n,), of their true classes.
        labels: (n,), those classes.
        kind: one of `KINDS`.
        folds: (n,), numbers 0..K-1 of the classifiers that predicted them, where these were training images (CV+).
            None: images that were set aside, predicted by the classifier itself.
    """

    scores: np.ndarray
    labels: np.ndarray
    kind: str = "lac"
    folds: np.ndarray | None = None

    @classmethod
    def of(
        cls, probabilities: ArrayLike, labels: ArrayLike, kind: str = "lac", folds: ArrayLike | None = None
    ) -> Calibration:
        """Calibrate on probabilities (n, C) and labels (n,) of images that were not learned from; see `folds`."""
        y = np.asarray(labels, dtype=np.int64)
        return cls(
            nonconformity(probabilities, kind)[np.arange(len(y)), y],
            y,
            kind,
            None if folds is None else np.asarray(folds),
        )

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def in_turn(self) -> bool:
        """Return whether these were training images, each held out once."""
        return self.folds is not None

    def sets(
        self,
        probabilities: ArrayLike,
        coverage: float,
        by_class: bool = False,
        by_fold: ArrayLike | None = None,
    ) -> np.ndarray:
        """Return which classes are in the set of each image, (N, C) of truth values.

        The most probable class always is: an empty set helps nobody, and a larger one covers no less.

        Args:
            probabilities: (N, C).
            coverage: the probability with which a set holds the true class, between 0 and 1.
            by_class: promise it for each class by itself. Needs as many calibration images *of every class* as
                the promise for all together needs in total.
            by_fold: (K, N, C), by the classifiers of the folds, where there are `folds`.
        """
        p = np.asarray(probabilities, dtype=np.float64)
        asked = p[None] if self.folds is None else np.asarray(by_fold, dtype=np.float64)
        new = np.stack([nonconformity(own, self.kind) for own in asked])
        if by_class:
            columns = [self._inside(new[:, :, c], coverage, self.labels == c) for c in range(p.shape[1])]
            found = np.stack(columns, axis=1)
        else:
            found = self._inside(new, coverage, np.ones(len(self), dtype=bool))
        found[np.arange(len(p)), p.argmax(axis=1)] = True
        return np.asarray(found)

    def check(self, coverage: float) -> None:
        """Raise `ConfigError` if there are too few images for this coverage."""
        quantile(self.scores, coverage)

    def _inside(self, new: np.ndarray, coverage: float, counted: np.ndarray) -> np.ndarray:
        """Return where nonconformities (K, ...) by K classifiers are in the set, going by the images counted (n,)."""
        scores, folds = self.scores[counted], np.zeros(len(self), dtype=int) if self.folds is None else self.folds
        quantile(scores, coverage)  # are they enough?
        better = np.zeros(new.shape[1:], dtype=int)
        for k, own in enumerate(new):
            better += np.searchsorted(np.sort(scores[folds[counted] == k]), own, side="left")
        return np.asarray(better < _rank(len(scores), coverage))


def _rank(n: int, coverage: float) -> int:
    return math.ceil((n + 1) * coverage - 1e-9)  # 0.9 * 10 is no reason to ask for the tenth


def _check(coverage: float) -> None:
    if not 0 < coverage < 1:
        raise ConfigError(f"The coverage must lie between 0 and 1, not {coverage}.")

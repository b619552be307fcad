"""How accurate a classifier can be expected to be, from training images that were held out in turn."""

from __future__ import annotations

import math
from typing import NamedTuple

import scipy.special  # type: ignore[import-untyped, unused-ignore]

from kalmanclip.errors import ConfigError

LEVEL = 0.95
"""Of the interval, unless another is asked for."""


class ExpectedAccuracy(NamedTuple):
    """How many images were right when they were predicted from others.

    Attributes:
        right: of them.
        images: that were held out.
    """

    right: int
    images: int

    @property
    def accuracy(self) -> float:
        """Return the share that was right."""
        return self.right / self.images

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return Wilson's interval for the probability that one more such image is right.

        These are the probabilities that a normal test at this level does not refuse. Unlike the usual interval it stays
        within 0..1, and says something when all were right.
        """
        if not 0 < level < 1:
            raise ConfigError(f"The level of an interval must lie between 0 and 1, not {level}.")
        z, n, p = float(scipy.special.ndtri((1 + level) / 2)), self.images, self.accuracy
        middle = (p + z**2 / (2 * n)) / (1 + z**2 / n)
        half = z / (1 + z**2 / n) * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
        return max(0.0, middle - half), min(1.0, middle + half)

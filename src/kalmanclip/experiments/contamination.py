"""Training images that are partly spoilt: how much a method suffers from corrupted examples."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from kalmanclip.data import LabelledImages
from kalmanclip.data.corruptions import SEVERITIES, contaminate
from kalmanclip.errors import ConfigError


@dataclass(frozen=True)
class Contamination:
    """Which training images are replaced by corrupted ones; see `kalmanclip.data.corruptions.contaminate`.

    Attributes:
        share: of the training images, from 0 to 1. Validation and test images stay as they are.
        severities: strengths to choose from, 1 to 5.
        seed: of the choice; None for the run's.
    """

    share: float = 0.0
    severities: tuple[int, ...] = SEVERITIES
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ConfigError(f"The share of contamination is {self.share}; it must lie between 0 and 1.")
        if not self.severities or any(severity not in SEVERITIES for severity in self.severities):
            raise ConfigError(f"Severities are numbers from 1 (weak) to 5 (strong), not {self.severities}.")
        object.__setattr__(self, "share", float(self.share))  # 1 and 1.0 are the same run

    def seeded(self, seed: int) -> Contamination:
        """The same with a seed; where there is nothing to choose, options that change nothing are forgotten."""
        if not self.share:
            return CLEAN
        return self if self.seed is not None else replace(self, seed=seed)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; nothing at all without contamination."""
        return asdict(self) | {"severities": list(self.severities)} if self.share else {}

    def apply(self, images: LabelledImages) -> LabelledImages:
        """The images, some of them corrupted."""
        if not self.share:
            return images
        return contaminate(images, self.share, self.seed or 0, severities=self.severities)


CLEAN = Contamination()
"""All images as they are."""

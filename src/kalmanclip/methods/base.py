"""What a few-shot method is: two verbs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, Protocol

from torch import Tensor

from kalmanclip.data import FewShotTask
from kalmanclip.data.images import ImageSource

Progress = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)`` while something takes its time."""


Needs = Literal["features", "towers"]
"""What a method asks of the backbone: frozen features only, so that one cache serves many, or whole towers."""


def silent(stage: str, done: int, total: int) -> None:
    """The progress callback that says nothing."""


class Method(Protocol):
    """Learns from a `FewShotTask`, scores images. Knows neither where the task came from nor who reads the scores."""

    @property
    def needs(self) -> Needs:
        """What it asks of the backbone."""

    def fit(self, task: FewShotTask, progress: Progress = silent) -> object:
        """Learn from ``task.train`` (and, where the method says so, choose options on ``task.validation``)."""

    def logits(self, images: Iterable[ImageSource], progress: Progress = silent) -> Tensor:
        """Scores (N, C) of N images, whose softmax are the class probabilities."""

"""What a few-shot method is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from kalmanclip.data import FewShotTask, ImageSource, LabelledImages
from kalmanclip.encoders.features import Progress, silent
from kalmanclip.errors import ConfigError, DataError
from kalmanclip.plugins import Plugins

Needs = Literal["features", "towers"]
"""What a method asks of the backbone: frozen features only, so that one cache serves many, or whole towers."""


class Method(Protocol):
    """Learns from a `FewShotTask`, scores images. Knows neither where the task came from nor who reads the scores.

    Its constructor takes the backbone and a ``Config``, None for the defaults.

    Attributes:
        Config: the dataclass of its options.
    """

    Config: ClassVar[type[Any]]

    @property
    def needs(self) -> Needs:
        """What it asks of the backbone."""

    def fit(self, task: FewShotTask, progress: Progress = silent) -> object:
        """Learn from ``task.train`` (and, where the method says so, choose options on ``task.validation``)."""

    def logits(self, images: Iterable[ImageSource], progress: Progress = silent) -> Tensor:
        """Return scores (N, C) of N images, whose softmax are the class probabilities."""


def _wrong(thing: Any) -> str:
    """Return why something is no method, or nothing."""
    if not isinstance(thing, type) or not all(callable(getattr(thing, name, None)) for name in ("fit", "logits")):
        return "it is not a class with fit(task, progress) and logits(images, progress)"
    if not dataclasses.is_dataclass(getattr(thing, "Config", None)):
        return "its Config is not the dataclass of its options"
    return ""


PLUGINS = Plugins("kalmanclip.methods", "method", _wrong)
"""Methods of other packages."""


def labels_of(images: LabelledImages, device: torch.device) -> Tensor:
    """Return labels (N,) on the device; having none is a `DataError`."""
    if not len(images):
        raise DataError("There are no images to learn from.")
    return torch.tensor(images.labels, device=device)


def check_positive(**options: float | tuple[float, ...] | list[float] | None) -> None:
    """Raise `ConfigError` for options, or members of sequences, that are not positive and finite; None will do."""
    for name, value in options.items():
        if isinstance(value, (tuple, list)):
            check_positive(**{f"{name}[{i}]": member for i, member in enumerate(value)})
        elif value is not None and not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{name} must be positive and finite, not {value}.")


def check_scale(**deviations: float | None) -> None:
    """Raise `ConfigError` for standard deviations of similarities that are not positive, or whose squares overflow."""
    check_positive(**deviations)
    for name, value in deviations.items():
        if value is not None and not 1e-15 < value < 1e15:
            raise ConfigError(
                f"{name} {value:g} cannot be computed with. Similarities lie between -1 and 1: give something like 0.1."
            )

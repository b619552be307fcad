"""Base to new: learn from the first half of the classes, then measure either half among its own classes.

The protocol of CoCoOp (Zhou et al., 2022). What a method learned of single classes says nothing about new ones: there
it is the text that counts, as the method reads it now. The harmonic mean of both accuracies is the usual summary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from kalmanclip.data import FewShotTask, LabelledImages
from kalmanclip.errors import DataError
from kalmanclip.methods import Method, Progress

NEW, HARMONIC = "new classes", "harmonic mean"
"""What the record of a run calls them, beside its metrics, which are those of the base classes."""

MARK = "-base"
"""What is added to the name of a data set whose base classes are learned."""

Measure = Callable[[torch.Tensor, Iterable[int]], dict[str, Any]]


def halves(classes: int) -> tuple[range, range]:
    """Return the numbers of the base classes and of the new ones; the first half is the larger one."""
    if classes < 4:
        raise DataError(f"Base to new takes at least four classes, two to learn and two new ones; there are {classes}.")
    middle = -(-classes // 2)
    return range(middle), range(middle, classes)


def of_classes(images: LabelledImages, classes: range) -> LabelledImages:
    """Return the images of some classes, among these alone."""
    kept = [i for i, label in enumerate(images.labels) if label in classes]
    labels = [images.labels[i] - classes.start for i in kept]
    names = images.class_names[classes.start : classes.stop]
    return LabelledImages([images.sources[i] for i in kept], labels, names)


def base_task(task: FewShotTask) -> FewShotTask:
    """Return a task about its base classes alone: their images are those of the whole draw."""
    base, _ = halves(len(task.class_names))
    validation, test = (None if part is None else of_classes(part, base) for part in (task.validation, task.test))
    return replace(task, train=of_classes(task.train, base), validation=validation, test=test)


def measure_new(
    method: Method, images: LabelledImages, templates: Sequence[str], base: float, measure: Measure, progress: Progress
) -> dict[str, dict[str, Any]]:
    """Return the metrics of the new classes, and the harmonic mean of both accuracies; nothing for other methods.

    Args:
        method: learned from the base classes. It knows other classes if it has `set_classes`.
        images: of the new classes.
        templates: of the prompts.
        base: the accuracy on the base classes.
        measure: from logits (N, C) and labels to metrics.
        progress: told about reading.
    """
    rename = getattr(method, "set_classes", None)
    if rename is None:
        return {}
    rename(images.class_names, templates)
    new = measure(method.logits(images.sources, progress), images.labels)
    both = base + new["accuracy"]
    return {NEW: new, HARMONIC: {"accuracy": 2 * base * new["accuracy"] / both if both else 0.0}}

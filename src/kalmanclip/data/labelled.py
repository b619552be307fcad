"""Images with labels: the one form in which data travels through the package."""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kalmanclip.data.images import ImageSource
from kalmanclip.data.names import ClassIndex, check_distinct, class_name_from_folder, name_key
from kalmanclip.data.walk import natural_key
from kalmanclip.errors import DataError


@dataclass(frozen=True, eq=False)  # comparing arrays element by element has no single answer
class LabelledImages:
    """N images, not decoded, with the label of each and the names of all C classes.

    Not every class needs to have images, and two classes may have the same name (ImageNet has two "missile").

    Attributes:
        sources: N paths, PIL images or arrays: whatever `load_image` takes.
        labels: N integers in 0..C-1.
        class_names: C names; `class_names[labels[i]]` is what image i shows.
    """

    sources: list[ImageSource]
    labels: list[int]
    class_names: list[str]

    def __post_init__(self) -> None:
        # Own lists: nobody else's changes reach a frozen object.
        for field in ("sources", "labels", "class_names"):
            object.__setattr__(self, field, list(getattr(self, field)))
        if len(self.sources) != len(self.labels):
            raise DataError(f"{len(self.sources)} images but {len(self.labels)} labels; give one label per image")
        if not self.class_names:
            raise DataError("there are no class names; give at least one")
        for name in self.class_names:
            if not isinstance(name, str) or not name.strip():
                raise DataError(f"{name!r} is not a class name; use non-empty strings")
        for position, label in enumerate(self.labels):
            self.labels[position] = _checked_label(label, position, len(self.class_names))

    def __len__(self) -> int:
        return len(self.sources)

    def counts(self) -> list[int]:
        """Return the number of images of each class, C integers in the order of `class_names`."""
        counts = [0] * len(self.class_names)
        for label in self.labels:
            counts[label] += 1
        return counts

    def subset(self, indices: Iterable[int]) -> "LabelledImages":
        """Return the images at `indices`, in that order (repeats allowed), with the same class names."""
        chosen = [operator.index(i) for i in indices]
        for i in chosen:
            if not 0 <= i < len(self):
                raise DataError(f"index {i} is outside 0..{len(self) - 1}")
        return LabelledImages([self.sources[i] for i in chosen], [self.labels[i] for i in chosen], self.class_names)


def from_lists(
    sources: Iterable[ImageSource],
    labels: Iterable[Any],
    class_names: Sequence[str] | None = None,
    known: Sequence[str] = (),
) -> LabelledImages:
    """Return labelled images from a list of images and a list of labels of the same length N.

    Args:
        sources: N of what `load_image` takes (an array (N, H, W, ...) is a list of N images).
        labels: N strings, or N integers (numpy's and torch's too).
        class_names: what the labels mean. For strings it may be left out: the classes are then the different
            strings, cleaned like folder names (`class_name_from_folder`) and in the same order as
            `read_folder` would put them. With it, strings are looked up regardless of case, underscores and
            spaces. For integers it is required: prompts are made of names, and "a photo of a 7." describes
            nothing unless the classes are digits.
        known: classes to which the labels may add, where `class_names` is not given: strings that are none of
            these become new classes behind them, integers count in these.

    Raises:
        DataError: lengths differ; names are missing, unknown or double; there is nothing to tell apart.
    """
    source_list, label_list = list(sources), list(labels)
    if len(source_list) != len(label_list):
        raise DataError(f"{len(source_list)} images but {len(label_list)} labels; give one label per image")
    strings = [isinstance(label, str) for label in label_list]
    if any(strings) and not all(strings):
        raise DataError("labels mix strings with other types; use one kind for all images")
    if class_names is None:
        class_names = _names_from_labels(label_list, known)
    if any(strings):
        index = ClassIndex(class_names)
        label_list = [index.label(label, "label") for label in label_list]
    return LabelledImages(source_list, label_list, list(class_names))


def require_two_classes(class_names: Sequence[str], where: str, advice: str) -> None:
    """Raise `DataError` unless there are at least two classes to tell apart."""
    if len(class_names) < 2:
        raise DataError(f"{where} has only one class, {class_names[0]!r}; at least two are needed. {advice}")


def extend_classes(known: Sequence[str], spellings: Iterable[str]) -> list[str]:
    """Return the `known` class names, then those that `spellings` add to them, cleaned and in natural order."""
    have = {name_key(name) for name in known}
    return [*known, *sorted((class_name_from_folder(s) for s in spellings if name_key(s) not in have), key=natural_key)]


def _names_from_labels(labels: list[Any], known: Sequence[str]) -> list[str]:
    """Class names from string labels, or the known ones for integers."""
    if not labels:
        raise DataError("there are no images; give at least one image of each of two classes")
    if not isinstance(labels[0], str):
        if known:
            return list(known)
        raise DataError(
            "labels are numbers without names, and the prompts need names: pass class_names, "
            "for example ['cat', 'dog'] for the labels 0 and 1, or [str(i) for i in range(10)] for digits"
        )
    spellings = sorted(set(labels))
    check_distinct(spellings, "label")
    names = extend_classes(known, spellings)
    require_two_classes(names, "the list of labels", "Pass class_names if the others just do not occur here.")
    return names


def _checked_label(label: Any, position: int, classes: int) -> int:
    """A label as a plain int in 0..classes-1."""
    try:
        value = operator.index(label)
    except TypeError:
        raise DataError(f"label {label!r} of image {position} is not an integer; use 0..{classes - 1}") from None
    if not 0 <= value < classes:
        raise DataError(
            f"label {value} of image {position} is outside 0..{classes - 1}: there are {classes} class names"
        )
    return value

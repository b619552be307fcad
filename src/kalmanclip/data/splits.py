"""The splits of a data set (train, val, test) as labelled images, and how a missing one is cut out of the others."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from kalmanclip.data.images import ImageSource
from kalmanclip.data.labelled import LabelledImages
from kalmanclip.data.prompts import DEFAULT_TEMPLATES
from kalmanclip.data.shots import ShotLists
from kalmanclip.errors import DataError

Item: TypeAlias = tuple[ImageSource, int]
"""An image and its label."""

SPLITS = ("train", "val", "test")

SPLIT_FILE = "split file"
"""The splits came from a `split_zhou_*.json`."""
PUBLISHED = "published"
"""The splits are the data set's own; a val split that it lacks may be cut out of train, see `train_val`."""
OURS = "kalmanclip"
"""The data set has no splits (here): see `train_val_test`."""


@dataclass(frozen=True, eq=False)
class Splits:
    """A data set that was read: its splits, all with the same class names.

    Attributes:
        train: the images to learn from; None for sets that only measure (distribution shifts).
        val: the images to choose on; None where nobody published such a split.
        test: the images to measure on.
        origin: where the splits came from: `SPLIT_FILE`, `PUBLISHED` or `OURS`.
        templates: the data set's prompt templates.
        imagenet_labels: for relatives of ImageNet, the label in 0..999 of each class, so that a classifier of all
            1000 classes can be measured on a set that has 200 of them.
        shot_lists: which images of train are the few shots of each seed, where somebody published that.
    """

    train: LabelledImages | None = None
    val: LabelledImages | None = None
    test: LabelledImages | None = None
    origin: str = PUBLISHED
    templates: tuple[str, ...] = DEFAULT_TEMPLATES
    imagenet_labels: tuple[int, ...] | None = None
    shot_lists: ShotLists | None = None

    def __post_init__(self) -> None:
        present = [images for _, images in self.items()]
        if not present:
            raise DataError("none of train, val and test has images; check that the data set is complete")
        if any(images.class_names != present[0].class_names for images in present):
            raise DataError("the splits have different class names; read all of them with the same class_names")

    def items(self) -> list[tuple[str, LabelledImages]]:
        """Return the splits there are, with their names, in the order train, val, test."""
        return [(split, images) for split in SPLITS if (images := getattr(self, split)) is not None]

    @property
    def class_names(self) -> list[str]:
        """The C class names, the same in every split."""
        return self.items()[0][1].class_names


def make_splits(
    class_names: Sequence[str],
    train: Sequence[Item] | None = None,
    val: Sequence[Item] | None = None,
    test: Sequence[Item] | None = None,
    origin: str = PUBLISHED,
    imagenet_labels: Iterable[int] | None = None,
) -> Splits:
    """Return `Splits` of lists of images with labels; None stays None."""

    def images(items: Sequence[Item] | None) -> LabelledImages | None:
        if items is None:
            return None
        return LabelledImages([source for source, _ in items], [label for _, label in items], list(class_names))

    related = None if imagenet_labels is None else tuple(imagenet_labels)
    return Splits(images(train), images(val), images(test), origin, imagenet_labels=related)


def train_val(items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """Return train and val: a fifth of every class, rounded, is taken out for validation, as CoOp does.

    Which images these are is decided by the SHA-256 of their file names, so it is the same everywhere, for ever,
    and does not depend on the other files.
    """
    train, val, _ = _cut(items, 0.8, 0.2)
    return train, val


def train_val_test(items: Sequence[Item]) -> tuple[list[Item], list[Item], list[Item]]:
    """Return train, val and test: 50, 20 and 30 % of every class, CoOp's shares; chosen as in `train_val`."""
    return _cut(items, 0.5, 0.2)


def _cut(items: Sequence[Item], for_train: float, for_val: float) -> tuple[list[Item], list[Item], list[Item]]:
    """Cut every class by shares; the order of the items stays."""
    members: dict[int, list[int]] = {}
    for position, (_, label) in enumerate(items):
        members.setdefault(label, []).append(position)
    split_of = [2] * len(items)
    for positions in members.values():
        ranked = sorted(positions, key=lambda position: _rank(items[position][0]))
        first = max(1, round(for_train * len(ranked)))  # a class with one image keeps it for training
        last = len(ranked) if for_train + for_val >= 1 else first + round(for_val * len(ranked))
        for order, position in enumerate(ranked[:last]):
            split_of[position] = 0 if order < first else 1
    train, val, test = ([item for item, own in zip(items, split_of, strict=True) if own == split] for split in range(3))
    return train, val, test


def _rank(source: ImageSource) -> tuple[str, str]:
    if not isinstance(source, str | os.PathLike):
        raise DataError("only images in files can be split by their names")
    path = Path(source)
    return hashlib.sha256(path.name.encode(errors="surrogateescape")).hexdigest(), str(path)

"""Images with labels, the one form in which data travels through the package, and the names of their classes."""

import difflib
import hashlib
import operator
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kalmanclip.data.images import ImageSource, image_identity
from kalmanclip.errors import DataError
from kalmanclip.files import is_unicode


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
            if not is_unicode(name):
                raise DataError(f"the class name {name!r} has bytes that are no UTF-8; rename its folder or label")
        last = len(self.class_names) - 1
        for position, label in enumerate(self.labels):
            try:
                self.labels[position] = value = operator.index(label)
            except TypeError:
                raise DataError(f"label {label!r} of image {position} is not an integer; use 0..{last}") from None
            if not 0 <= value <= last:
                raise DataError(
                    f"label {value} of image {position} is outside 0..{last}: there are {last + 1} class names"
                )

    def __len__(self) -> int:
        return len(self.sources)

    def counts(self) -> list[int]:
        """Return the number of images of each class, C integers in the order of `class_names`."""
        counts = Counter(self.labels)
        return [counts[label] for label in range(len(self.class_names))]

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
        class_names = _classes_of(label_list, known)
    if any(strings):
        label_list = find_labels(label_list, class_names, "label")
    return LabelledImages(source_list, label_list, list(class_names))


def fingerprint(images: LabelledImages) -> str:
    """Return a hash of the identities, labels and class names of a set of images, in their order."""
    digest = hashlib.sha256("\n".join(images.class_names).encode())
    for source, label in zip(images.sources, images.labels, strict=True):
        digest.update(f"\n{label} {image_identity(source)}".encode(errors="surrogateescape"))
    return digest.hexdigest()


def class_members(images: LabelledImages, positions: Iterable[int]) -> list[list[int]]:
    """Return those of the given positions whose images belong to each class, C lists in the given order."""
    members: list[list[int]] = [[] for _ in images.class_names]
    for position in positions:
        members[images.labels[position]].append(position)
    return members


def require_two_classes(class_names: Sequence[str], where: str, advice: str) -> None:
    """Raise `DataError` unless there are at least two classes to tell apart."""
    if len(class_names) < 2:
        raise DataError(f"{where} has only one class, {class_names[0]!r}; at least two are needed. {advice}")


def extend_classes(known: Sequence[str], names: Iterable[str]) -> list[str]:
    """Return the `known` class names, then those that `names` add to them, cleaned and in natural order."""
    have = {name_key(name) for name in known}
    return [*known, *sorted((class_name_from_folder(n) for n in names if name_key(n) not in have), key=natural_key)]


def _classes_of(labels: list[Any], known: Sequence[str]) -> list[str]:
    """Return the class names that string labels stand for, or the known ones for integers."""
    if not labels:
        raise DataError("there are no images; give at least one image of each of two classes")
    if not isinstance(labels[0], str):
        if known:
            return list(known)
        raise DataError(
            "labels are numbers without names, and the prompts need names: pass class_names, "
            "for example ['cat', 'dog'] for the labels 0 and 1, or [str(i) for i in range(10)] for digits"
        )
    distinct = sorted(set(labels))
    check_distinct(distinct, "label")
    names = extend_classes(known, distinct)
    require_two_classes(names, "the list of labels", "Pass class_names if the others just do not occur here.")
    return names


def class_name_from_folder(name: str) -> str:
    """Return the class name that a folder name stands for: "golden_retriever" -> "golden retriever".

    Underscores become spaces, runs of white space one space, the ends are stripped; the case is kept. Accents
    take their composed form, since some systems store "é" in file names as two characters.
    """
    return " ".join(unicodedata.normalize("NFC", name).replace("_", " ").split())


def name_key(name: str) -> str:
    """Return what is compared: names that differ only in case, underscores or spaces are the same class."""
    return class_name_from_folder(name).casefold()


def check_distinct(names: Iterable[str], what: str) -> None:
    """Raise `DataError` if a name is empty or two mean the same class; `what` says what the names are."""
    seen: dict[str, str] = {}
    for name in names:
        key = name_key(name)
        if not key:
            raise DataError(f"the {what} {name!r} gives an empty class name; rename it")
        if key in seen:
            raise DataError(
                f"the {what}s {seen[key]!r} and {name!r} give the same class name "
                f"{class_name_from_folder(name)!r}; rename one, or merge them"
            )
        seen[key] = name


def find_labels(names: Iterable[str], class_names: Sequence[str], what: str) -> list[int]:
    """Return the label of each name among C different class names, whatever its case, underscores and spaces.

    If a name is none of them, the error says `what` it is and suggests the nearest.
    """
    check_distinct(class_names, "class name")
    labels = {name_key(name): label for label, name in enumerate(class_names)}
    found = []
    for name in names:
        if name_key(name) not in labels:
            close = difflib.get_close_matches(name_key(name), labels, n=1)
            suggestion = f" Did you mean {class_names[labels[close[0]]]!r}?" if close else ""
            raise DataError(
                f"the {what} {name!r} is none of the known classes.{suggestion} Known: {shown(class_names)}"
            )
        found.append(labels[name_key(name)])
    return found


def shown(names: Sequence[str], most: int = 20, quote: Callable[[str], str] = repr) -> str:
    """Return a list of names for a message, cut short if it is long."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(quote, names[:most])) + more


def natural_key(name: str) -> tuple[tuple[str | int, ...], str]:
    """Return a sorting key: case-insensitive, numbers by value ("img2" before "IMG10"), ties by spelling."""
    # Splitting at numbers alternates text, number, text, ...: like is always compared with like.
    pieces = re.split("([0-9]+)", name.casefold())
    return tuple(int(piece) if i % 2 else piece for i, piece in enumerate(pieces)), name

"""Images from elsewhere to measure a classifier on that knows its classes already: distribution shifts."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kalmanclip.data.folder import read_folder
from kalmanclip.data.labelled import LabelledImages
from kalmanclip.data.lists import read_list
from kalmanclip.data.names import ClassIndex
from kalmanclip.data.registry import Views
from kalmanclip.data.spelling import brings_classes, existing_folder, is_list, read_data, split_name
from kalmanclip.errors import DataError


@dataclass(frozen=True, eq=False)
class Shift:
    """Test images whose classes are some of a classifier's.

    Attributes:
        images: N images; their labels count in `columns`.
        columns: which of the classifier's classes there are to choose from: scores are restricted to these.
    """

    images: LabelledImages
    columns: tuple[int, ...]


def read_shift(
    spelling: str,
    root: str | os.PathLike[str] | None,
    class_names: Sequence[str],
    imagenet_labels: Sequence[int] | None = None,
) -> Shift:
    """Return test images for a classifier of given classes; no image is opened.

    A folder of class folders, or a list, is measured among all classes of the classifier, even if it does not show
    all of them. A data set that brings its own class names (a registered one, one of the hub) is measured among
    those, as is done with ImageNet-A, whose 200 classes are some of ImageNet's.

    Args:
        spelling: as in `spelling`; a folder may be the class folders themselves, or hold them in ``test/``.
        root: where the registered data sets lie.
        class_names: the classifier's C classes. Those of the images are found among them by name.
        imagenet_labels: what its classes are in ImageNet, if they are: relatives of ImageNet are then found by
            number, since two classes of ImageNet have the same name.

    Raises:
        DataError: there are no test images, or they show something that is none of the classes.
        ConfigError: there is no such data set.
    """
    _, place = split_name(spelling)
    if brings_classes(place):
        views = read_data(place, root)
        if views.test is None or not len(views.test):
            raise DataError(f"The data set {place} has no test images, so nothing can be measured on it.")
        columns = _columns(views, class_names, imagenet_labels)
        names = [class_names[column] for column in columns]
        return Shift(LabelledImages(views.test.sources, views.test.labels, names), columns)
    images = _read_list(Path(place), class_names) if is_list(place) else _read_folder(place, class_names)
    return Shift(images, tuple(range(len(class_names))))


def _columns(views: Views, class_names: Sequence[str], imagenet_labels: Sequence[int] | None) -> tuple[int, ...]:
    if views.imagenet_labels is not None and imagenet_labels is not None:
        place = {label: column for column, label in enumerate(imagenet_labels)}
        strange = [name for n, name in zip(views.imagenet_labels, views.class_names, strict=True) if n not in place]
        if strange:
            raise DataError(f"the class {strange[0]!r} is none of the known classes; choose another shift")
        return tuple(place[label] for label in views.imagenet_labels)
    index = ClassIndex(class_names)
    return tuple(index.label(name, "class") for name in views.class_names)


def _read_list(path: Path, class_names: Sequence[str]) -> LabelledImages:
    views = read_list(path.expanduser(), class_names)
    return views.test or views.parts()[0][1]


def _read_folder(place: str, class_names: Sequence[str]) -> LabelledImages:
    folder = existing_folder(place)
    parts = (folder / "train").is_dir() and (folder / "test").is_dir()
    return read_folder(folder / "test" if parts else folder, class_names)

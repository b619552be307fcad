"""Resolve the *spec* of a data set, as people type it, and read what it means.

| spec | meaning |
| --- | --- |
| ``eurosat`` | a data set of the `catalog`, under the root |
| ``imagenet_c:fog/3`` | a variant of one |
| ``module:object`` | a `DataSet` of another package (`kalmanclip.plugins`) |
| ``photos/`` | a folder with ``train/`` and ``test/`` (and ``val/``, if any) of class folders |
| ``train_folder:test_folder`` | two folders of class folders |
| ``photos.csv``, ``.json``, ``.jsonl`` | a list (`lists.read_list`) |
| ``hf:...`` | a data set of Hugging Face (`hub.read_hugging_face`) |
| ``NAME=...`` | any of these, under a name of one's own |
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kalmanclip.data.catalog import DATA_SETS, find_dataset, load_dataset, split_variant
from kalmanclip.data.folder import read_folder
from kalmanclip.data.hub import HUB, read_hugging_face
from kalmanclip.data.labelled import LabelledImages, find_labels
from kalmanclip.data.lists import is_list, read_list
from kalmanclip.data.shots import read_shot_lists
from kalmanclip.data.splits import Splits
from kalmanclip.errors import ConfigError, DataError
from kalmanclip.files import check_path

_OWN_NAME = re.compile(r"([^/\\:=,{}]+)=(.+)", re.DOTALL)


def split_name(spec: str) -> tuple[str | None, str]:
    """Return the name that a spec gives itself, if any, and the rest: ``pets=photos/`` is "pets", "photos/"."""
    there = check_path(spec, DataError).exists()
    match = None if spec.startswith(HUB) or there else _OWN_NAME.fullmatch(spec)
    if match is None:
        return None, spec
    check_path(match[2], DataError)
    return match[1].strip(), match[2]


def data_name(spec: str) -> str:
    """Return what a data set is called in tables: its own name, the catalog's, or the folder's or file's."""
    name, place = split_name(spec)
    if name is not None:
        return name
    registered = split_variant(place)
    if registered is not None:
        word, variant = registered
        return find_dataset(word).name + (f":{variant}" if variant else "")
    if place.startswith(HUB):
        return place.removeprefix(HUB).partition("?")[0].rstrip("/").rsplit("/", 1)[-1]
    pair = _folder_pair(place)
    path = (pair[0] if pair else Path(place).expanduser()).resolve()
    return path.stem if is_list(place) else path.name


def is_registered(place: str) -> bool:
    """Return whether this is a name of the catalog; a folder of that name is meant by ``./name``."""
    return split_variant(place) is not None


def read_data(spec: str, root: str | os.PathLike[str] | None = None) -> Splits:
    """Return the splits of a data set; no image is opened.

    Args:
        spec: see the table above.
        root: where the data sets of the catalog lie; see `catalog.data_root`.

    Raises:
        DataError: the data set is not there, or not complete.
    """
    _, place = split_name(spec)
    if place.startswith(HUB):
        return read_hugging_face(place)
    registered = split_variant(place)
    if registered is not None:
        word, variant = registered
        try:
            return load_dataset(word, root, variant=variant or None)
        except DataError as error:
            if not Path(place).is_dir():
                raise
            raise DataError(f"{error}. If you mean the folder {place} here, write ./{place}") from error
    if is_list(place):
        return read_list(Path(place).expanduser())
    pair = _folder_pair(place)
    if pair is not None:
        train = read_folder(pair[0])
        return Splits(train, test=read_folder(pair[1], train.class_names))
    folder = _existing_folder(place)
    missing = [split for split in ("train", "test") if not (folder / split).is_dir()]
    if missing:
        raise DataError(
            f"{folder} has no folder {missing[0]}/. A data set to compare on is a folder with train/ and test/ "
            "(and val/, if there is one), each with one folder per class; or two folders, written train:test."
        )
    train = read_folder(folder / "train")
    val = read_folder(folder / "val", train.class_names) if (folder / "val").is_dir() else None
    test = read_folder(folder / "test", train.class_names)
    return Splits(train, val, test, shot_lists=read_shot_lists(folder, train))


@dataclass(frozen=True, eq=False)
class Shift:
    """Test images from elsewhere (a distribution shift) whose classes are some of a classifier's.

    Attributes:
        images: N images; their labels count in `columns`.
        columns: which of the classifier's classes there are to choose from: scores are restricted to these.
    """

    images: LabelledImages
    columns: tuple[int, ...]


def read_shift(
    spec: str,
    root: str | os.PathLike[str] | None,
    class_names: Sequence[str],
    imagenet_labels: Sequence[int] | None = None,
) -> Shift:
    """Return test images for a classifier of given classes; no image is opened.

    A folder of class folders, or a list, is measured among all classes of the classifier, even if it does not show
    all of them. A data set that brings its own class names (one of the catalog or the hub) is measured among those,
    as is done with ImageNet-A, whose 200 classes are some of ImageNet's.

    Args:
        spec: see the table above; a folder may be the class folders themselves, or hold them in ``test/``.
        root: where the data sets of the catalog lie.
        class_names: the classifier's C classes. Those of the images are found among them by name.
        imagenet_labels: what its classes are in ImageNet, if they are: relatives of ImageNet are then found by
            number, since two classes of ImageNet have the same name.

    Raises:
        DataError: there are no test images, or they show something that is none of the classes.
    """
    _, place = split_name(spec)
    if place.startswith(HUB) or is_registered(place):
        splits = read_data(place, root)
        if splits.test is None or not len(splits.test):
            raise DataError(f"The data set {place} has no test images, so nothing can be measured on it.")
        columns = _columns(splits, class_names, imagenet_labels)
        names = [class_names[column] for column in columns]
        return Shift(LabelledImages(splits.test.sources, splits.test.labels, names), columns)
    if is_list(place):
        splits = read_list(Path(place).expanduser(), class_names)
        images = splits.test or splits.items()[0][1]
    else:
        folder = _existing_folder(place)
        has_splits = (folder / "train").is_dir() and (folder / "test").is_dir()
        images = read_folder(folder / "test" if has_splits else folder, class_names)
    return Shift(images, tuple(range(len(class_names))))


def _columns(splits: Splits, class_names: Sequence[str], imagenet_labels: Sequence[int] | None) -> tuple[int, ...]:
    if splits.imagenet_labels is not None and imagenet_labels is not None:
        column_of = {label: column for column, label in enumerate(imagenet_labels)}
        pairs = zip(splits.imagenet_labels, splits.class_names, strict=True)
        unknown = [name for label, name in pairs if label not in column_of]
        if unknown:
            raise DataError(f"the class {unknown[0]!r} is none of the known classes; choose another shift")
        return tuple(column_of[label] for label in splits.imagenet_labels)
    return tuple(find_labels(splits.class_names, class_names, "class"))


def _existing_folder(place: str) -> Path:
    """Return a folder, or say what was probably meant."""
    folder = Path(place).expanduser()
    if folder.is_dir():
        return folder
    if folder.name == place:  # one word: a mistyped name rather than a path
        try:
            find_dataset(place)
        except ConfigError as error:
            raise ConfigError(f"{error}; and there is no folder of that name either") from error
    raise DataError(f"There is no folder {folder}. Check the path, or give one of: {', '.join(DATA_SETS)}.")


def _folder_pair(place: str) -> tuple[Path, Path] | None:
    """Return the two folders of ``train:test``, if these are two; a colon may also belong to a path."""
    if Path(place).expanduser().exists():
        return None
    cuts = [match.start() for match in re.finditer("(?<=.):(?=.)", place)]  # an empty name is no folder
    pairs = [(Path(place[:cut]).expanduser(), Path(place[cut + 1 :]).expanduser()) for cut in cuts]
    return next((pair for pair in pairs if all(folder.is_dir() for folder in pair)), None)

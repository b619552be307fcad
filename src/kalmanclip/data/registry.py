"""Data sets by name: where they lie, and their parts as labelled images."""

import dataclasses
import difflib
import os
from pathlib import Path

from kalmanclip.data.sets.description import DataSet
from kalmanclip.data.sets.files import first_existing
from kalmanclip.data.sets.split_file import read_split_file
from kalmanclip.data.sets.table import DATA_SETS
from kalmanclip.data.sets.views import Views
from kalmanclip.errors import ConfigError, DataError

__all__ = ["DATA_SETS", "ROOT_VARIABLE", "DataSet", "Views", "data_root", "find_dataset", "load_dataset"]

ROOT_VARIABLE = "KALMANCLIP_DATA"
"""The environment variable that says where data sets lie."""


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder that holds the data sets: `root`, else $KALMANCLIP_DATA, else ./data."""
    return Path(root if root is not None else os.environ.get(ROOT_VARIABLE) or "data").expanduser()


def find_dataset(name: str) -> DataSet:
    """Return the description of a data set.

    Raises:
        ConfigError: there is none of that name.
    """
    key = name.lower().replace("-", "_")
    if key in DATA_SETS:
        return DATA_SETS[key]
    close = difflib.get_close_matches(key, DATA_SETS, n=1)
    suggestion = f" Did you mean {close[0]}?" if close else ""
    raise ConfigError(f"there is no data set called {name!r}.{suggestion} Known: {', '.join(DATA_SETS)}")


def load_dataset(
    dataset: str | DataSet,
    root: str | os.PathLike[str] | None = None,
    *,
    variant: str | None = None,
    strict: bool = True,
) -> Views:
    """Return the parts of a data set; no image is opened.

    The split is the first that there is of: CoOp's `split_zhou_*.json` in the data set's folder; the split that
    the data set comes with, where a validation part that CoOp would cut out of train is cut out by us
    (`sets.views.hold_out`); our own (`sets.views.three_way`). `Views.split` says which it was.

    Args:
        dataset: a name of `DATA_SETS`, or a description.
        root: the folder that holds the data sets; see `data_root`.
        variant: which version, where there are several: DTD's partition ("1"), ImageNetV2's ("matched-frequency"),
            ImageNet-C's corruption and severity ("fog/3", required).
        strict: refuse a data set without all its classes, a class without images, or lists without their images.
            `check.check_dataset` reads with False, to report everything at once.

    Raises:
        DataError: the data set is not there, or not complete.
        ConfigError: there is no such data set or variant.
    """
    known = find_dataset(dataset) if isinstance(dataset, str) else dataset
    place = data_root(root)
    folder = known.find(place)
    if folder is None:
        wanted = " or ".join(str(place / name) for name in known.folders)
        raise DataError(
            f"{known.title} was not found: there is no folder {wanted}. {known.obtain} "
            f"If it lies elsewhere, give the root or set {ROOT_VARIABLE}"
        )
    views = _read(known, folder, _checked_variant(known, variant))
    if strict:
        problems = [*incomplete(known, views), *_absent(views)]
        if problems:
            raise DataError(f"{known.title} in {folder}: {problems[0]}. `kalmanclip data check {known.name}` says more")
    return views


def incomplete(dataset: DataSet, views: Views) -> list[str]:
    """Return what is missing of the classes: their number, and those without images to learn from (or measure on)."""
    problems = []
    if len(views.class_names) != dataset.classes:
        problems.append(f"there are {len(views.class_names)} classes instead of {dataset.classes}")
    part, images = views.parts()[0]
    empty = [name for name, count in zip(images.class_names, images.counts(), strict=True) if count == 0]
    if empty:
        some = ", ".join(map(repr, empty[:5])) + (", ..." if len(empty) > 5 else "")
        problems.append(f"{len(empty)} classes have no images in {part}: {some}")
    return problems


def _absent(views: Views) -> list[str]:
    """Which parts begin with a file that is not there: a list without its images. Looking for all takes long."""
    first = [(part, images.sources[0]) for part, images in views.parts() if len(images)]
    files = [(part, Path(source)) for part, source in first if isinstance(source, str | os.PathLike)]
    return [f"the first image of {part}, {path}, does not exist" for part, path in files if not path.exists()]


def _read(dataset: DataSet, folder: Path, variant: str | None) -> Views:
    """By the split file if there is one, else the data set's own way."""
    if dataset.split_file is not None and (folder / dataset.split_file).is_file():
        images = first_existing(folder, dataset.images)
        views = read_split_file(folder / dataset.split_file, images, dataset.rename)
    else:
        views = dataset.read(folder, variant)
    return dataclasses.replace(views, templates=dataset.templates)


def _checked_variant(dataset: DataSet, variant: str | None) -> str | None:
    if variant is not None and variant not in dataset.variants:
        known = ", ".join(dataset.variants[:20]) + (", ..." if len(dataset.variants) > 20 else "")
        raise ConfigError(f"{dataset.title} has no variant {variant!r}; known: {known or 'none'}")
    return variant if variant is not None else dataset.variant

"""Public data sets by name: what is known about them, and how their files on disk are read.

Every module here that has a tuple `DATA_SETS` of `DataSet` adds them to the catalog; nothing else registers them.
"""

import difflib
import importlib
import importlib.util
import os
import pkgutil
from pathlib import Path

from kalmanclip.data.catalog.base import DataSet
from kalmanclip.data.labelled import shown
from kalmanclip.data.splits import Splits
from kalmanclip.errors import ConfigError, DataError
from kalmanclip.plugins import Plugins, is_address

__all__ = [
    "DATA_SETS",
    "PLUGINS",
    "ROOT_VARIABLE",
    "DataSet",
    "catalog_key",
    "data_root",
    "find_dataset",
    "load_dataset",
    "split_variant",
]

_MODULES = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
_FOUND = {dataset.name: dataset for module in _MODULES for dataset in getattr(module, "DATA_SETS", ())}

DATA_SETS: dict[str, DataSet] = dict(sorted(_FOUND.items()))
"""All data sets, by name."""

PLUGINS = Plugins(
    "kalmanclip.datasets",
    "data set",
    lambda thing: "" if isinstance(thing, DataSet) else "it is not a kalmanclip.data.DataSet",
)
"""Data sets of other packages."""

ROOT_VARIABLE = "KALMANCLIP_DATA"
"""The environment variable that says where data sets lie."""


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder that holds the data sets: `root`, else $KALMANCLIP_DATA, else ./data."""
    return Path(root if root is not None else os.environ.get(ROOT_VARIABLE) or "data").expanduser()


def catalog_key(name: str) -> str:
    """Return a name as the catalog has it: "Oxford-Pets" is "oxford_pets"."""
    return name.lower().replace("-", "_")


def split_variant(place: str) -> tuple[str, str] | None:
    """Return the name of a data set and its variant or "": ``imagenet_c:fog/3``; None where it names none.

    ``module:object`` is a name, too, unless a folder is meant: ``train:test``.
    """
    word, _, variant = place.partition(":")
    if catalog_key(word) in DATA_SETS or PLUGINS.has(catalog_key(word)):
        return word, variant
    module, _, rest = place.partition(":")
    attribute, _, variant = rest.partition(":")
    address = f"{module}:{attribute}"
    return (address, variant) if is_address(address) and not _is_folder(place, module) else None


def _is_folder(place: str, module: str) -> bool:
    """Return whether what looks like ``module:object`` means folders: there is one, and no module of that name."""
    if Path(place).exists():
        return True
    if not Path(module).exists():
        return False
    spec = importlib.util.find_spec(module)
    return spec is None or spec.origin is None  # any folder is a package without a file


def find_dataset(name: str | DataSet) -> DataSet:
    """Return the description of a data set (a description is returned as it is).

    The name may be that of a plug-in, or ``module:object`` (see `kalmanclip.plugins`).
    """
    if isinstance(name, DataSet):
        return name
    key = catalog_key(name)
    if key in DATA_SETS:
        return DATA_SETS[key]
    if is_address(name) or PLUGINS.has(key):
        found: DataSet = PLUGINS.get(name if is_address(name) else key, DATA_SETS)
        return found
    close = difflib.get_close_matches(key, DATA_SETS, n=1)
    suggestion = f" Did you mean {close[0]}?" if close else ""
    raise ConfigError(f"there is no data set called {name!r}.{suggestion} Known: {', '.join(DATA_SETS)}")


def load_dataset(
    dataset: str | DataSet,
    root: str | os.PathLike[str] | None = None,
    *,
    variant: str | None = None,
    strict: bool = True,
) -> Splits:
    """Return the splits of a data set; no image is opened.

    They are the first that there are of: CoOp's `split_zhou_*.json` in the data set's folder; the splits that the data
    set comes with, where a val split that CoOp would cut out of train is cut out by us (`splits.train_val`); our
    own (`splits.train_val_test`). `Splits.origin` says which it was.

    Args:
        dataset: a name of `DATA_SETS`, or a description.
        root: the folder that holds the data sets; see `data_root`.
        variant: which version, where there are several: DTD's partition ("1"), ImageNetV2's ("matched-frequency"),
            ImageNet-C's corruption and severity ("fog/3", required).
        strict: refuse a data set without all its classes, a class without images, or lists without their images.
            `check.check_dataset` reads with False, to report everything at once.

    Raises:
        DataError: the data set is not there, or not complete.
    """
    known, place = find_dataset(dataset), data_root(root)
    folder = known.find(place)
    if folder is None:
        wanted = " or ".join(str(place / name) for name in known.folders)
        raise DataError(
            f"{known.title} was not found: there is no folder {wanted}. {known.obtain} "
            f"If it lies elsewhere, give the root or set {ROOT_VARIABLE}"
        )
    if variant is not None and variant not in known.variants:
        versions = shown(known.variants, 20, str) or "none"
        raise ConfigError(f"{known.title} has no variant {variant!r}; known: {versions}")
    splits = known.read_splits(folder, known.variant if variant is None else variant)
    if strict:
        problems = [*incomplete(known, splits), *_absent(splits)]
        if problems:
            raise DataError(f"{known.title} in {folder}: {problems[0]}. `kalmanclip data check {known.name}` says more")
    return splits


def incomplete(dataset: DataSet, splits: Splits) -> list[str]:
    """Return what is missing of the classes: their number, and those without images to learn from (or measure on)."""
    problems = []
    if len(splits.class_names) != dataset.classes:
        problems.append(f"there are {len(splits.class_names)} classes instead of {dataset.classes}")
    split, images = splits.items()[0]
    empty = [name for name, count in zip(images.class_names, images.counts(), strict=True) if count == 0]
    if empty:
        problems.append(f"{len(empty)} classes have no images in {split}: {shown(empty, 5)}")
    return problems


def _absent(splits: Splits) -> list[str]:
    """Return which splits begin with a file that is not there, as a list without its images does."""
    first = [(split, images.sources[0]) for split, images in splits.items() if len(images)]
    files = [(split, Path(source)) for split, source in first if isinstance(source, str | os.PathLike)]
    return [f"the first image of {split}, {path}, does not exist" for split, path in files if not path.exists()]

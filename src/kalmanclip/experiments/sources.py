"""Data sets of a comparison: a name of the registry, or a folder with train/ and test/ of class folders."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kalmanclip.data import DATA_SETS, Views, find_dataset, load_dataset, read_folder, validate_templates
from kalmanclip.data.identity import fingerprint
from kalmanclip.errors import ConfigError, DataError


@dataclass(frozen=True)
class Source:
    """A data set that was found, and how to read it again (in another process, say).

    Attributes:
        spelling: as the user gave it.
        name: what tables call it: the registry's name, or the folder's.
        root: where data sets of the registry lie; None for the default.
        templates: the prompt templates to use.
        fingerprint: a hash of the names, labels and classes of all images, not of their pixels.
    """

    spelling: str
    name: str
    root: str | None
    templates: tuple[str, ...]
    fingerprint: str

    def read(self) -> Views:
        """The parts of the data set; train and test are there.

        Raises:
            DataError: it is not what it was when it was found.
        """
        views = read_views(self.spelling, self.root)
        if _fingerprint(views) != self.fingerprint:
            raise DataError(f"The data set {self.spelling} changed while it was in use. Run the command again.")
        return views


def find_sources(
    spellings: Iterable[str], root: str | os.PathLike[str] | None = None, templates: Sequence[str] | None = None
) -> list[Source]:
    """Finds data sets; no image is opened.

    Args:
        spellings: names of the registry, or folders.
        root: where the registry's data sets lie; see `kalmanclip.data.data_root`.
        templates: prompt templates for all of them; None takes each data set's own.

    Raises:
        ConfigError: no such data set, one that only measures, or two with the same name.
        DataError: a data set is not there or not complete.
    """
    place = None if root is None else os.fspath(root)
    found: dict[str, Source] = {}
    for spelling in dict.fromkeys(spellings):
        views = read_views(spelling, place)
        name = find_dataset(spelling).name if _is_registered(spelling) else Path(spelling).resolve().name
        chosen = validate_templates(templates or views.templates)
        if name in found:
            raise ConfigError(
                f"Two data sets are called {name!r} ({found[name].spelling} and {spelling}), and the table could not "
                "tell them apart. Rename one of the folders, or leave one out."
            )
        found[name] = Source(spelling, name, place, chosen, _fingerprint(views))
    if not found:
        raise ConfigError("There is nothing to compare on: give at least one data set.")
    return list(found.values())


def read_views(spelling: str, root: str | None = None) -> Views:
    """The parts of a data set by its spelling; train and test are there."""
    views = load_dataset(spelling, root) if _is_registered(spelling) else _read_parts(spelling)
    if views.train is None:
        raise ConfigError(f"The data set {spelling} has no images to learn from, so there is nothing to compare on it.")
    if views.test is None or not len(views.test):
        raise DataError(f"The data set {spelling} has no test images, so nothing can be measured on it.")
    return views


def _is_registered(spelling: str) -> bool:
    """A name of the registry; a folder of that name is meant by ``./name``."""
    return spelling.lower().replace("-", "_") in DATA_SETS


def _read_parts(spelling: str) -> Views:
    folder = Path(spelling).expanduser()
    if not folder.is_dir():
        if folder.name == spelling:  # one word: a mistyped name rather than a path
            try:
                find_dataset(spelling)
            except ConfigError as error:
                raise ConfigError(f"{error}; and there is no folder of that name either") from error
        raise DataError(f"There is no folder {folder}. Check the path, or give one of: {', '.join(DATA_SETS)}.")
    missing = [part for part in ("train", "test") if not (folder / part).is_dir()]
    if missing:
        raise DataError(
            f"{folder} has no folder {missing[0]}/. A data set to compare on is a folder with train/ and test/ "
            "(and val/, if there is one), each with one folder per class."
        )
    train = read_folder(folder / "train")
    val = read_folder(folder / "val", train.class_names) if (folder / "val").is_dir() else None
    return Views(train, val, read_folder(folder / "test", train.class_names))


def _fingerprint(views: Views) -> str:
    digest = hashlib.sha256()
    for part, images in views.parts():
        digest.update(f"{part} {fingerprint(images)}\n".encode())
    return digest.hexdigest()

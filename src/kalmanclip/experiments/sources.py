"""Data sets of a comparison, found once; every process can read them again and notice if they changed."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kalmanclip.data import Splits, validate_templates
from kalmanclip.data.labelled import fingerprint
from kalmanclip.data.resolve import Shift, data_name, read_data, read_shift
from kalmanclip.errors import ConfigError, DataError

_FOR_ONE = re.compile(r"([^\s={}]+)=(.*)", re.DOTALL)
"""A template for one data set: ``pets=a photo of a {}, a type of pet.``"""


@dataclass(frozen=True)
class ShiftSource:
    """Extra test images of a data set, found.

    Attributes:
        spelling: as the user gave it.
        name: what tables call it.
        fingerprint: a hash of the names and labels of the images, and of the classes they are measured among.
    """

    spelling: str
    name: str
    fingerprint: str


@dataclass(frozen=True)
class Source:
    """A data set that was found, and how to read it again (in another process, say).

    Attributes:
        spelling: as the user gave it.
        name: what tables call it: the user's own name for it, the registry's, or the folder's.
        root: where data sets of the registry lie; None for the default.
        templates: the prompt templates to use.
        fingerprint: a hash of the names, labels and classes of all images, not of their pixels, and of the shot lists.
        shifts: the extra test sets that have its classes.
    """

    spelling: str
    name: str
    root: str | None
    templates: tuple[str, ...]
    fingerprint: str
    shifts: tuple[ShiftSource, ...] = ()

    def read(self) -> Splits:
        """Read the parts of the data set; train and test are there.

        Raises:
            DataError: it is not what it was when it was found.
        """
        views = read_views(self.spelling, self.root)
        self._check(_fingerprint(views) == self.fingerprint, self.spelling)
        return views

    def read_shifts(self, views: Splits) -> dict[str, Shift]:
        """Read the extra test sets, by name, for the classes of ``views``.

        Raises:
            DataError: one is not what it was when it was found.
        """
        shifts = {}
        for shift in self.shifts:
            found = _read_shift(shift.spelling, self.root, views)
            self._check(_shift_fingerprint(found) == shift.fingerprint, shift.spelling)
            shifts[shift.name] = found
        return shifts

    def _check(self, same: bool, spelling: str) -> None:
        if not same:
            raise DataError(f"The data set {spelling} changed while it was in use. Run the command again.")


def find_sources(
    spellings: Iterable[str],
    root: str | os.PathLike[str] | None = None,
    templates: Sequence[str] | None = None,
    shifts: Iterable[str] = (),
    draws: Iterable[tuple[int, int]] = (),
) -> list[Source]:
    """Find data sets; no image is opened.

    Args:
        spellings: see `kalmanclip.data.resolve`.
        root: where the registry's data sets lie; see `kalmanclip.data.data_root`.
        templates: prompt templates for all of them, or, as ``name=template``, for one; a data set without any takes
            its own.
        shifts: extra test sets, spelled likewise. Each belongs to all the data sets that have its classes.
        draws: pairs of shots and seed that will be asked for: shot lists that are too short are found now.

    Raises:
        ConfigError: no such data set, one that only measures, or two with the same name.
        DataError: a data set is not there or not complete, or no data set has the classes of a shift.
    """
    place = None if root is None else os.fspath(root)
    found: dict[str, tuple[Source, Splits]] = {}
    for spelling in dict.fromkeys(spellings):
        views, name = read_views(spelling, place), data_name(spelling)
        if name in found:
            raise ConfigError(
                f"Two data sets are called {name!r} ({found[name][0].spelling} and {spelling}), and the table could "
                f"not tell them apart. Name one of them: --data OTHER={spelling}"
            )
        _check_draws(views, draws)
        found[name] = Source(spelling, name, place, views.templates, _fingerprint(views)), views
    if not found:
        raise ConfigError("There is nothing to compare on: give at least one data set.")
    chosen = _by_name(templates or (), list(found))
    belonging = _belonging(list(dict.fromkeys(shifts)), list(found.values()))
    return [
        replace(source, templates=validate_templates(chosen.get(name) or views.templates), shifts=belonging[name])
        for name, (source, views) in found.items()
    ]


def read_views(spelling: str, root: str | None = None) -> Splits:
    """Read the parts of a data set by its spelling; train and test are there."""
    views = read_data(spelling, root)
    if views.train is None:
        raise ConfigError(f"The data set {spelling} has no images to learn from, so there is nothing to compare on it.")
    if views.test is None or not len(views.test):
        raise DataError(f"The data set {spelling} has no test images, so nothing can be measured on it.")
    return views


def _check_draws(views: Splits, draws: Iterable[tuple[int, int]]) -> None:
    if views.shot_lists is None or views.train is None:
        return
    for shots, seed in draws:
        listed = views.shot_lists.find(shots, seed)
        if listed is not None:
            listed.first(views.train, shots)


def split_template(given: str) -> tuple[str | None, str]:
    """Return the data set that a template is for, None for all, and the template itself."""
    match = _FOR_ONE.fullmatch(given)
    return (match[1], match[2]) if match else (None, given)


def _by_name(templates: Sequence[str], names: Sequence[str]) -> dict[str, list[str]]:
    """Return the templates of each data set; its own win over those for all."""
    general: list[str] = []
    own: dict[str, list[str]] = {}
    for template in templates:
        name, text = split_template(template)
        if name is None:
            general.append(text)
        elif name in names:
            own.setdefault(name, []).append(text)
        else:
            raise ConfigError(
                f"The template {template!r} is for a data set {name!r}, but there are only: {', '.join(names)}."
            )
    return {name: own.get(name, general) for name in names}


def _belonging(spellings: Sequence[str], found: Sequence[tuple[Source, Splits]]) -> dict[str, tuple[ShiftSource, ...]]:
    """Return the shifts that have the classes of a data set, by the data set's name."""
    belonging: dict[str, tuple[ShiftSource, ...]] = {source.name: () for source, _ in found}
    names: dict[str, str] = {}
    for spelling in spellings:
        name = data_name(spelling)
        if name in names:
            raise ConfigError(
                f"Two shifts are called {name!r} ({names[name]} and {spelling}). Name one of them: "
                f"--shift OTHER={spelling}"
            )
        names[name] = spelling
        problems = []
        for source, views in found:
            try:
                shift = _read_shift(spelling, source.root, views)
            except DataError as problem:
                problems.append(problem)
            else:
                belonging[source.name] += (ShiftSource(spelling, name, _shift_fingerprint(shift)),)
        if len(problems) == len(found):
            raise DataError(f"The shift {spelling} fits none of the data sets: {problems[0]}") from problems[0]
    return belonging


def _read_shift(spelling: str, root: str | None, views: Splits) -> Shift:
    return read_shift(spelling, root, views.class_names, views.imagenet_labels)


def _shift_fingerprint(shift: Shift) -> str:
    return hashlib.sha256(f"{fingerprint(shift.images)} {shift.columns}".encode()).hexdigest()


def _fingerprint(views: Splits) -> str:
    digest = hashlib.sha256()
    for part, images in views.items():
        digest.update(f"{part} {fingerprint(images)}\n".encode())
    for line in views.shot_lists.contents() if views.shot_lists else ():
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()

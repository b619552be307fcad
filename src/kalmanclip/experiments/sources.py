"""Data sets of a comparison, found once; every process can read them again and notice if they changed."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kalmanclip.data import Splits, validate_templates
from kalmanclip.data.labelled import fingerprint
from kalmanclip.data.resolve import Shift, data_name, read_data, read_shift
from kalmanclip.errors import ConfigError, DataError

_FOR_ONE = re.compile(r"([^\s={}]+)=(.*)", re.DOTALL)  # pets=a photo of a {}, a type of pet.


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
        """Read the parts of the data set; train and test are there, and all is as when it was found."""
        splits = read_splits(self.spelling, self.root)
        _check_unchanged(_fingerprint(splits) == self.fingerprint, self.spelling)
        return splits

    def read_shifts(self, splits: Splits) -> dict[str, Shift]:
        """Read the extra test sets, by name, for the classes of ``splits``."""
        shifts = {s.name: _read_shift(s.spelling, self.root, splits) for s in self.shifts}
        for shift in self.shifts:
            _check_unchanged(_shift_fingerprint(shifts[shift.name]) == shift.fingerprint, shift.spelling)
        return shifts


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
    named = _by_name("data", dict.fromkeys(spellings))
    if not named:
        raise ConfigError("There is nothing to compare on: give at least one data set.")
    found = {name: read_splits(spelling, place) for name, spelling in named.items()}
    for splits in found.values():
        if splits.shot_lists is not None and splits.train is not None:
            for shots, seed in draws:
                if (listed := splits.shot_lists.find(shots, seed)) is not None:
                    listed.first(splits.train, shots)
    prompts = _templates(templates or (), list(found))
    moved = _shifts(_by_name("shift", dict.fromkeys(shifts)), found, place)
    return [
        Source(
            named[name],
            name,
            place,
            validate_templates(prompts[name] or splits.templates),
            _fingerprint(splits),
            tuple(moved[name]),
        )
        for name, splits in found.items()
    ]


def read_splits(spelling: str, root: str | None = None) -> Splits:
    """Read the parts of a data set by its spelling; train and test are there."""
    splits = read_data(spelling, root)
    if splits.train is None:
        raise ConfigError(f"The data set {spelling} has no images to learn from, so there is nothing to compare on it.")
    if splits.test is None or not len(splits.test):
        raise DataError(f"The data set {spelling} has no test images, so nothing can be measured on it.")
    return splits


def split_template(given: str) -> tuple[str | None, str]:
    """Return the data set that a template is for, None for all, and the template itself."""
    match = _FOR_ONE.fullmatch(given)
    return (match[1], match[2]) if match else (None, given)


def _by_name(option: str, spellings: Iterable[str]) -> dict[str, str]:
    """Return the spellings by the names that tables give them."""
    named: dict[str, str] = {}
    for spelling in spellings:
        name = data_name(spelling)
        if name in named:
            what = {"data": "data sets", "shift": "shifts"}[option]
            raise ConfigError(
                f"Two {what} are called {name!r} ({named[name]} and {spelling}), and the table could not tell them "
                f"apart. Name one of them: --{option} OTHER={spelling}"
            )
        named[name] = spelling
    return named


def _templates(templates: Sequence[str], names: Sequence[str]) -> dict[str, list[str]]:
    """Return the templates of each data set; its own win over those for all."""
    given: dict[str | None, list[str]] = {}
    for template in templates:
        name, text = split_template(template)
        if name is not None and name not in names:
            raise ConfigError(
                f"The template {template!r} is for a data set {name!r}, but there are only: {', '.join(names)}."
            )
        given.setdefault(name, []).append(text)
    return {name: given.get(name) or given.get(None, []) for name in names}


def _shifts(named: Mapping[str, str], found: Mapping[str, Splits], root: str | None) -> dict[str, list[ShiftSource]]:
    """Return the shifts that have the classes of a data set, by the data set's name."""
    belonging: dict[str, list[ShiftSource]] = {name: [] for name in found}
    for shift, spelling in named.items():
        problems = []
        for name, splits in found.items():
            try:
                read = _read_shift(spelling, root, splits)
            except DataError as problem:
                problems.append(problem)
            else:
                belonging[name].append(ShiftSource(spelling, shift, _shift_fingerprint(read)))
        if len(problems) == len(found):
            raise DataError(f"The shift {spelling} fits none of the data sets: {problems[0]}") from problems[0]
    return belonging


def _read_shift(spelling: str, root: str | None, splits: Splits) -> Shift:
    return read_shift(spelling, root, splits.class_names, splits.imagenet_labels)


def _check_unchanged(same: bool, spelling: str) -> None:
    if not same:
        raise DataError(f"The data set {spelling} changed while it was in use. Run the command again.")


def _shift_fingerprint(shift: Shift) -> str:
    return hashlib.sha256(f"{fingerprint(shift.images)} {shift.columns}".encode()).hexdigest()


def _fingerprint(splits: Splits) -> str:
    lines = [f"{part} {fingerprint(images)}" for part, images in splits.items()]
    lines += splits.shot_lists.contents() if splits.shot_lists else ()
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()

"""Read data sets that are lists: a CSV, JSON or JSON-lines file that names images and their labels, or captions."""

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from kalmanclip.config import short
from kalmanclip.data.folder import parse_json, read_text
from kalmanclip.data.images import ImageSource
from kalmanclip.data.labelled import from_lists, shown
from kalmanclip.data.pairs import CaptionedImages, CaptionedSplits
from kalmanclip.data.splits import Splits
from kalmanclip.errors import DataError
from kalmanclip.files import check_path

Row: TypeAlias = tuple[str, dict[str, Any]]
"""Where a row stands ("line 3 of photos.csv"), and its columns."""

_ENDINGS = (".csv", ".json", ".jsonl", ".ndjson")
_IMAGE, _LABEL, _CAPTION = ("image", "path"), ("class", "label"), ("caption", "text")
_SPLIT = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val"}
_SPLIT |= {"test": "test", "testing": "test"}


def read_list(path: str | os.PathLike[str], class_names: Sequence[str] | None = None) -> Splits:
    """Return the data set that a list describes; the images must exist but are not opened.

    The list is a CSV file with a header, a JSON list of objects, or one JSON object per line (.jsonl). Columns:
    `image` (or `path`), relative to the list's folder; `class` (or `label`); and, if there are several splits,
    `split`: train, val or test. Without it, everything is train. Other columns are ignored.

    Args:
        path: the list; its ending tells the format.
        class_names: what the labels mean. Needed when they are numbers in JSON; if it is given, numbers in CSV are
            positions in it. Without it the classes are the different labels, in natural order.

    Raises:
        DataError: the list cannot be read, a row lacks something, or images are missing.
    """
    rows = _rows(path)
    sources = _images(Path(path), rows)
    labels = [_column(row, _LABEL) for row in rows]
    if class_names is not None and all(isinstance(label, str) and label.isdecimal() for label in labels):
        labels = [int(label) for label in labels]
    everything = from_lists(sources, labels, class_names)
    found = {split: everything.subset(own) for split, own in _positions(rows).items()}
    return Splits(found.get("train"), found.get("val"), found.get("test"))


def read_captions(path: str | os.PathLike[str], split: str | None = None) -> CaptionedImages:
    """Return the pairs of a list with the columns `image` (or `path`) and `caption` (or `text`); see `read_list`.

    Args:
        path: the list.
        split: only the rows of this split; None takes all.
    """
    rows = [row for row in _rows(path) if split is None or _split(row) == split]
    if not rows:
        raise DataError(f"{path} has no rows with split {split!r}; leave the split out, or add the column")
    return _pairs(Path(path), rows)


def read_caption_splits(path: str | os.PathLike[str]) -> CaptionedSplits:
    """Return all splits of a list of pairs; without a column `split`, everything is train. See `read_captions`."""
    rows = _rows(path)
    pairs = _pairs(Path(path), rows)
    return CaptionedSplits(**{split: pairs.subset(own) for split, own in _positions(rows).items()})


def is_list(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a list, by its ending; a folder may be called so, too."""
    return Path(path).suffix.lower() in _ENDINGS and not Path(path).is_dir()


def has_captions_only(path: str | os.PathLike[str]) -> bool:
    """Return whether a list has captions and no classes; one that has both is about classes.

    Raises:
        DataError: it has neither.
    """
    rows = _rows(path)
    names = {name for _, columns in rows for name, value in columns.items() if value not in (None, "")}
    if not names & {*_CAPTION, *_LABEL}:
        columns = ", ".join(dict.fromkeys(name for _, columns in rows for name in columns)) or "none"
        raise DataError(
            f"{path} says nothing about its images: it needs a column class (or label), or caption (or text); "
            f"it has {columns}"
        )
    return not names & set(_LABEL)


def _pairs(place: Path, rows: Sequence[Row]) -> CaptionedImages:
    return CaptionedImages(_images(place, rows), [str(_column(row, _CAPTION)) for row in rows])


def _rows(location: str | os.PathLike[str]) -> list[Row]:
    """Return all rows of a list, with where they stand."""
    path = check_path(location, DataError)
    if not is_list(path):
        raise DataError(f"{path} is not a list that can be read; use one that ends in {', '.join(_ENDINGS)}")
    if not path.is_file():
        raise DataError(f"there is no list {path}; check the path")
    example = 'objects such as {"image": "a.jpg", "class": "cat"}'
    text, ending = read_text(path), path.suffix.lower()
    rows: list[tuple[str, Any]]
    if ending == ".csv":
        reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True)
        try:
            rows = [(f"line {reader.line_num} of {path}", row) for row in reader]
        except csv.Error as error:  # a quotation mark that is never closed makes one field of the rest
            where = f"line {reader.line_num + 1} of {path}"
            raise DataError(f"{where} cannot be read ({error}); look for a quotation mark too many there") from error
    elif ending == ".json":
        content = parse_json(text, path)
        if not isinstance(content, list):
            raise DataError(f"{path} must hold a list of {example}")
        rows = [(f"entry {number} of {path}", row) for number, row in enumerate(content)]
    else:
        lines = ((f"line {number} of {path}", line) for number, line in enumerate(text.splitlines(), 1) if line.strip())
        rows = [(where, parse_json(line, where)) for where, line in lines]
    if not rows:
        raise DataError(f"{path} has no rows; list at least one image")
    for where, row in rows:
        if not isinstance(row, dict):
            raise DataError(f"{where} is {short(row)}; use {example}")
    return [(where, {str(key).strip().lower(): value for key, value in row.items()}) for where, row in rows]


def _column(row: Row, names: Sequence[str]) -> Any:
    """Return the value of the first of `names` that a row has one for."""
    where, columns = row
    for name in names:
        value = columns.get(name)
        if value is not None and value != "":
            return value.strip() if isinstance(value, str) else value
    has = ", ".join(columns) or "nothing"
    raise DataError(f"{where} has no value for {' or '.join(names)} (it has the columns {has}); add it")


def _split(row: Row) -> str:
    where, columns = row
    given = str(columns.get("split") or "train").strip().lower()
    if given not in _SPLIT:
        raise DataError(f"{where} has the split {given!r}; use train, val or test")
    return _SPLIT[given]


def _positions(rows: Sequence[Row]) -> dict[str, list[int]]:
    """Return which rows belong to each split."""
    members: dict[str, list[int]] = {}
    for position, row in enumerate(rows):
        members.setdefault(_split(row), []).append(position)
    return members


def _images(place: Path, rows: Sequence[Row]) -> list[ImageSource]:
    """Return the images' paths, all of which must exist."""
    paths = [place.parent / str(_column(row, _IMAGE)) for row in rows]
    missing = [f"{path} ({row[0]})" for path, row in zip(paths, rows, strict=True) if not _is_file(path)]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(paths)} images are missing: {shown(missing, 5, str)}. "
            "Paths count from the list's own folder"
        )
    return list(paths)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # of a name that is too long, for one
        return False

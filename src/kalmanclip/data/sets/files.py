"""Reading the small files that come with data sets, with errors that name them."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kalmanclip.errors import DataError


def first_existing(folder: Path, candidates: Sequence[str]) -> Path:
    """Return the first of `candidates` under `folder` that exists.

    Raises:
        DataError: none does.
    """
    for candidate in candidates:
        if (folder / candidate).exists():
            return folder / candidate
    wanted = " or ".join(candidate or "." for candidate in candidates)
    raise DataError(f"{folder} has no {wanted}; the data set is not complete, unpack or download it again")


def read_text(path: Path) -> str:
    """Return the text of a file."""
    try:
        return path.read_text(encoding="utf-8-sig")  # some programs begin UTF-8 files with a mark
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; unpack or download the data set again") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}); unpack or download it again") from error


def read_rows(path: Path, columns: int, separator: str | None = None) -> Iterator[list[str]]:
    """Yield the lines of a file in `columns` pieces (the last one keeps its spaces); empty lines are skipped."""
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        pieces = line.strip().split(separator, columns - 1)
        if len(pieces) != columns:
            raise DataError(
                f"line {number} of {path} is {line!r}, but {columns} columns are expected; unpack or download it again"
            )
        yield pieces


def whole(text: str, path: Path) -> int:
    """Return a whole number that a file holds."""
    try:
        return int(text)
    except ValueError:
        raise DataError(f"{path} has {text!r} where a number is expected; unpack or download it again") from None


def read_json(path: Path) -> Any:
    """Return the content of a JSON file."""
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is not JSON ({error}); download it again") from error


def read_object(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file that holds an object."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__} instead of names and values; download it again")
    return content


def read_mat(path: Path, name: str) -> np.ndarray:
    """Return one array of a MATLAB file."""
    from scipy.io import loadmat  # type: ignore[import-untyped]

    if not path.is_file():
        raise DataError(f"{path} is missing; unpack or download the data set again")
    try:
        return np.atleast_1d(loadmat(path, squeeze_me=True)[name])
    except Exception as error:  # a damaged file provokes nearly every type there is
        raise DataError(f"{path} is damaged ({error}); download it again") from error

"""Finding image files under a folder: in an order people expect, and without following links in circles."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from kalmanclip.data.images import IMAGE_SUFFIXES
from kalmanclip.errors import DataError

NaturalKey: TypeAlias = tuple[tuple[str | int, ...], str]

# Made by archive programs and network disks next to real folders; hidden names are ignored anyway.
_NOT_OURS = {"__macosx", "@eadir"}


def natural_key(name: str) -> NaturalKey:
    """Return a sorting key: case-insensitive, numbers by value ("img2" before "IMG10"), ties by spelling."""
    # Splitting at numbers alternates text, number, text, ...: like is always compared with like.
    pieces = re.split("([0-9]+)", name.casefold())
    return tuple(int(piece) if i % 2 else piece for i, piece in enumerate(pieces)), name


def is_image_name(name: str) -> bool:
    """Tell by its ending whether a file name is an image's; hidden files (and macOS's "._x.jpg") are not."""
    return not name.startswith(".") and name.lower().endswith(IMAGE_SUFFIXES)


def entries(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the subfolders and the other entries of `folder`, hidden ones left out, each in natural order.

    Raises:
        DataError: the folder cannot be listed.
    """
    try:
        listed = sorted(folder.iterdir(), key=lambda path: natural_key(path.name))
    except OSError as error:
        raise DataError(
            f"cannot list the folder {folder}: {error.strerror}; check its permissions and the path"
        ) from error
    folders: list[Path] = []
    others: list[Path] = []
    for path in listed:
        if not path.name.startswith(".") and path.name.lower() not in _NOT_OURS:
            (folders if path.is_dir() else others).append(path)
    return folders, others


def image_files(folder: Path) -> list[Path]:
    """Return all files under `folder` named like images: in natural order, files before subfolders.

    Links to folders are followed, but no real folder is entered twice, nor one that contains `folder`. A
    broken link that is named like an image is listed, so that opening it says what is missing instead of it
    being lost silently.
    """
    resolved = Path(os.path.realpath(folder))
    return list(_walk(folder, entered={resolved, *resolved.parents}))


def _walk(folder: Path, entered: set[Path]) -> Iterator[Path]:
    folders, files = entries(folder)
    yield from (path for path in files if is_image_name(path.name))
    for inner in folders:
        resolved = Path(os.path.realpath(inner))
        if resolved not in entered:
            entered.add(resolved)
            yield from _walk(inner, entered)

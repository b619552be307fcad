"""What runs call a backbone: the same on every computer, wherever its weights lie."""

from __future__ import annotations

import hashlib
from pathlib import Path

from kalmanclip.encoders.backbone import PRECISIONS, architecture_of
from kalmanclip.errors import ModelError
from kalmanclip.files import sha256_of

_DIGITS = 12
_FOLDER = "local-dir:"


def model_name(spelling: str) -> str:
    """The name of a backbone; weights in a file or folder count by their own name and their content.

    Args:
        spelling: as `kalmanclip.encoders.load_backbone` takes it, perhaps with a precision (see `in_precision`).

    Raises:
        ModelError: there is no such backbone.
    """
    spelling, precision = split_precision(spelling)
    return in_precision(_name(spelling), precision)


def in_precision(spelling: str, precision: str) -> str:
    """A backbone whose towers compute in that precision, ``NAME@bfloat16``; float32 is not mentioned.

    Results in other precisions are results of other models: they are neither mixed nor taken for each other.
    """
    return spelling if precision == "float32" else f"{spelling}@{precision}"


def split_precision(spelling: str) -> tuple[str, str]:
    """The backbone and the precision that a spelling stands for."""
    name, _, precision = spelling.rpartition("@")
    return (name, precision) if name and precision in PRECISIONS else (spelling, "float32")


def _name(spelling: str) -> str:
    architecture_of(spelling)
    if spelling.startswith(_FOLDER):
        folder = Path(spelling.removeprefix(_FOLDER))
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        hashes = [f"{path.relative_to(folder).as_posix()} {sha256_of(path, ModelError)}" for path in files]
        return f"{_FOLDER}{folder.resolve().name}@{hashlib.sha256(chr(10).join(hashes).encode()).hexdigest()[:_DIGITS]}"
    architecture, _, weights = spelling.partition(":")
    # a tag of open_clip is one word, so it stays even if a file happens to be called like it
    if (Path(weights).suffix or Path(weights).name != weights) and Path(weights).is_file():
        return f"{architecture}:{Path(weights).name}@{sha256_of(weights, ModelError)[:_DIGITS]}"
    return spelling

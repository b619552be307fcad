"""Uploads as the browser names them: checked, decoded and deleted."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from kalmanclip.app.limits import Upload, read_upload
from kalmanclip.errors import DataError


def take(payload: Any, folder: Path) -> list[Upload]:
    """Decodes the uploads that a request names; however that ends, their files are gone afterwards.

    A request may name anything. Only files that an upload has put into the folder are touched, each of which lies in
    a folder of its own there; addresses are not fetched.

    Args:
        payload: what the browser sent for a field of files: nothing, one table with a ``path``, or a list of them.
        folder: of all uploads.

    Raises:
        DataError: one is not an upload, or not a picture.
    """
    entries = payload if isinstance(payload, list) else [payload] if payload else []
    if not all(isinstance(entry, dict) and is_upload(entry.get("path"), folder) for entry in entries):
        raise DataError("That is not an upload.")
    files = [Path(entry["path"]) for entry in entries]
    try:
        return [read_upload(file) for file in files]
    finally:
        for file in files:
            shutil.rmtree(file.parent, ignore_errors=True)


def is_upload(path: Any, folder: Path) -> bool:
    """Whether a path is where an upload would lie: in a folder of its own, itself in the folder of all uploads."""
    if not isinstance(path, str) or "\0" in path:
        return False
    return Path(path).is_absolute() and Path(path).resolve().parent.parent == folder.resolve()

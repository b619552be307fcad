"""What a result was made with: the backbone by a name that is the same on every computer, versions, machine, code.

Records are copied to other computers and shown to other people, so they say what was used, not where it lay.
"""

from __future__ import annotations

import hashlib
import platform
import re
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import kalmanclip
from kalmanclip.data import data_root
from kalmanclip.data.resolve import split_name
from kalmanclip.encoders import Backbone
from kalmanclip.encoders.backbone import PRECISIONS, architecture_of
from kalmanclip.errors import ModelError
from kalmanclip.experiments.sources import Source
from kalmanclip.files import sha256_of

PACKAGES = ("torch", "torchvision", "open_clip_torch", "numpy", "pillow", "scikit-learn")
CODE = ("data", "encoders", "filtering", "methods", "metrics", "observation", "prediction")
"""The folders of this package that can change a number."""

_FOLDER = "local-dir:"
# At least two folders deep and not part of a URL or a relative path; what follows the last but one slash stays.
_PATH = re.compile(r"(?<![\w.:/\\~-])(?:[A-Za-z]:)?[/\\](?:[^/\\\s'\"<>|:,;()]+[/\\])+(?=[^/\\\s'\"<>|:,;()]+[/\\])")


def model_name(spelling: str) -> str:
    """Return the name of a backbone; weights in a file or folder count by their own name and their content.

    Args:
        spelling: as `kalmanclip.encoders.load_backbone` takes it, perhaps with a precision (see `in_precision`).
    """
    name, precision = split_precision(spelling)
    architecture_of(name)  # which refuses what is no backbone
    architecture, _, weights = name.partition(":")
    file = Path(weights)
    if name.startswith(_FOLDER):
        folder = Path(name.removeprefix(_FOLDER))
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        hashes = [f"{path.relative_to(folder).as_posix()} {sha256_of(path, ModelError)}" for path in files]
        name = f"{_FOLDER}{folder.resolve().name}@{hashlib.sha256(chr(10).join(hashes).encode()).hexdigest()[:12]}"
    # a tag of open_clip is one word, so it stays even if a file happens to be called like it
    elif (file.suffix or file.name != weights) and file.is_file():
        name = f"{architecture}:{file.name}@{sha256_of(file, ModelError)[:12]}"
    return in_precision(name, precision)


def in_precision(spelling: str, precision: str) -> str:
    """Return the name of a backbone whose towers compute in that precision, ``NAME@bfloat16``; float32 is left out.

    Results in other precisions are results of other models: they are neither mixed nor taken for each other.
    """
    return spelling if precision == "float32" else f"{spelling}@{precision}"


def split_precision(spelling: str) -> tuple[str, str]:
    """Return the backbone and the precision that a spelling stands for."""
    name, _, precision = spelling.rpartition("@")
    return (name, precision) if name and precision in PRECISIONS else (spelling, "float32")


def environment(backbone: Backbone) -> dict[str, Any]:
    """Return versions, the machine, and the weights that were used."""
    device = backbone.device
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: _version(name) for name in PACKAGES},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "weights": backbone.hash,
    }


@cache
def code_version() -> dict[str, str]:
    """Return the package's version and a hash of the files in `CODE`: with equal hashes the same code has run."""
    root = Path(kalmanclip.__file__).parent
    digest = hashlib.sha256()
    files = (file for folder in CODE for file in (root / folder).rglob("*.py"))
    for name, file in sorted((file.relative_to(root).as_posix(), file) for file in files):
        digest.update(f"{name}\n".encode() + file.read_bytes())
    return {"version": kalmanclip.__version__, "source": digest.hexdigest()}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # a build under another distribution name
        return None


def redact(text: str, source: Source) -> str:
    """Return the text of an error without the folders that the data set, the package and the libraries lie in."""
    spelled = [split_name(spelling)[1] for spelling in (source.spelling, *(s.spelling for s in source.shifts))]
    # a spelling may name two folders, with a colon between them
    named = [Path(part).expanduser() for place in spelled for part in (place, *place.split(":")) if part]
    roots = [path.parent if path.is_file() else path for path in named if path.exists()]
    package = Path(kalmanclip.__file__).parents[1]
    roots += [Path(root) for root in (source.root, data_root(), package, sys.prefix) if root]
    forms = {form for root in roots for form in (root.absolute(), root.resolve()) if len(form.parts) > 1}
    for folder in sorted(map(str, forms), key=len, reverse=True):
        text = re.sub(re.escape(folder) + r"(?:[/\\]|(?![\w.-]))", "", text)
    return shorten_paths(text)


def shorten_paths(text: str) -> str:
    """Return the text with only the end of every long path in it."""
    return _PATH.sub("", text)

"""What a result was made with: versions, machine, code."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import kalmanclip
from kalmanclip.encoders import Backbone

NUMERICAL = ("filtering", "observation", "encoders", "methods", "data", "prediction", "metrics")
"""The folders whose code can change a number."""
PACKAGES = ("torch", "torchvision", "open_clip_torch", "numpy", "pillow", "scikit-learn")


def environment(backbone: Backbone) -> dict[str, Any]:
    """Versions, the machine, and the weights that were used."""
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
    """Return the package's version and a hash of the files in `NUMERICAL`.

    Two results of the same hash ran the same code; the command line, reports and the page can change no number.
    """
    root = Path(kalmanclip.__file__).parent
    digest = hashlib.sha256()
    files = [file for folder in NUMERICAL for file in (root / folder).rglob("*.py")]
    for file in sorted(files, key=lambda path: path.relative_to(root).as_posix()):
        digest.update(f"{file.relative_to(root).as_posix()}\n".encode())
        digest.update(file.read_bytes())
    return {"version": kalmanclip.__version__, "source": digest.hexdigest()}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # a build under another distribution name
        return None

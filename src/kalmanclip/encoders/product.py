"""What a product of a frozen backbone depends on, in words: two that read the same are the same for equal batches."""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from kalmanclip.encoders.backbone import Backbone

FORMAT = 2
"""To be raised when this package comes to compute the same product differently."""

_LIBRARIES = ("torch", "torchvision", "open_clip_torch", "pillow")  # decode, resize, encode


def describe_product(backbone: Backbone, name: str, min_side: int, crop: str = "") -> str | None:
    """All that a product depends on besides the images, as JSON.

    The weights, how they are put together, the preprocessing, the versions of the libraries that do it all, and what
    changes the last digits: precision, device, and the number of threads that share a sum.

    Args:
        backbone: the frozen CLIP.
        name: which product of it, such as ``embedding``; see `kalmanclip.encoders.towers.Tower.product`.
        min_side: how far pictures may be shrunk when they are decoded.
        crop: what random crops depend on; nothing for centre crops.

    Returns:
        None if the preprocessing does not say what it does: then nothing may be kept.
    """
    transform = repr(getattr(backbone.preprocess, "transform", backbone.preprocess))
    if " at 0x" in transform:  # the address of an object that has no better name
        return None
    parts = {
        "format": FORMAT,
        "product": name,
        "weights": backbone.hash,
        "architecture": _structure(backbone.model.visual),
        "dtype": str(backbone.dtype),
        "arithmetic": _arithmetic(backbone.device),
        "preprocessing": [transform, repr(getattr(backbone.model.visual, "preprocess_cfg", None))],
        "min_side": min_side,
        "crop": crop,
        "libraries": {library: _version(library) for library in _LIBRARIES},
    }
    return json.dumps(parts, sort_keys=True)


def _arithmetic(device: torch.device) -> list[str]:
    """What decides how sums round on a device."""
    settings = [device.type, torch.get_float32_matmul_precision()]
    if device.type == "cpu":
        return [*settings, torch.backends.cpu.get_cpu_capability(), f"{torch.get_num_threads()} threads"]
    if device.type == "cuda":
        return [*settings, torch.cuda.get_device_name(device), f"tf32 {torch.backends.cudnn.allow_tf32}"]
    return settings


def _structure(tower: torch.nn.Module) -> str:
    """A hash of what weights do not tell: the type of every layer and its plain settings (heads, epsilons, ...)."""
    digest = hashlib.sha256()
    for name, module in tower.named_modules():
        settings = {key: value for key, value in sorted(vars(module).items()) if _is_setting(key, value)}
        digest.update(f"{name} {type(module).__qualname__} {settings}\n".encode())
    return digest.hexdigest()


def _is_setting(name: str, value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_setting(name, item) for item in value)
    # torch's own bookkeeping comes and goes with hooks; a backbone is never in training mode
    return not name.startswith("_") and name != "training" and isinstance(value, bool | int | float | str | None)


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:  # installed in some other way
        return "unknown"

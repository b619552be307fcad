"""What an image is called, wherever it lies: for draws and corruptions that are the same on every computer."""

import hashlib
import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from kalmanclip.data.images import ImageSource, LazyImage
from kalmanclip.data.labelled import LabelledImages


def image_identity(source: ImageSource) -> str:
    """Return a string that tells an image from others: folder and name of a file, a hash of pixels otherwise."""
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        return f"{path.parent.name}/{path.name}"
    if isinstance(source, LazyImage):
        return source.identity
    if isinstance(source, Image.Image):
        return _hash(source.mode.encode(), source.tobytes())
    if isinstance(source, torch.Tensor):
        source = source.detach().cpu().float().numpy()
    array = np.ascontiguousarray(source)
    return _hash(f"{array.dtype}{array.shape}".encode(), array.tobytes())


def fingerprint(images: LabelledImages) -> str:
    """Return a hash of the identities, labels and class names of a set of images, in their order."""
    digest = hashlib.sha256("\n".join(images.class_names).encode())
    for source, label in zip(images.sources, images.labels, strict=True):
        digest.update(f"\n{label} {image_identity(source)}".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _hash(*pieces: bytes) -> str:
    return hashlib.sha256(b"\n".join(pieces)).hexdigest()

"""What an image is called, wherever it lies, and what is in it, whatever it is called.

The *identity* is for draws and corruptions that are the same on every computer; the *content* is for caches, which must
notice when a file changes.
"""

import hashlib
import os
import stat
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from kalmanclip.data.images import ImageSource, LazyImage, load_image
from kalmanclip.data.labelled import LabelledImages
from kalmanclip.errors import ImageError
from kalmanclip.files import sha256_of

_PIECE = 64  # images that a thread takes at a time
_MOMENT = 2e9  # nanoseconds: a file that changed so recently may change again without its times telling
_REMEMBER = 1_000_000  # files

_known: dict[tuple[int, ...], str] = {}
"""Hashes of files by device, inode, size and times: many methods need not read the same files again."""


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


def content_identity(source: ImageSource) -> str | None:
    """Return 64 hexadecimal digits that are equal for equal images, or None if the image cannot be read or told.

    Of a file, its bytes count, not its name; of pixels in memory, what `load_image` makes of them; a `LazyImage` says
    itself what it follows from. A file that cannot be read is no error here: decoding it has the better message.
    """
    try:
        if isinstance(source, str | os.PathLike):
            return _file_hash(Path(source))
        if isinstance(source, LazyImage):
            content = source.content()
            return None if content is None else _hash(b"lazy", content.encode(errors="surrogateescape"))
        image = load_image(source)
    except (ImageError, OSError, ValueError):  # ValueError: a zero byte in the path
        return None
    return _hash(f"pixels {image.size}".encode(), image.tobytes())


def content_identities(sources: Sequence[ImageSource]) -> list[str | None]:
    """Return the content identities of many images; files are read in threads."""
    pieces = [sources[i : i + _PIECE] for i in range(0, len(sources), _PIECE)]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="hash") as pool:
        return [content for piece in pool.map(lambda p: [content_identity(s) for s in p], pieces) for content in piece]


def _file_hash(path: Path) -> str | None:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
        return None
    key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    if key in _known:
        return _known[key]
    content = _hash(b"file", sha256_of(path, ImageError).encode())
    if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _MOMENT:
        if len(_known) >= _REMEMBER:
            _known.clear()
        _known[key] = content
    return content


def _hash(*pieces: bytes) -> str:
    return hashlib.sha256(b"\n".join(pieces)).hexdigest()

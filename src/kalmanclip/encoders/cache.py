"""Products of a frozen backbone on disk, so that no batch of images is decoded and encoded twice.

A cache is a folder. In it every *product* (say, the embeddings of centre crops by these weights; see
`describe_product`) has a folder of its own, and in that every batch has a file, a shard, named by a hash of what the
images of the batch hold. The key is the batch and not the image because of rounding: in a batch of another
size, or at another place in it, the same image comes out with other last digits. As it is, results are the same to the
last bit with and without a cache, whatever is in it.

Files appear completely or not at all, under names that follow from what is in them. So processes need no locks: two
that encode the same batch at the same time write the same file twice. Deleting any part of the folder is safe at any
time.

A cache never fails a run. A damaged file counts as absent and is replaced; if the folder cannot be written to, or is as
large as it may be, nothing more is kept. Each is said once, as a `RuntimeWarning`.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

from kalmanclip.encoders.backbone import Backbone
from kalmanclip.encoders.towers import Activations
from kalmanclip.errors import KalmanClipError
from kalmanclip.files import write_atomic

Encode = Callable[[Sequence[int]], Generator[Activations, None, None]]
"""Positions of images to their activations, in batches (B, ...) and in that order."""

VARIABLE = "KALMANCLIP_CACHE"
"""The environment variable that names the folder; ``off`` or nothing: no cache."""

LIMIT_BYTES = 16 << 30
"""How large the folder may grow. An image takes 2 kB as an embedding of 512 numbers, and 0.6 MB as activations inside
the tower of a ViT-B/16."""

FORMAT = 2
"""To be raised when this package comes to compute the same product differently."""
_LIBRARIES = ("torch", "torchvision", "open_clip_torch", "pillow")  # decode, resize, encode
_ABANDONED = 24 * 3600  # seconds after which a temporary file has no writer any more


def cache_folder(choice: str | None = None) -> Path | None:
    """Return the folder for cached products, or None for no cache.

    Args:
        choice: a folder, or ``off`` (or nothing at all) for no cache; None takes ``$KALMANCLIP_CACHE``, and where that
            is not set ``kalmanclip/features`` in the user's cache folder (``$XDG_CACHE_HOME``, else ``~/.cache``).
    """
    choice = os.environ.get(VARIABLE) if choice is None else choice
    try:
        if choice is not None:
            return None if choice.strip().lower() in ("", "off") else Path(choice).expanduser()
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        # the XDG specification: a relative path is to be ignored
        return (base if base.is_absolute() else Path.home() / ".cache") / "kalmanclip" / "features"
    except RuntimeError:  # a user without a home
        return None


class FeatureCache:
    """A folder of cached products; see the top of this module.

    Args:
        folder: is made when something is first kept.
        limit_bytes: how large it may grow.

    Attributes:
        served: images whose products were found here rather than computed.
        added: images whose products were computed and kept.
    """

    def __init__(self, folder: str | os.PathLike[str], limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder, self.limit_bytes = Path(folder), limit_bytes
        self.served = self.added = 0
        self._size: int | None = None  # of the folder, as far as this process knows; None: not looked yet
        self._writable = True
        self._said: set[str] = set()

    def place(self, product: str, images: Sequence[str]) -> Path:
        """Return where the product of a batch is, or would be, by the content identities of its images."""
        batch = hashlib.sha256("\n".join((product, *images)).encode()).hexdigest()
        return self.folder / hashlib.sha256(product.encode()).hexdigest()[:16] / f"{batch}.safetensors"

    def read(self, place: Path) -> Activations | None:
        """Return what is stored there, on the CPU; None if there is nothing, or nothing good."""
        try:
            rows = read_shard(place, place.stem)
        except FileNotFoundError:
            return None
        except (DamagedShard, OSError) as error:
            self._say("damaged", f"A file in the cache cannot be used; its images are encoded again ({place}: {error})")
            return None
        self.served += len(rows[0])
        return rows

    def write(self, place: Path, product: str, rows: Activations) -> None:
        """Store the product of a batch, if that is possible; after the first failure nothing is tried any more."""
        if not self._writable:
            return
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if self._size is None:
                self._size = self._measure()
            self._size += sum(column.nbytes for column in rows)
            if self._size > self.limit_bytes:
                raise KalmanClipError(f"it has reached its limit of {self.limit_bytes:,} bytes; delete what is old")
            write_shard(place, place.stem, product, tuple(column.cpu() for column in rows))
            self.added += len(rows[0])
        except (OSError, KalmanClipError) as error:
            self._writable = False
            self._say("write", f"Nothing more is kept in the cache {self.folder}: {error}")

    def trouble(self) -> str | None:
        """Return why nothing more can be stored in the folder, None if it can. What is there is served in any case."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder) as stream:
                stream.write(bytes(4096))  # a full disk has room for names
        except OSError as error:
            return f"The cache {self.folder} cannot be written to ({error.strerror or error})."
        if self._measure() >= self.limit_bytes:
            return f"The cache {self.folder} has reached its limit of {self.limit_bytes:,} bytes; delete what is old."
        return None

    def _measure(self) -> int:
        """Return how large the folder is; delete files that killed processes left half-written."""
        size = 0
        for path in self.folder.glob("*/*"):
            with suppress(OSError):  # somebody else may be tidying up
                status = path.stat()
                if path.name.startswith(".tmp-") and time.time() - status.st_mtime > _ABANDONED:
                    path.unlink()
                else:
                    size += status.st_size
        return size

    def _say(self, kind: str, message: str) -> None:
        """Warn, the first time that there is reason for a warning of this kind."""
        if kind not in self._said:
            self._said.add(kind)
            warnings.warn(message, RuntimeWarning, stacklevel=3)


def through_cache(
    cache: FeatureCache,
    product: str,
    images: Sequence[str | None],
    encode: Encode,
    device: torch.device,
    batch_size: int,
) -> Generator[Activations, None, None]:
    """Yield what `encode` makes of N images, in the same batches; those that the cache has are not encoded again.

    Args:
        cache: where to look, and to store what is new.
        product: all that the activations depend on besides the images; see `describe_product`.
        images: the content identities of the N images; a batch with None in it is not stored.
        encode: positions to activations, in batches of ``batch_size``; the last one may be smaller.
        device: where the activations are wanted.
        batch_size: images per batch.
    """
    parts = [range(start, min(start + batch_size, len(images))) for start in range(0, len(images), batch_size)]
    places: list[Path | None] = []
    for part in parts:
        keys = [key for key in images[part.start : part.stop] if key is not None]
        places.append(cache.place(product, keys) if len(keys) == len(part) else None)
    # `os.path.isfile` does not raise, whatever the folder is; a file may still turn out to be damaged
    known = [place is not None and os.path.isfile(place) for place in places]  # noqa: PTH113
    # one call for all that is missing: it decodes ahead of what is encoded. Only the last batch of all may be short,
    # so that its batches are the parts.
    missing = [i for part, at_hand in zip(parts, known, strict=True) if not at_hand for i in part]
    with closing(encode(missing)) as coming:
        for part, place, at_hand in zip(parts, places, known, strict=True):
            rows = cache.read(place) if at_hand and place is not None else None
            if rows is None:
                (rows,) = encode(part) if at_hand else islice(coming, 1)  # at hand a moment ago: damaged, or deleted
                if place is not None:
                    cache.write(place, product, rows)
            yield tuple(column.to(device) for column in rows)


def describe_product(backbone: Backbone, name: str, min_side: int, crop: str = "") -> str | None:
    """Return all that a product depends on besides the images, as JSON.

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
    """Return what decides how sums round on a device."""
    settings = [device.type, torch.get_float32_matmul_precision()]
    if device.type == "cpu":
        return [*settings, torch.backends.cpu.get_cpu_capability(), f"{torch.get_num_threads()} threads"]
    if device.type == "cuda":
        return [*settings, torch.cuda.get_device_name(device), f"tf32 {torch.backends.cudnn.allow_tf32}"]
    return settings


def _structure(tower: torch.nn.Module) -> str:
    """Return a hash of what weights do not tell: types of layers and their plain settings (heads, epsilons, ...)."""
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


class DamagedShard(Exception):
    """A file that is not, or no longer, the shard that it should be: the activations of one batch, with a checksum."""


def write_shard(path: Path, key: str, product: str, rows: Activations) -> None:
    """Write the activations (B, ...) of a batch, on the CPU, under the key that `read_shard` will ask for."""
    columns = {str(i): column.contiguous() for i, column in enumerate(rows)}
    checksum = _checksum(tuple(columns.values()))
    write_atomic(path, save(columns, {"key": key, "product": product, "crc32": checksum}))


def read_shard(path: Path, key: str) -> Activations:
    """Return the activations (B, ...) of a batch, on the CPU.

    Raises:
        DamagedShard: the file does not hold what was written for this key.
        OSError: it cannot be read.
    """
    data = path.read_bytes()  # not mapped: a mapped file that somebody cuts short would end the process
    try:
        columns = load(data)
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        # a copy: what torch allocates is aligned, as it would be fresh from the model, and sums may round by that
        rows = tuple(columns[str(i)].clone() for i in range(len(columns)))
        intact = bool(rows) and (metadata["key"], metadata["crc32"]) == (key, _checksum(rows))
    except Exception as error:  # safetensors and json have many ways to say it
        raise DamagedShard(f"it is cut short or no shard: {error}") from error
    if not intact:
        raise DamagedShard("it belongs to other images, or its checksum is wrong")
    return rows


def _checksum(rows: Activations) -> str:
    total = 0
    for column in rows:
        total = zlib.crc32(column.reshape(-1).view(torch.uint8).numpy().data, total)
    return f"{total:08x}"

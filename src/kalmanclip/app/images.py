"""Pictures of the page: uploads, checked before their pixels are decoded, and previews of the training pictures."""

from __future__ import annotations

import base64
import io
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from PIL import Image

from kalmanclip.data import read_images
from kalmanclip.data.decoding import decode_bytes
from kalmanclip.data.images import LazyImage, image_identity, load_image
from kalmanclip.errors import DataError, ImageError

MAX_BYTES = 20 << 20  # of one uploaded file
MAX_PIXELS = 50_000_000  # of one picture: a small file can unpack to any size
MAX_SHAPE = 50  # times as long as wide: models enlarge the short side of a thin picture, and the long one with it
MAX_PICTURES = 100  # to learn from at once
MAX_WAITING = MAX_PICTURES * MAX_BYTES  # of all uploads that nothing was done with yet
STALE = 1800  # seconds after which such an upload is deleted
UPLOAD_SIDE = 1024  # pixels of the short side: more than random crops ask for, and many pictures fit in memory
PREVIEW_SIDE = 160  # pixels, of a training picture


class Upload(LazyImage):
    """A picture from the page (in mode RGB), in memory only: nothing made of it goes into a cache."""

    def __init__(self, image: Image.Image, name: str) -> None:
        self.image, self.name = image, name

    @property
    def identity(self) -> str:
        """The name of the file."""
        return self.name

    def load(self, max_pixels: int) -> Image.Image:
        """Return a copy of the image."""
        return self.image.copy()


class ReceivedPicture(LazyImage):
    """A picture of a request, decoded when it is its turn: many of them at once would not fit in memory.

    Args:
        stream: the file, of at most `MAX_BYTES`.
        name: what to call it.
    """

    names_itself = True

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream, self.name = stream, name

    @property
    def identity(self) -> str:
        """The name of the file."""
        return self.name

    def load(self, max_pixels: int) -> Image.Image:
        """Return the image."""
        return self.read().image

    def read(self) -> Upload:
        """Return it decoded."""
        self._stream.seek(0)
        return _decoded(lambda: decode_bytes(self._stream.read(), self.name, MAX_PIXELS), self.name)


def read_upload(path: Path) -> Upload:
    """Decode an uploaded file. Messages about it name the file, not where it lies."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ImageError(too_large(path.name))
        return _decoded(lambda: load_image(path, max_pixels=MAX_PIXELS), path.name, str(path))
    except FileNotFoundError as error:
        raise ImageError(f"{path.name} is no longer here; choose it again") from error


def too_large(name: str) -> str:
    """Return what is said about a file of more than `MAX_BYTES`."""
    return f"{name} is larger than {MAX_BYTES >> 20} MB; make it smaller"


def _decoded(decode: Callable[[], Image.Image], name: str, place: str = "") -> Upload:
    """Return a picture of a shape that can be looked at, and no larger than needed.

    Args:
        decode: decodes it.
        name: of the file.
        place: what messages of ``decode`` call it.
    """
    try:
        image = decode()
    except ImageError as error:
        message = str(error).replace(place or name, name)
        raise ImageError(message.partition(", or, if you trust it")[0]) from error  # the rest is about Python
    short, long = sorted(image.size)
    if long > MAX_SHAPE * short:
        raise ImageError(f"{name} has {image.width} x {image.height} pixels: too long and thin to look at")
    if short > UPLOAD_SIDE:
        size = image.width * UPLOAD_SIDE // short, image.height * UPLOAD_SIDE // short
        image = image.resize(size, Image.Resampling.BICUBIC)
    return Upload(image, name)


def take_uploads(payload: Any, folder: Path) -> list[Upload]:
    """Decode the uploads that a request names; however that ends, their files are gone afterwards.

    A request may name anything. Only files that an upload has put into the folder are touched, each of which lies in
    a folder of its own there; addresses are not fetched. ``payload`` is what the browser sent for a field of files:
    nothing, one table with a ``path``, or a list of them.
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
    """Tell whether a path is where an upload would lie: in a folder of its own, in the folder of all uploads."""
    if not isinstance(path, str) or "\0" in path:
        return False
    return Path(path).is_absolute() and Path(path).resolve().parent.parent == folder.resolve()


def waiting_bytes(folder: Path) -> int:
    """Return how much the folder of all uploads holds, once those that nothing was done with for long are deleted."""
    total = 0
    for place in folder.iterdir():
        with suppress(OSError):  # somebody else may take it
            if time.time() - place.stat().st_mtime > STALE:
                shutil.rmtree(place) if place.is_dir() else place.unlink()
            else:
                total += sum(file.stat().st_size for file in ([place] if place.is_file() else place.iterdir()))
    return total


def preview(image: Image.Image, side: int) -> str:
    """Return the picture, at most ``side`` pixels long and wide, as an address that holds its pixels alone."""
    small = image.convert("RGB")
    small.thumbnail((side, side))
    bare = Image.new("RGB", small.size)  # without what the file says about place, time and camera
    bare.paste(small)
    stream = io.BytesIO()
    bare.save(stream, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode()


class Gallery:
    """Previews of the training pictures, found by the names that an adapter knows them by.

    Args:
        folder: under which they lie; None: only those added on the page can be shown.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._paths: dict[str, Path | None] = {}
        self._previews: dict[tuple[int, str], str | None] = {}
        for path in [] if folder is None else read_images(folder):
            name = image_identity(path)
            self._paths[name] = None if name in self._paths else path  # of two with one name, neither is sure

    def add(self, position: int, name: str, image: Image.Image) -> None:
        """Keep a preview of the training picture number ``position``."""
        self._previews[position, name] = preview(image, PREVIEW_SIDE)

    def show(self, position: int, name: str) -> str | None:
        """Return a preview of the training picture number ``position``; None if it is not to be had."""
        if (position, name) not in self._previews:
            path, shown = self._paths.get(name), None
            if path is not None:
                with suppress(ImageError):  # the answer is worth more than a preview
                    shown = preview(load_image(path, PREVIEW_SIDE, MAX_PIXELS), PREVIEW_SIDE)
            self._previews[position, name] = shown
        return self._previews[position, name]

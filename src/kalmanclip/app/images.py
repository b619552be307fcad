"""Pictures of the page: uploads, checked before their pixels are decoded, and previews of the training pictures."""

from __future__ import annotations

import base64
import io
import shutil
from pathlib import Path
from typing import Any

from PIL import Image

from kalmanclip.data import read_images
from kalmanclip.data.images import LazyImage, image_identity, load_image
from kalmanclip.errors import DataError, ImageError

MAX_BYTES = 20 << 20
"""Of one uploaded file."""

MAX_PIXELS = 50_000_000
"""Of one picture: a small file can unpack to any size."""

MAX_SHAPE = 50
"""Times as long as wide. Models enlarge the short side of a thin picture, and the long one with it."""

MAX_PICTURES = 100
"""Of one lesson."""

UPLOAD_SIDE = 1024
"""Short side of an upload in pixels: more than any model's random crops ask for, and many pictures fit in memory."""

PREVIEW_SIDE = 160
"""Of the preview of a training picture, in pixels."""


class Upload(LazyImage):
    """A picture from the page, in memory only: nothing made of it goes into a cache.

    Args:
        image: in mode RGB.
        name: of the file.
    """

    def __init__(self, image: Image.Image, name: str) -> None:
        self.image, self.name = image, name

    @property
    def identity(self) -> str:
        """The name of the file."""
        return self.name

    def load(self, max_pixels: int) -> Image.Image:
        """Return a copy of the image."""
        return self.image.copy()


def read_upload(path: Path) -> Upload:
    """Decode an uploaded file.

    Raises:
        ImageError: it is no picture, damaged or too large. The message names the file, not where it lies.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ImageError(f"{path.name} is larger than {MAX_BYTES >> 20} MB; make it smaller")
        image = load_image(path, max_pixels=MAX_PIXELS)
    except FileNotFoundError as error:
        raise ImageError(f"{path.name} is no longer here; choose it again") from error
    except ImageError as error:
        raise ImageError(_for_people(str(error).replace(str(path), path.name))) from error
    short, long = sorted(image.size)
    if long > MAX_SHAPE * short:
        raise ImageError(f"{path.name} has {image.width} x {image.height} pixels: too long and thin to look at")
    if short > UPLOAD_SIDE:
        size = image.width * UPLOAD_SIDE // short, image.height * UPLOAD_SIDE // short
        image = image.resize(size, Image.Resampling.BICUBIC)
    return Upload(image, path.name)


def take_uploads(payload: Any, folder: Path) -> list[Upload]:
    """Decode the uploads that a request names; however that ends, their files are gone afterwards.

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
    """Tell whether a path is where an upload would lie: in a folder of its own, in the folder of all uploads."""
    if not isinstance(path, str) or "\0" in path:
        return False
    return Path(path).is_absolute() and Path(path).resolve().parent.parent == folder.resolve()


def preview(image: Image.Image, side: int) -> str:
    """Return the picture, at most ``side`` pixels long and wide, as an address that holds its pixels alone."""
    small = image.convert("RGB")
    small.thumbnail((side, side))
    bare = Image.new("RGB", small.size)  # without what the file says about place, time and camera
    bare.paste(small)
    stream = io.BytesIO()
    bare.save(stream, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode()


def _for_people(message: str) -> str:
    """Return a message without the advice for those who write Python."""
    return message.partition(", or, if you trust it")[0]


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
            self._previews[position, name] = self._from_disk(name)
        return self._previews[position, name]

    def _from_disk(self, name: str) -> str | None:
        path = self._paths.get(name)
        try:
            return None if path is None else preview(load_image(path, PREVIEW_SIDE, MAX_PIXELS), PREVIEW_SIDE)
        except ImageError:  # it was readable when it was learned; the answer is worth more than its preview
            return None

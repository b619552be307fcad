"""Previews of the training pictures: an adapter keeps their names, and the pictures lie wherever they lie."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from kalmanclip.app.limits import MAX_PIXELS, preview
from kalmanclip.data import load_image, read_images
from kalmanclip.data.images import image_identity
from kalmanclip.errors import ImageError

SIDE = 160
"""Of a preview, in pixels."""


class Gallery:
    """Finds training pictures by the names that an adapter knows them by.

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
        """Keeps a preview of the training picture number ``position``."""
        self._previews[position, name] = preview(image, SIDE)

    def show(self, position: int, name: str) -> str | None:
        """A preview of the training picture number ``position``; None if it is not to be had."""
        if (position, name) not in self._previews:
            self._previews[position, name] = self._from_disk(name)
        return self._previews[position, name]

    def _from_disk(self, name: str) -> str | None:
        path = self._paths.get(name)
        try:
            return None if path is None else preview(load_image(path, SIDE, MAX_PIXELS), SIDE)
        except ImageError:  # it was readable when it was learned; the answer is worth more than its preview
            return None

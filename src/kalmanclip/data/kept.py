"""Images that are decoded once and stay in memory: for training with fresh crops of the same few pictures."""

import threading
from collections.abc import Iterable

from PIL import Image

from kalmanclip.data.identity import content_identity, image_identity
from kalmanclip.data.images import ImageSource, LazyImage, load_image, names_itself
from kalmanclip.memory import free_bytes


class Room:
    """Memory that many images share.

    Args:
        size: in bytes.
    """

    def __init__(self, size: int) -> None:
        self._left = size
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Return whether there is room for so many bytes, and take it."""
        with self._lock:
            fits = size <= self._left
            self._left -= size if fits else 0
            return fits


class KeptImage(LazyImage):
    """An image that is decoded when it is first needed, and kept where there is room.

    Args:
        source: what `load_image` takes.
        min_side: as in `load_image`.
        room: shared with other images.
    """

    def __init__(self, source: ImageSource, min_side: int | None, room: Room) -> None:
        self._source, self._min_side, self._room = source, min_side, room
        self._image: Image.Image | None = None

    @property
    def identity(self) -> str:
        """That of the image itself."""
        return image_identity(self._source)

    def content(self) -> str | None:
        """That of the image itself, and how far it may be shrunk."""
        content = content_identity(self._source)
        return None if content is None else f"{content}:{self._min_side}"

    @property
    def names_itself(self) -> bool:
        """As the image itself does."""
        return names_itself(self._source)

    def load(self, max_pixels: int) -> Image.Image:
        """Return the image in mode RGB."""
        if self._image is None:  # two threads may come here at once; then both decode, and one result stays
            image = load_image(self._source, self._min_side, max_pixels)
            if not self._room.take(3 * image.width * image.height):
                return image
            self._image = image
        return self._image.copy()


def keep_decoded(
    sources: Iterable[ImageSource], min_side: int | None = None, keep_bytes: int | None = None
) -> list[ImageSource]:
    """Return the same images, each decoded only once as long as there is room for all of them together.

    Args:
        sources: the images.
        min_side: as in `load_image`.
        keep_bytes: how much memory their pixels may take; what goes beyond is decoded again every time. None: a
            quarter of what is free.
    """
    room = Room(free_bytes() // 4 if keep_bytes is None else keep_bytes)
    return [KeptImage(source, min_side, room) for source in sources]

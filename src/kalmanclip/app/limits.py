"""What an upload may be, checked before its pixels are decoded; and what is shown of a picture."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from PIL import Image

from kalmanclip.data.images import LazyImage, load_image
from kalmanclip.errors import ImageError

MAX_BYTES = 20 << 20
"""Of one uploaded file."""

MAX_PIXELS = 50_000_000
"""Of one picture: a small file can unpack to any size."""

MAX_SHAPE = 50
"""Times as long as wide. Models enlarge the short side of a thin picture, and the long one with it."""

MAX_PICTURES = 100
"""Of one lesson."""

SIDE = 1024
"""Short side in pixels that is kept: more than any model's random crops ask for, and many pictures fit in memory."""


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
    """Decodes an uploaded file.

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
    if short > SIDE:
        image = image.resize((image.width * SIDE // short, image.height * SIDE // short), Image.Resampling.BICUBIC)
    return Upload(image, path.name)


def preview(image: Image.Image, side: int) -> str:
    """The picture, at most ``side`` pixels long and wide, as an address that holds its pixels and nothing else."""
    small = image.convert("RGB")
    small.thumbnail((side, side))
    bare = Image.new("RGB", small.size)  # without what the file says about place, time and camera
    bare.paste(small)
    stream = io.BytesIO()
    bare.save(stream, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode()


def _for_people(message: str) -> str:
    """Without the advice for those who write Python."""
    return message.partition(", or, if you trust it")[0]

"""Decode one file, PIL image or array of any kind (16 bits, CMYK, transparent, ...) to upright 8-bit RGB."""

import io
import stat
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from PIL import ExifTags, Image

from kalmanclip.errors import ImageError

# Only these decoders are tried: Pillow has others that start programs (EPS) or belong to no photograph.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF")

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# A PIL image that somebody opened but nobody loaded yet may be asked for by two threads at once.
_LAZY_LOAD = threading.Lock()

_CHANNELS = (1, 3, 4)  # grey, RGB, RGBA
_FLOAT_SLACK = 1e-3  # how far float rounding (half precision included) may stray outside [0, 1]


def decode_file(path: Path, min_side: int | None, max_pixels: int) -> Image.Image:
    """Return the image in a file; `images.load_image` documents the arguments."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ImageError(f"{path} is a folder, not an image; give the files in it (read_images lists them)")
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
            raise ImageError(f"{path} is not an ordinary file; give an image file")
        if status.st_size == 0:
            raise ImageError(f"{path} is empty (0 bytes); remove it or copy it again")
        with path.open("rb") as stream:
            return _decode(stream, str(path), min_side, max_pixels)
    except ImageError:
        raise
    except FileNotFoundError as error:
        what = "is a link to a file that is gone" if path.is_symlink() else "does not exist"
        raise ImageError(f"{path} {what}; check the path") from error
    except PermissionError as error:
        raise ImageError(f"{path} may not be read; change its permissions (chmod u+r) or remove it") from error
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise ImageError(f"{path} cannot be opened: {error}; check the path and the disk") from error


def decode_bytes(data: bytes, name: str, max_pixels: int) -> Image.Image:
    """Return the image in the bytes of a file; `name` is what to call it in messages."""
    return _decode(io.BytesIO(data), name, None, max_pixels)


def decode_pil(source: Image.Image) -> Image.Image:
    """Return a PIL image converted, without changing or sharing it."""
    with naming("the PIL image"):
        with _LAZY_LOAD:  # loading the pixels and the EXIF both fill caches inside `source`
            _load_pixels(source)
            upright = _upright(source)
        image = rgb_from_image(upright)
        return image.copy() if image is source else image


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Put `name` in front of complaints that do not name the image."""
    try:
        yield
    except ImageError as error:
        raise ImageError(f"{name} {error}") from error.__cause__


def _decode(stream: BinaryIO, name: str, min_side: int | None, max_pixels: int) -> Image.Image:
    """Decode an open file to upright RGB."""
    with naming(name):
        image = _identify(stream, name)
        width, height = image.size
        if width * height > max_pixels:
            raise ImageError(
                f"has {width} x {height} pixels, more than the limit of {max_pixels}; make it smaller, or, "
                "if you trust it, use load_image(path, max_pixels=...) in place of the path"
            )
        if min_side is not None:
            # A JPEG can be decoded at a fraction of its size, which must divide both sides: otherwise the last column
            # or row would stand for less than a whole one, and everything would shift by up to a pixel.
            scales = [s for s in (8, 4, 2) if width % s == height % s == 0 and min(width, height) >= 2 * s * min_side]
            if scales:
                image.draft(None, (width // scales[0], height // scales[0]))  # no effect on other formats
        _load_pixels(image)
        return rgb_from_image(_upright(image))


def _identify(stream: BinaryIO, name: str) -> Image.Image:
    """Read the header only.

    This is the heart of `Image.open` without its own limit, a global that could be changed neither locally
    nor safely in threads, and which warns at half of `MAX_PIXELS` and refuses below it.
    """
    Image.init()
    prefix = stream.read(16)
    refusal: Exception | None = None
    for kind in _FORMATS:
        if kind not in Image.OPEN:  # this Pillow was built without it
            continue
        factory, accept = Image.OPEN[kind]
        try:
            accepted = accept is None or accept(prefix)
            if not accepted or isinstance(accepted, str):  # a string says what is missing to read it
                continue
            stream.seek(0)
            return factory(stream, name)
        except (SyntaxError, IndexError, TypeError, struct.error) as error:
            refusal = error  # how Pillow's readers say "not mine": another may take it
        except Exception as error:
            raise ImageError(_damaged(error)) from error
    if refusal is not None:
        raise ImageError(_damaged(refusal)) from refusal
    raise ImageError(
        "is not an image that can be read, whatever its name says; remove it, or open it in an image "
        "program and save it as PNG or JPEG"
    )


def _load_pixels(image: Image.Image) -> None:
    """Decode, turning whatever a damaged file provokes into `ImageError`."""
    if min(image.size) < 1:
        raise ImageError(f"has no pixels ({image.width} x {image.height})")
    try:
        image.load()
    except MemoryError:
        raise
    except Exception as error:  # decoders fail with nearly every type there is
        raise ImageError(_damaged(error)) from error


def _damaged(error: Exception) -> str:
    if isinstance(error, Image.DecompressionBombError):  # some of Pillow's decoders have a limit of their own
        return f"is too large ({error}); make it smaller"
    return f"is damaged or truncated ({error}); copy or download it again, or remove it"


def _upright(image: Image.Image) -> Image.Image:
    """Turn a loaded image as its EXIF orientation says."""
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # damaged EXIF must not cost a good picture
        return image
    return image.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else image


def rgb_from_image(image: Image.Image) -> Image.Image:
    """Return a loaded PIL image in mode RGB; an RGB image without transparency is returned as it is.

    - grey, 1-bit, palette, YCbCr, HSV, LAB: Pillow's own conversion;
    - 16-bit grey (and integer grey, which is how Pillow holds 16-bit PGM and older 16-bit PNG): 0..65535 is
      scaled to 0..255 and rounded; float grey: 0..1 likewise;
    - transparency of any kind is composited on *white*;
    - CMYK: Pillow's plain formula; colour profiles are not applied.

    Errors do not name the image: the caller knows where it came from.
    """
    if image.mode.startswith("I"):
        return _grey_from_integers(image)
    if image.mode == "F":
        return rgb_from_array(np.asarray(image))
    if image.has_transparency_data:
        if image.mode == "La":  # premultiplied grey has no direct way to RGBA
            image = image.convert("LA")
        colours = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", colours.size, "white"), colours).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def rgb_from_array(array: Any) -> Image.Image:
    """Return an array of pixels as a PIL image in mode RGB.

    Args:
        array: numpy (H, W), (H, W, 1), (H, W, 3) or (H, W, 4); or a torch tensor of these shapes or with the
            channels first, (1 | 3 | 4, H, W). A tensor that could be read either way, such as (3, 8, 3), is
            channels first, as in torchvision. Values: uint8 in 0..255, uint16 in 0..65535, bool,
            or float in [0, 1]. A fourth channel
            is alpha, composited on white.
    """
    if isinstance(array, torch.Tensor):
        tensor = array.detach().cpu()
        if tensor.ndim == 3 and tensor.shape[0] in _CHANNELS:
            tensor = tensor.movedim(0, -1)
        # numpy has no bfloat16
        array = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in _CHANNELS):
        raise ImageError(
            f"has shape {tuple(array.shape)}; one image is (height, width) or (height, width, 1, 3 or 4 "
            "channels); if the channels come first use array.transpose(1, 2, 0)"
        )
    if array.size == 0:
        raise ImageError(f"has no pixels (shape {tuple(array.shape)})")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    return rgb_from_image(Image.fromarray(np.ascontiguousarray(_bytes_from_values(array))))


def _bytes_from_values(array: np.ndarray) -> np.ndarray:
    """Scale checked values to uint8, same shape."""
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * 255
    if array.dtype == np.uint16:
        return ((array.astype(np.int32) + 128) // 257).astype(np.uint8)
    if not np.issubdtype(array.dtype, np.floating):
        raise ImageError(f"has values of type {array.dtype}; use uint8 in 0..255, uint16 in 0..65535 or float in 0..1")
    low, high = float(array.min()), float(array.max())
    if not (low >= -_FLOAT_SLACK and high <= 1 + _FLOAT_SLACK):  # written so that NaN fails too
        raise ImageError(
            f"has float values from {low:g} to {high:g}; they must lie in 0..1 (divide by 255, or use uint8)"
        )
    scaled: np.ndarray = np.rint(array.clip(0, 1) * 255)
    return scaled.astype(np.uint8)


def _grey_from_integers(image: Image.Image) -> Image.Image:
    """Convert 16-bit values, (H, W), to RGB."""
    values = np.asarray(image).astype(np.int32)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65535:
        raise ImageError(
            f"has integer values from {low} to {high}; only 16-bit grey (0..65535) is understood; "
            "scale it and save it with 8 bits"
        )
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):  # Pillow honours this only for 8-bit grey
        values[values == transparent] = 65535
    return Image.fromarray(((values + 128) // 257).astype(np.uint8)).convert("RGB")

"""Whatever the pixels are (grey, 16 bits, palette, CMYK, transparent, an array), make them 8-bit RGB."""

from typing import Any

import numpy as np
import torch
from PIL import Image

from kalmanclip.errors import ImageError

_CHANNELS = (1, 3, 4)  # grey, RGB, RGBA
_FLOAT_SLACK = 1e-3  # how far float rounding (half precision included) may stray outside [0, 1]


def rgb_from_image(image: Image.Image) -> Image.Image:
    """Return a loaded PIL image in mode RGB; an RGB image without transparency is returned as it is.

    - grey, 1-bit, palette, YCbCr, HSV, LAB: Pillow's own conversion;
    - 16-bit grey (and integer grey, which is how Pillow holds 16-bit PGM and older 16-bit PNG): 0..65535 is
      scaled to 0..255 and rounded; float grey: 0..1 likewise;
    - transparency of any kind is composited on *white*;
    - CMYK: Pillow's plain formula; colour profiles are not applied.

    Raises:
        ImageError: the values do not fit these ranges. The message does not name the image: the caller knows
            where it came from.
    """
    if image.mode.startswith("I"):
        return _grey_from_integers(image)
    if image.mode == "F":
        return rgb_from_array(np.asarray(image))
    if image.has_transparency_data:
        return _on_white(image)
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
    """16-bit values, (H, W), to RGB."""
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


def _on_white(image: Image.Image) -> Image.Image:
    """Composite a transparent image on white."""
    if image.mode == "La":  # premultiplied grey has no direct way to RGBA
        image = image.convert("LA")
    colours = image.convert("RGBA")
    white = Image.new("RGBA", colours.size, "white")
    return Image.alpha_composite(white, colours).convert("RGB")

"""Fresh random crops where the model is: pictures are decoded once, each pass cuts others out of them.

A crop is resized by two matrix products per picture, one for its rows and one for its columns: Pillow's bicubic filter,
antialiased, of which `RandomCrop.cut` is the slow reference. What is random is what that one draws, so a picture's crop
is the same from both, but for the rounding to whole numbers that Pillow does twice.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kalmanclip.data.images import ImageSource, cache_decoded, load_image
from kalmanclip.encoders.preprocess import RandomCrop
from kalmanclip.process import free_bytes


class Pictures:
    """Decoded pictures, and their crops as bytes on a device.

    They stay on the device while they take no more than a quarter of what is free there; those that come later are kept
    in the computer's memory, as `cache_decoded` does.

    Args:
        sources: the pictures.
        min_side: how far decoding may shrink them.
        device: where crops are wanted.
    """

    def __init__(self, sources: Sequence[ImageSource], min_side: int, device: torch.device) -> None:
        self._sources, self._min_side, self._device = sources, min_side, device
        self._rest = cache_decoded(sources, min_side)
        self._checksums: dict[int, int] = {}
        self._there: dict[int, Tensor] = {}
        self._room = free_bytes(device) // 4

    def crops(self, positions: Sequence[int], crop: RandomCrop) -> Tensor:
        """Return the crops of some pictures: (B, side, side, 3), whole numbers in 0..255 as float32."""
        pictures, boxes, flips = [], [], []
        for position in positions:
            picture = self._picture(position)
            box, flip = crop.draw((picture.shape[1], picture.shape[0]), self._checksums[position])
            pictures.append(picture)
            boxes.append(box)
            flips.append(flip)
        return cut_boxes(pictures, boxes, flips, crop.backbone.image_size)

    def _picture(self, position: int) -> Tensor:
        """Return a picture (h, w, 3) on the device."""
        if position in self._there:
            return self._there[position]
        known = position in self._checksums  # and did not fit
        pixels = np.array(load_image((self._rest if known else self._sources)[position], self._min_side))
        if not known:
            self._checksums[position] = zlib.crc32(pixels.tobytes())
        picture = torch.from_numpy(pixels).to(self._device)
        if not known and picture.nbytes <= self._room:
            self._room -= picture.nbytes
            self._there[position] = picture
        return picture


def cut_boxes(pictures: Sequence[Tensor], boxes: Sequence[tuple[int, ...]], flips: Sequence[bool], side: int) -> Tensor:
    """Return boxes of pictures, resized to squares and perhaps flipped: (B, side, side, 3) in float32.

    Args:
        pictures: bytes (h, w, 3), of any sizes.
        boxes: left, upper, right, lower, of each.
        flips: whether each is mirrored left to right.
        side: of the results.
    """
    device = pictures[0].device
    heights, widths = ([picture.shape[axis] for picture in pictures] for axis in (0, 1))
    padded = torch.zeros(len(pictures), max(heights), max(widths), 3, dtype=torch.uint8, device=device)
    for row, picture in zip(padded, pictures, strict=True):
        row[: picture.shape[0], : picture.shape[1]] = picture
    left, upper, right, lower = torch.tensor(boxes, dtype=torch.float32).to(device).unbind(dim=1)
    rows = bicubic(upper, lower, torch.tensor(heights, device=device), padded.shape[1], side)
    columns = bicubic(left, right, torch.tensor(widths, device=device), padded.shape[2], side)
    mirrored = torch.tensor(flips, device=device).view(-1, 1, 1)
    columns = torch.where(mirrored, columns.flip(1), columns)
    x = torch.bmm(rows, padded.flatten(2).float()).unflatten(2, (-1, 3))  # (B, side, w, 3)
    x = torch.einsum("bjw,biwc->bijc", columns, x)
    return x.round_().clamp_(0, 255)


def bicubic(start: Tensor, end: Tensor, sizes: Tensor, most: int, side: int) -> Tensor:
    """Return the matrices (B, side, most) that resample the range from start to end (B,) of rows of pixels.

    Args:
        start: where each range begins, in pixels.
        end: where it ends.
        sizes: how many pixels each row has, (B,); the rest, up to ``most``, is padding.
        most: pixels of all rows.
        side: pixels that come out.
    """
    scale = ((end - start) / side).view(-1, 1, 1)
    wide = scale.clamp_min(1)  # of the filter: smaller pictures are averages
    centres = start.view(-1, 1, 1) + (torch.arange(side, device=start.device).view(1, -1, 1) + 0.5) * scale
    pixels = torch.arange(most, device=start.device).view(1, 1, -1)
    x = ((pixels + 0.5 - centres) / wide).abs()
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    weights = torch.where(x < 1, near, torch.where(x < 2, far, 0.0)) * (pixels < sizes.view(-1, 1, 1))
    return weights / weights.sum(dim=2, keepdim=True)

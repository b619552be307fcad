"""open_clip's preprocessing in two parts: what PIL does with each picture, and arithmetic on whole batches of them.

Numbers in float32 take four times the memory of pixels. They are made at the end, where the model is, of a batch at a
time: to the last bit they are what the preprocessing of single pictures gives.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor


class Preprocess:
    """PIL image to tensor (3, h, w), after thin strips have lost what the centre crop would throw away anyway.

    Resizing the *short* side first would blow a 1 x 10,000 image up to over a hundred million pixels.

    Args:
        transform: open_clip's.
    """

    widest = 8  # sides in a larger proportion are cropped; far enough from the centre not to touch the result

    def __init__(self, transform: Any) -> None:
        self.transform = transform
        steps = list(getattr(transform, "transforms", []))
        names = [type(step).__name__ for step in steps]
        self.crops = "CenterCrop" in names
        # 'ToTensor' and 'Normalize' are a division, a subtraction and a division of every number by itself
        self._in_two = names[-2:] in (["MaybeToTensor", "Normalize"], ["ToTensor", "Normalize"])
        self._steps, self._normalize = steps[:-2], steps[-1] if steps else None

    def __call__(self, image: Image.Image) -> Tensor:
        """One preprocessed picture (3, h, w)."""
        return self.transform(self._without_ends(image))

    def pixels(self, image: Image.Image) -> Tensor:
        """The first part: a picture to what `finish` takes of each, bytes (h, w, 3) if possible."""
        if not self._in_two:
            return self(image)
        image = self._without_ends(image)
        for step in self._steps:
            image = step(image)
        return torch.from_numpy(np.array(image))

    def finish(self, batch: Tensor) -> Tensor:
        """The second part, on the batch's device: preprocessed pictures (B, 3, h, w)."""
        if not self._in_two or batch.dtype != torch.uint8:
            return batch
        x = batch.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
        x.div_(torch.tensor(255.0, device=x.device))  # by a Python number a GPU multiplies with a rounded inverse
        step: Any = self._normalize
        mean, std = (torch.tensor(values, device=x.device).view(-1, 1, 1) for values in (step.mean, step.std))
        return x.sub_(mean).div_(std)

    def _without_ends(self, image: Image.Image) -> Image.Image:
        width, height = image.size
        if self.crops and max(width, height) > self.widest * min(width, height):
            # an even number of pixels goes, half on either side, so that the centre stays where it was
            cut = (max(width, height) - self.widest * min(width, height)) // 2
            dx, dy = (cut, 0) if width > height else (0, cut)
            image = image.crop((dx, dy, width - dx, height - dy))
        return image

"""From a picture to the network's input: open_clip's preprocessing, random crops, and which crops stand for an image.

open_clip's preprocessing comes in two parts: what PIL does with each picture, and arithmetic on whole batches. Numbers
in float32 take four times the memory of pixels. They are made at the end, where the model is, of a batch at a time: to
the last bit they are what the preprocessing of single pictures gives.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from kalmanclip.errors import ConfigError

if TYPE_CHECKING:
    from kalmanclip.encoders.backbone import Backbone


class Preprocess:
    """PIL image to tensor (3, h, w), after thin strips have lost what the centre crop would throw away anyway.

    Resizing the *short* side first would blow a 1 x 10,000 image up to over a hundred million pixels.

    Args:
        transform: open_clip's.

    Attributes:
        takes_bytes: whether it comes in two parts, so that `finish` takes bytes.
    """

    widest = 8  # sides in a larger proportion are cropped; far enough from the centre not to touch the result

    def __init__(self, transform: Any) -> None:
        self.transform = transform
        steps = list(getattr(transform, "transforms", []))
        names = [type(step).__name__ for step in steps]
        self.crops = "CenterCrop" in names
        # 'ToTensor' and 'Normalize' are a division, a subtraction and a division of every number by itself
        self.takes_bytes = names[-2:] in (["MaybeToTensor", "Normalize"], ["ToTensor", "Normalize"])
        self._steps, self._normalize = steps[:-2], steps[-1] if steps else None

    def __call__(self, image: Image.Image) -> Tensor:
        """Return one preprocessed picture (3, h, w)."""
        return self.transform(self._without_ends(image))

    def pixels(self, image: Image.Image) -> Tensor:
        """Do the first part: a picture to what `finish` takes of each, bytes (h, w, 3) if possible."""
        if not self.takes_bytes:
            return self(image)
        image = self._without_ends(image)
        for step in self._steps:
            image = step(image)
        return torch.from_numpy(np.array(image))

    def finish(self, batch: Tensor) -> Tensor:
        """Do the second part, on the batch's device: preprocessed pictures (B, 3, h, w)."""
        if not self.takes_bytes or batch.dtype != torch.uint8:
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


def check_crop_scale(scale: Sequence[float]) -> None:
    """Raise `ConfigError` unless these are the smallest and largest share of a picture's area."""
    if not (len(scale) == 2 and 0 < scale[0] <= scale[1] <= 1):
        raise ConfigError(f"crop_scale must be two shares of a picture's area in (0, 1], not {scale}.")


@dataclass(frozen=True)
class RandomCropConfig:
    """Which random crops stand for a training image; together they have the weight of one image.

    With the same scale and seed the crops are the same, so that a cache serves all methods.

    Attributes:
        crops: random crops of each training image; 0: the centre crop alone.
        crop_scale: smallest and largest share of a picture's area in a random crop.
    """

    crops: int = 10
    crop_scale: tuple[float, float] = (0.5, 1.0)

    def __post_init__(self) -> None:
        if not isinstance(self.crops, int) or self.crops < 0:
            raise ConfigError(f"crops must be a whole number, 0 for centre crops alone; not {self.crops!r}.")
        check_crop_scale(self.crop_scale)

    @property
    def weights(self) -> list[float]:
        """The weight of each crop that is used, the centre crop's first; together one."""
        return [1 / self.crops] * self.crops if self.crops else [1.0]

    def as_samples(self, f: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return every crop as a training sample of its own, of crops (N, V, d) and labels (N,).

        Returns:
            Features (N V, d), labels (N V,) and weights (N V,); those of an image sum to one.
        """
        count, crops = f.shape[:2]
        weights = torch.tensor(self.weights, dtype=f.dtype, device=f.device)
        return f.flatten(0, 1), labels.repeat_interleave(crops), weights.repeat(count)


@dataclass(frozen=True)
class CropConfig(RandomCropConfig):
    """Random crops beside the centre crop.

    Attributes:
        centre_weight: how much of an image's weight its centre crop has; the random crops share the rest. 0: the centre
            crop is not used.
    """

    crops: int = 5
    crop_scale: tuple[float, float] = (0.3, 1.0)
    centre_weight: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.centre_weight <= 1:
            raise ConfigError(f"centre_weight must lie in 0..1, not {self.centre_weight}.")

    @property
    def weights(self) -> list[float]:
        """The weight of each crop that is used, the centre crop's first; together one."""
        if self.crops == 0 or self.centre_weight == 0:
            return super().weights
        return [self.centre_weight] + [(1 - self.centre_weight) / self.crops] * self.crops


class RandomCrop:
    """Random resized crop and horizontal flip, at the backbone's resolution.

    What is random depends on the seed, the pass and the picture alone: decoding in threads cannot change it.

    Args:
        backbone: whose input size and preprocessing.
        scale: smallest and largest share of the picture's area.
        seed: any integer.
        epoch: which pass over the images; each sees other crops.
    """

    ratio = (3 / 4, 4 / 3)  # of width to height, as everywhere in the field
    attempts = 10

    def __init__(self, backbone: Backbone, scale: tuple[float, float], seed: int, epoch: int) -> None:
        self.backbone, self.scale, self.key = backbone, scale, f"{seed}:{epoch}"

    def __str__(self) -> str:
        """All that a picture's crop depends on besides the backbone and the picture."""
        return f"area {self.scale[0]} to {self.scale[1]}, ratio {self.ratio}, attempts {self.attempts}, {self.key}"

    @property
    def min_side(self) -> int:
        """Decoding may shrink a picture down to this: the smallest crop still has the network's resolution."""
        return math.ceil(self.backbone.image_size / math.sqrt(self.scale[0]))

    def cut(self, image: Image.Image) -> Image.Image:
        """Return one picture's crop in this pass, in the network's resolution."""
        box, flip = self.draw(image.size, zlib.crc32(image.tobytes()))
        side = self.backbone.image_size
        crop = image.resize((side, side), Image.Resampling.BICUBIC, box=box)
        return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else crop

    def draw(self, size: tuple[int, int], checksum: int) -> tuple[tuple[int, int, int, int], bool]:
        """Return the box of one picture's crop in this pass, and whether it is mirrored.

        Args:
            size: width and height.
            checksum: of the picture's pixels.
        """
        generator = random.Random(f"{self.key}:{checksum}")
        return self._box(size, generator), generator.random() < 0.5

    def _box(self, size: tuple[int, int], generator: random.Random) -> tuple[int, int, int, int]:
        """Return left, upper, right, lower: random area, log-uniform ratio, or the largest centre crop if none fits."""
        width, height = size
        low, high = (math.log(r) for r in self.ratio)
        for _ in range(self.attempts):
            area = width * height * generator.uniform(*self.scale)
            ratio = math.exp(generator.uniform(low, high))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                left, upper = generator.randint(0, width - w), generator.randint(0, height - h)
                return left, upper, left + w, upper + h
        w = min(width, round(height * self.ratio[1]))
        h = min(height, round(width / self.ratio[0]))
        left, upper = (width - w) // 2, (height - h) // 2
        return left, upper, left + w, upper + h

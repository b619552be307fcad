"""Crops of training images: random ones, and which of them stand for an image."""

from __future__ import annotations

import math
import random
import zlib
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from kalmanclip.encoders.backbone import Backbone
from kalmanclip.errors import ConfigError


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
        if not (len(self.crop_scale) == 2 and 0 < self.crop_scale[0] <= self.crop_scale[1] <= 1):
            raise ConfigError(f"crop_scale must be two shares of a picture's area in (0, 1], not {self.crop_scale}.")

    @property
    def weights(self) -> list[float]:
        """The weight of each crop that is used, the centre crop's first; together one."""
        return [1 / self.crops] * self.crops if self.crops else [1.0]

    def as_samples(self, f: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return every crop as a training sample of its own.

        Args:
            f: features (N, V, d) of the crops that `weights` is about.
            labels: of the images, (N,).

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
        """One picture's crop in this pass, in the network's resolution."""
        generator = random.Random(f"{self.key}:{zlib.crc32(image.tobytes())}")
        side = self.backbone.image_size
        crop = image.resize((side, side), Image.Resampling.BICUBIC, box=self._box(image.size, generator))
        if generator.random() < 0.5:
            crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return crop

    def _box(self, size: tuple[int, int], generator: random.Random) -> tuple[int, int, int, int]:
        """Left, upper, right, lower: a random area and log-uniform ratio, or the largest centre crop if none fits."""
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

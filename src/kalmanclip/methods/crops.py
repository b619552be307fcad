"""The crops that stand for a training image: its centre crop and random ones, which share the image's weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kalmanclip.data import FewShotTask
from kalmanclip.encoders import Backbone
from kalmanclip.errors import ConfigError
from kalmanclip.methods.base import Progress, silent
from kalmanclip.methods.features import augmented_features, image_features


@dataclass(frozen=True)
class CropConfig:
    """Which crops of a training image are used; the defaults are those of the Kalman method's class residuals.

    With the same scale and seed the crops are the same, so that a cache serves all methods.

    Attributes:
        views: random crops of each training image; 0: the centre crop alone.
        crop_scale: smallest and largest share of a picture's area in a random crop.
        centre_weight: how much of an image's weight its centre crop has; the random crops share the rest. 0: the centre
            crop is not used.
    """

    views: int = 5
    crop_scale: tuple[float, float] = (0.3, 1.0)
    centre_weight: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.views, int) or self.views < 0:
            raise ConfigError(f"views must be a whole number, 0 for centre crops alone; not {self.views!r}.")
        if not (len(self.crop_scale) == 2 and 0 < self.crop_scale[0] <= self.crop_scale[1] <= 1):
            raise ConfigError(f"crop_scale must be two shares of a picture's area in (0, 1], not {self.crop_scale}.")
        if not 0 <= self.centre_weight <= 1:
            raise ConfigError(f"centre_weight must lie in 0..1, not {self.centre_weight}.")

    @property
    def weights(self) -> list[float]:
        """The weight of each crop that is used, the centre crop's first; together one."""
        if self.views == 0:
            return [1.0]
        centre = [self.centre_weight] if self.centre_weight > 0 else []
        return centre + [(1 - self.centre_weight) / self.views] * self.views


def crop_features(
    backbone: Backbone, task: FewShotTask, config: CropConfig, progress: Progress = silent
) -> tuple[Tensor, Tensor]:
    """Features (N, V, d) of the V crops of each training image, and the crops' weights (V,), which sum to one."""
    features = augmented_features(backbone, task, config.crop_scale, config.views, progress)
    weights = config.weights
    columns = [features(view) for view in range(config.views)]
    if len(weights) > config.views:
        columns.insert(0, image_features(backbone, task.train.sources, progress))
    f = torch.stack(columns, dim=1)
    return f, f.new_tensor(weights)


def crops_as_samples(f: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Every crop as a training sample of its own, so that each image counts the same.

    Args:
        f: features (N, V, d).
        labels: of the images, (N,).
        weights: of the crops, (V,); they sum to one.

    Returns:
        Features (N V, d), labels (N V,) and weights (N V,), whose mean is one.
    """
    count, crops = f.shape[:2]
    return f.flatten(0, 1), labels.repeat_interleave(crops), (crops * weights).repeat(count)

"""CLIP-Adapter: a bottleneck on the image embedding, blended with the embedding itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kalmanclip.data import FewShotTask
from kalmanclip.encoders import Backbone
from kalmanclip.errors import ConfigError
from kalmanclip.methods.base import Progress
from kalmanclip.methods.features import FeatureMethod, augmented_features, labels_of
from kalmanclip.methods.training import (
    Recipe,
    check_optimizer,
    check_positive,
    choose_recipe,
    coop_epochs,
    coop_recipe,
    steps_of,
    train,
)


@dataclass(frozen=True)
class CLIPAdapterConfig:
    """Options of CLIP-Adapter.

    Attributes:
        ratio: of the adapter's output in the blend.
        reduction: the bottleneck is d / reduction wide.
        epochs: None: 50 for 1 shot, 100 for 2 and 4, 200 beyond, as in the code that it is built into (CoOp's).
        batch_size: images per step.
        views: crops of the training images: None: fresh ones in every epoch, as published; V: so many passes, kept
            and taken in turn; 0: centre crops.
        crop_scale: of the random crops.
        optimizer: 'published' (CoOp's: SGD 0.002, cosine, a warm-up epoch) or 'paper'.
    """

    ratio: float = 0.2
    reduction: int = 4
    epochs: int | None = None
    batch_size: int = 32
    views: int | None = None
    crop_scale: tuple[float, float] = (0.08, 1.0)
    optimizer: str = "published"

    def __post_init__(self) -> None:
        check_optimizer(self.optimizer)
        check_positive(reduction=self.reduction, batch_size=self.batch_size, epochs=self.epochs or 1)
        if not 0 <= self.ratio <= 1:
            raise ConfigError(f"ratio must lie in 0..1, not {self.ratio}.")


class CLIPAdapter(FeatureMethod):
    """Logits ``normalise(r g(f) + (1 - r) f) T^T / tau`` with ``g(f) = relu(U relu(D f))``.

    The published code adapts embeddings before they are normalised; as ``g`` is homogeneous and the blend is
    normalised, unit-length features give the same logits. With several prompts their mean is the class weight; the
    publication has one.

    Args:
        backbone: the frozen CLIP.
        config: the options.

    Attributes:
        D: down (d / reduction, d).
        U: up (d, d / reduction).
    """

    D: Tensor
    U: Tensor

    def __init__(self, backbone: Backbone, config: CLIPAdapterConfig | None = None) -> None:
        super().__init__(backbone)
        self.config = config or CLIPAdapterConfig()

    def learn(self, task: FewShotTask, progress: Progress) -> None:
        """Trains the bottleneck; the last step's stands, nothing is chosen."""
        y = labels_of(task.train, self.backbone.device)
        d, generator = self.backbone.width, torch.Generator().manual_seed(task.seed)
        self.D = _linear(d // self.config.reduction, d, generator).to(y.device).requires_grad_()
        self.U = _linear(d, d // self.config.reduction, generator).to(y.device).requires_grad_()
        features = augmented_features(self.backbone, task, self.config.crop_scale, self.config.views, progress)
        recipe: Recipe = choose_recipe(self.config.optimizer, coop_recipe(self.config.batch_size))
        epochs = self.config.epochs or coop_epochs(max(task.train.counts()))
        train(
            [self.D, self.U],
            recipe,
            len(y),
            steps_of(len(y), recipe.batch_size, epochs),
            lambda i, epoch: F.cross_entropy(self.score(features(epoch)[i]), y[i]),
            task.seed,
            progress,
        )

    def score(self, f: Tensor) -> Tensor:
        """Features (N, d) to logits (N, C)."""
        adapted = F.relu(F.relu(f @ self.D.mT) @ self.U.mT)
        return self.zero_shot(F.normalize(self.config.ratio * adapted + (1 - self.config.ratio) * f, dim=-1))


def _linear(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """torch's own start of a linear map: uniform within one over the square root of its inputs."""
    return (2 * torch.rand(rows, columns, generator=generator) - 1) / math.sqrt(columns)

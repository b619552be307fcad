"""CLIP-Adapter: a bottleneck on the image embedding, blended with the embedding itself."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kalmanclip.data import FewShotTask
from kalmanclip.encoders.features import Progress, epoch_features
from kalmanclip.errors import ConfigError
from kalmanclip.methods.baselines.base import FeatureMethod, hits
from kalmanclip.methods.baselines.training import (
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
        ratio: of the adapter's output in the blend. Used without validation images; published: 0.2.
        ratio_grid: the values tried on the validation images, where there are some: one adapter is trained with each,
            and the first of the best stays. Empty: ``ratio``, whatever images there are.
        reduction: the bottleneck is d / reduction wide.
        epochs: None: 50 for 1 shot, 100 for 2 and 4, 200 beyond, as in the code that it is built into (CoOp's).
        batch_size: images per step.
        crops: of the training images: None: fresh ones in every epoch, as published; V: so many passes, kept
            and taken in turn; 0: centre crops.
        crop_scale: of the random crops.
        optimizer: 'published' (CoOp's: SGD 0.002, cosine, a warm-up epoch) or 'paper'.
    """

    ratio: float = 0.2
    ratio_grid: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    reduction: int = 4
    epochs: int | None = None
    batch_size: int = 32
    crops: int | None = None
    crop_scale: tuple[float, float] = (0.08, 1.0)
    optimizer: str = "published"

    def __post_init__(self) -> None:
        check_optimizer(self.optimizer)
        check_positive(reduction=self.reduction, batch_size=self.batch_size, epochs=self.epochs or 1)
        for ratio in (self.ratio, *self.ratio_grid):
            if not 0 <= ratio <= 1:
                raise ConfigError(f"ratio must lie in 0..1, not {ratio}.")


class CLIPAdapter(FeatureMethod):
    """Logits ``normalise(r g(f) + (1 - r) f) T^T / tau`` with ``g(f) = relu(U relu(D f))``.

    The published code adapts embeddings before they are normalised; as ``g`` is homogeneous and the blend is
    normalised, unit-length features give the same logits. With several prompts their mean is the class weight; the
    publication has one.

    Attributes:
        D: down (d / reduction, d).
        U: up (d, d / reduction).
        ratio: r, the one that was used.
    """

    Config = CLIPAdapterConfig
    config: CLIPAdapterConfig
    D: Tensor
    U: Tensor
    ratio: float

    def learn(self, task: FewShotTask, progress: Progress) -> None:
        """Trains the bottleneck; the last step's stands. The ratio is chosen on the validation images only."""
        held_out = self.validation(task, progress)
        ratios = self.config.ratio_grid if held_out is not None else ()
        candidates = [self._started(ratio, task.seed) for ratio in ratios or (self.config.ratio,)]
        self._descend(candidates, task, progress)
        chosen = candidates[0]
        if held_out is not None:
            f, y = held_out
            with torch.no_grad():
                chosen = max(candidates, key=lambda one: hits(one.score(f), y))  # the first of the best
        self.D, self.U, self.ratio = chosen.D.detach(), chosen.U.detach(), chosen.ratio

    def _started(self, ratio: float, seed: int) -> CLIPAdapter:
        """A copy with its own bottleneck, before training."""
        assert self.T is not None
        one = copy.copy(self)
        d, generator = self.T.shape[1], torch.Generator().manual_seed(seed)
        one.D = _linear(d // self.config.reduction, d, generator).to(self.T).requires_grad_()
        one.U = _linear(d, d // self.config.reduction, generator).to(self.T).requires_grad_()
        one.ratio = ratio
        return one

    def _descend(self, candidates: Sequence[CLIPAdapter], task: FewShotTask, progress: Progress) -> None:
        """Trains all candidates on the same batches; they share no parameters, so none feels the others."""
        y = self.labels(task)
        c = self.config
        features = epoch_features(self.encoder, task.train.sources, c.crop_scale, c.crops, task.seed, progress)
        recipe: Recipe = choose_recipe(self.config.optimizer, coop_recipe(self.config.batch_size))
        epochs = self.config.epochs or coop_epochs(max(task.train.counts()))

        def loss(i: Tensor, epoch: int) -> Tensor:
            f = features(epoch)[i]
            return torch.stack([F.cross_entropy(one.score(f), y[i]) for one in candidates]).sum()

        train(
            [p for one in candidates for p in (one.D, one.U)],
            recipe,
            len(y),
            steps_of(len(y), recipe.batch_size, epochs),
            loss,
            task.seed,
            progress,
        )

    def score(self, f: Tensor) -> Tensor:
        """Turn features (N, d) into logits (N, C)."""
        adapted = F.relu(F.relu(f @ self.D.mT) @ self.U.mT)
        return self.zero_shot(F.normalize(self.ratio * adapted + (1 - self.ratio) * f, dim=-1))


def _linear(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """torch's own start of a linear map: uniform within one over the square root of its inputs."""
    return (2 * torch.rand(rows, columns, generator=generator) - 1) / math.sqrt(columns)

"""CLIP-LoRA: low-rank corrections of q, k and v in every block of both towers, trained by AdamW."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from kalmanclip.data import FewShotTask
from kalmanclip.data.images import ImageSource, cache_decoded
from kalmanclip.encoders import Activations, Backbone, DualEncoder, LowRankConfig
from kalmanclip.errors import ConfigError
from kalmanclip.methods.base import Needs, Progress, silent
from kalmanclip.methods.features import RandomCrop, activation_store, decoded, frozen_activations, labels_of
from kalmanclip.methods.training import Recipe, check_optimizer, check_positive, choose_recipe, train


@dataclass(frozen=True)
class CLIPLoRAConfig:
    """Options of CLIP-LoRA.

    Attributes:
        low_rank: where the parameters sit; its ``scale`` is alpha / sqrt(rank) with alpha 1, as in the published code.
        dropout: of the input of each low-rank map, while training.
        iterations: steps per shot.
        most_iterations: steps at most, however many shots; None: no limit, as published.
        batch_size: images per step.
        augment: random crops and flips, fresh in every epoch; otherwise centre crops, whose frozen part is kept.
        crop_scale: of the random crops.
        optimizer: 'published' (AdamW 2e-4, weight decay 1e-2, cosine to 1e-6) or 'paper'.
    """

    low_rank: LowRankConfig = field(default_factory=lambda: LowRankConfig(placement="towers", rank=2, scale=0.5**0.5))
    dropout: float = 0.25
    iterations: int = 500
    most_iterations: int | None = None
    batch_size: int = 32
    augment: bool = True
    crop_scale: tuple[float, float] = (0.08, 1.0)
    optimizer: str = "published"

    def __post_init__(self) -> None:
        check_optimizer(self.optimizer)
        check_positive(
            iterations=self.iterations, most_iterations=self.most_iterations or 1, batch_size=self.batch_size
        )
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must lie in [0, 1), not {self.dropout}.")


class CLIPLoRA:
    """Logits ``S_C / tau`` of the adapted towers, trained by cross-entropy over all class prompts.

    The same low-rank layers as the Kalman filter's, started as published; q, k and v have a dropout mask each.

    Args:
        backbone: the frozen CLIP.
        config: the options.

    Attributes:
        encoder: the adapted towers.
    """

    needs: ClassVar[Needs] = "towers"

    def __init__(self, backbone: Backbone, config: CLIPLoRAConfig | None = None) -> None:
        self.backbone = backbone
        self.config = config or CLIPLoRAConfig()
        self.encoder = DualEncoder(backbone, self.config.low_rank)
        self.templates = 0
        self._texts: Activations = ()

    def fit(self, task: FewShotTask, progress: Progress = silent) -> None:
        """Trains on ``task.train``; the last step's parameters stand, nothing is chosen."""
        y = labels_of(task.train, self.backbone.device)
        self.encoder = DualEncoder(self.backbone, self.config.low_rank)
        self._start(task.seed)
        prompts = [prompt for group in task.prompts for prompt in group]
        self.templates = len(task.templates)
        self._texts = self.encoder.text.prefix(self.encoder.tokenize(prompts))
        activations = self._activations(task, progress)
        recipe = choose_recipe(
            self.config.optimizer,
            Recipe(lr=2e-4, weight_decay=1e-2, final_lr=1e-6, batch_size=self.config.batch_size),
        )

        def loss(i: Tensor, epoch: int) -> Tensor:
            return F.cross_entropy(self._similarities(activations(i, epoch)), y[i])

        self._set_dropout(self._dropout(task.seed))
        try:
            steps = self.config.iterations * max(task.train.counts())
            steps = min(steps, self.config.most_iterations or steps)
            train(list(self.encoder.parameters()), recipe, len(y), steps, loss, task.seed, progress)
        finally:
            self._set_dropout(None)

    def _start(self, seed: int) -> None:
        """``A`` uniform within one over the square root of its inputs, ``B`` zero."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for layer in self.encoder.layers():
                layer.A.copy_((2 * torch.rand(layer.A.shape, generator=generator) - 1) / math.sqrt(layer.A.shape[1]))

    def _dropout(self, seed: int) -> Callable[[Tensor], Tensor] | None:
        """Drops entries of a low-rank map's input, others in every call."""
        p, device = self.config.dropout, self.backbone.device
        if p == 0:
            return None
        generator = torch.Generator(device).manual_seed(seed)

        def drop(x: Tensor) -> Tensor:
            keep = torch.rand(x.shape, generator=generator, device=device) >= p
            return x * keep / (1 - p)

        return drop

    def _set_dropout(self, dropout: Callable[[Tensor], Tensor] | None) -> None:
        for layer in self.encoder.layers():
            layer.dropout = dropout

    def _activations(self, task: FewShotTask, progress: Progress) -> Any:
        """Indices and epoch to the frozen activations of those images."""
        sources = task.train.sources
        if self.config.augment:
            # thousands of different crops: not for the cache, but no picture need be decoded twice
            smallest = RandomCrop(self.backbone, self.config.crop_scale, task.seed, 0).min_side
            pictures = cache_decoded(sources, smallest)

            def fresh(i: Tensor, epoch: int) -> Activations:
                crop = RandomCrop(self.backbone, self.config.crop_scale, task.seed, epoch)
                (batch,) = decoded(self.backbone, [pictures[j] for j in i.tolist()], crop, len(i))
                return self.encoder.image.prefix(batch)

            return fresh
        store = activation_store(self.encoder, sources, progress)
        return lambda i, epoch: store[i]

    def _similarities(self, images: Activations) -> Tensor:
        """Similarities over tau (B, C)."""
        return self.backbone.logit_scale * self.encoder(images, self._texts, self.templates)

    @torch.no_grad()
    def logits(self, images: Iterable[ImageSource], progress: Progress = silent) -> Tensor:
        """Scores (N, C) on the CPU, whose softmax are the class probabilities."""
        if not self._texts:
            raise ConfigError("The classifier has no classes yet: call fit first.")
        sources = list(images)
        T = self.encoder.encode_texts(self._texts, self.templates)
        rows: list[Tensor] = [torch.empty(0, len(T))]
        done = 0
        for batch in frozen_activations(self.encoder, sources):
            f = self.encoder.encode_images(batch)
            rows.append((self.backbone.logit_scale * f @ T.mT).float().cpu())
            done += len(batch[0])
            progress("reading images", done, len(sources))
        return torch.cat(rows)

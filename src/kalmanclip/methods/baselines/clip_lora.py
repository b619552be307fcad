"""CLIP-LoRA: low-rank corrections of q, k and v in every block of both towers, trained by AdamW."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from kalmanclip.data import FewShotTask
from kalmanclip.encoders import Activations, DualEncoder, LowRankConfig
from kalmanclip.encoders.features import Progress, activation_store, fresh_crops, silent
from kalmanclip.errors import ConfigError
from kalmanclip.methods.base import Needs
from kalmanclip.methods.baselines.base import FeatureMethod
from kalmanclip.methods.baselines.training import Recipe, check_optimizer, check_positive, choose_recipe, train


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


class CLIPLoRA(FeatureMethod):
    """Logits ``S_C / tau`` of the adapted towers, trained by cross-entropy over all class prompts.

    The same low-rank layers as the Kalman filter's, started as published; q, k and v have a dropout mask each.
    """

    Config = CLIPLoRAConfig
    config: CLIPLoRAConfig
    needs: ClassVar[Needs] = "towers"

    def _make_encoder(self) -> DualEncoder:
        return DualEncoder(self.backbone, self.config.low_rank)

    def fit(self, task: FewShotTask, progress: Progress = silent) -> None:
        """Train on ``task.train``; the last step's parameters stand, nothing is chosen."""
        y, c, templates = self.labels(task), self.config, len(task.templates)
        self.encoder = self._make_encoder()
        self._start(task.seed)
        texts = self.encoder.text.prefix(self.encoder.tokenize([p for group in task.prompts for p in group]))
        activations = self._activations(task, progress)
        published = Recipe(lr=2e-4, weight_decay=1e-2, final_lr=1e-6, batch_size=c.batch_size)

        def loss(i: Tensor, epoch: int) -> Tensor:
            return F.cross_entropy(self.scale * self.encoder(activations(i, epoch), texts, templates), y[i])

        steps = c.iterations * max(task.train.counts())
        steps = min(steps, c.most_iterations or steps)
        self._set_dropout(self._dropout(task.seed))
        try:
            recipe = choose_recipe(c.optimizer, published)
            train(list(self.encoder.parameters()), recipe, len(y), steps, loss, task.seed, progress)
        finally:
            self._set_dropout(None)
        with torch.no_grad():
            self.T = self.encoder.encode_texts(texts, templates)

    def _start(self, seed: int) -> None:
        """Draw ``A`` uniformly within one over the square root of its inputs; ``B`` stays zero."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for layer in self.encoder.layers():
                layer.A.copy_((2 * torch.rand(layer.A.shape, generator=generator) - 1) / math.sqrt(layer.A.shape[1]))

    def _dropout(self, seed: int) -> Callable[[Tensor], Tensor] | None:
        """Drop entries of a low-rank map's input, others in every call."""
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

    def _activations(self, task: FewShotTask, progress: Progress) -> Callable[[Tensor, int], Activations]:
        """Return a function from indices and epoch to the frozen activations of those images."""
        sources, encoder = task.train.sources, self.encoder
        if self.config.augment:  # thousands of different crops: not for the cache
            images = fresh_crops(self.backbone, sources, self.config.crop_scale, task.seed)
            return lambda i, epoch: encoder.image.prefix(images(i, epoch))
        store = activation_store(encoder, sources, progress)
        return lambda i, epoch: store[i]

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
from kalmanclip.methods.baselines.base import OpenVocabulary
from kalmanclip.methods.baselines.training import IterationConfig, train


@dataclass(frozen=True)
class CLIPLoRAConfig(IterationConfig):
    """Options of CLIP-LoRA, and of its training (`IterationConfig`): published with AdamW 2e-4.

    Attributes:
        low_rank: where the parameters sit; its ``scale`` is alpha / sqrt(rank) with alpha 1, as in the published code.
        dropout: of the input of each low-rank map, while training.
    """

    low_rank: LowRankConfig = field(default_factory=lambda: LowRankConfig(placement="towers", rank=2, scale=0.5**0.5))
    dropout: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must lie in [0, 1), not {self.dropout}.")


class CLIPLoRA(OpenVocabulary):
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
        generator = torch.Generator().manual_seed(task.seed)
        with torch.no_grad():  # A uniform within one over the square root of its inputs; B stays zero
            for layer in self.encoder.layers():
                layer.A.copy_((2 * torch.rand(layer.A.shape, generator=generator) - 1) / math.sqrt(layer.A.shape[1]))
        texts = self.encoder.text.prefix(self.encoder.tokenize([p for group in task.prompts for p in group]))
        activations = self._activations(task, progress)

        def inputs(i: Tensor, epoch: int) -> tuple[Tensor, ...]:
            return y[i], *activations(i, epoch)

        def loss(labels: Tensor, *images: Tensor) -> Tensor:
            return F.cross_entropy(self.scale * self.encoder(images, texts, templates), labels)

        parameters, steps = list(self.encoder.parameters()), c.steps(max(task.train.counts()))
        masks = torch.Generator(self.backbone.device).manual_seed(task.seed)
        self._set_dropout(self._dropout(masks))
        try:
            train(
                parameters,
                c.recipe(lr=2e-4),
                len(y),
                steps,
                loss,
                task.seed,
                progress,
                inputs=inputs,
                generators=[masks],
            )
        finally:
            self._set_dropout(None)
        with torch.no_grad():
            self.T = self.encoder.encode_texts(texts, templates)

    def _dropout(self, generator: torch.Generator) -> Callable[[Tensor], Tensor] | None:
        """Drop entries of a low-rank map's input, others in every call."""
        p = self.config.dropout
        if p == 0:
            return None

        def drop(x: Tensor) -> Tensor:
            keep = torch.rand(x.shape, generator=generator, device=x.device) >= p
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

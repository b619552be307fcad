"""CoOp: the words before the class name are vectors, learned through the frozen text tower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from kalmanclip.data import FewShotTask
from kalmanclip.encoders import Backbone
from kalmanclip.encoders.features import Progress
from kalmanclip.encoders.towers import TextEncoder, reading, unit
from kalmanclip.errors import ConfigError, ModelError
from kalmanclip.methods.base import Needs, check_positive
from kalmanclip.methods.baselines.base import FeatureMethod
from kalmanclip.methods.baselines.training import CoOpTrainingConfig, coop_epochs


@dataclass(frozen=True)
class CoOpConfig(CoOpTrainingConfig):
    """Options of CoOp, and of its training (`CoOpTrainingConfig`).

    Attributes:
        context: M, the number of learned vectors, shared by all classes; the class name comes after them.
        init_std: they start as N(0, init_std^2).
    """

    context: int = 16
    init_std: float = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(init_std=self.init_std)
        if self.context < 1:
            raise ConfigError(f"context must be at least 1, not {self.context}.")


class Prompts:
    """Prompts "[context] class name." whose M context words are vectors.

    Args:
        backbone: the frozen CLIP, whose text tower is a plain stack of transformer blocks.
        class_names: C names.
        context: M.
    """

    def __init__(self, backbone: Backbone, class_names: Sequence[str], context: int) -> None:
        self.text, self.context = TextEncoder(backbone.model), context
        if not self.text.plain:
            raise ModelError(
                f"Context vectors for a text tower of type {type(self.text.owner).__name__} are not supported."
            )
        words = " ".join(["X"] * context)
        tokens = backbone.tokenizer([f"{words} {name}." for name in class_names]).to(backbone.device)
        # the vectors replace the embeddings of the X's: there must be one token for each, after the start
        if len(tokens[:, 1 : 1 + context].unique()) != 1 or tokens.shape[1] < context + 3:
            raise ModelError(f"The tokenizer of {backbone.name!r} leaves no room for {context} context vectors.")
        with torch.no_grad():
            self._x, self._position = self.text.embed(tokens)

    @property
    def width(self) -> int:
        """The size of a word's embedding."""
        return self._x.shape[-1]

    def __call__(self, context: Tensor) -> Tensor:
        """Return context vectors (M, width) as unit-length class weights (C, d)."""
        M, x = self.context, self._x
        words = context.to(x) + self.text.owner.positional_embedding[1 : 1 + M]
        x = torch.cat([x[:, :1], words.expand(len(x), -1, -1), x[:, 1 + M :]], dim=1)
        for block in self.text.blocks:
            x = block(x, attn_mask=self.text.mask(x))
        return unit(self.text.finish(reading(self._position)(x)))


class CoOp(FeatureMethod):
    """Logits ``f T(context)^T / tau``. Image features are frozen; the text tower is run forwards and backwards.

    Attributes:
        context: the learned vectors (M, width).
        W: the class weights that they give (C, d).
    """

    Config = CoOpConfig
    config: CoOpConfig
    needs: ClassVar[Needs] = "towers"
    context: Tensor
    W: Tensor

    def learn(self, task: FewShotTask, progress: Progress) -> None:
        """Train the context; the last step's stands, nothing is chosen. The task's templates are not used."""
        c = self.config
        prompts = Prompts(self.backbone, task.class_names, c.context)
        generator = torch.Generator().manual_seed(task.seed)
        start = c.init_std * torch.randn(c.context, prompts.width, generator=generator)
        self.context = start.to(self.backbone.device).requires_grad_()
        epochs = c.epochs or coop_epochs(max(task.train.counts()))

        def loss(f: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(self.scale * f @ prompts(self.context).mT, y)

        self.train_on_crops(task, c.crops, c.recipe(), epochs, [self.context], loss, progress)
        self.context.requires_grad_(False)
        with torch.no_grad():
            self.W = prompts(self.context)

    @torch.no_grad()
    def set_classes(self, class_names: Sequence[str], templates: Sequence[str]) -> None:
        """Name other classes, which get the same context."""
        self.W = Prompts(self.backbone, class_names, self.config.context)(self.context)

    def score(self, f: Tensor) -> Tensor:
        """Turn features (N, d) into logits (N, C)."""
        return self.scale * f @ self.W.mT

"""Tip-Adapter and Tip-Adapter-F: a cache of training features votes beside the zero-shot classifier."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kalmanclip.data import FewShotTask
from kalmanclip.encoders import Backbone
from kalmanclip.errors import ConfigError
from kalmanclip.methods.base import Progress
from kalmanclip.methods.features import FeatureMethod, augmented_features, hits, labels_of, unit
from kalmanclip.methods.training import (
    BestOnValidation,
    Recipe,
    check_optimizer,
    check_positive,
    choose_recipe,
    steps_of,
    train,
)


@dataclass(frozen=True)
class TipAdapterConfig:
    """Options of Tip-Adapter.

    Attributes:
        alpha: weight of the cache; published: 1.17 (ImageNet, Food, Pets, SUN), 2 (DTD, EuroSAT), 3 (Caltech, Cars,
            UCF), 5 (Aircraft), 10 (Flowers). Used without validation images, and while the keys of -F are trained.
        beta: sharpness of the cache; likewise.
        search_scale: the largest beta and alpha of the grid that is searched on the validation images.
        search_steps: how many of each; both start at 0.1. The first best pair wins.
        views: passes of random crops whose mean is a key; 0: centre crops once.
        crop_scale: of the random crops.
    """

    alpha: float = 1.17
    beta: float = 1.0
    search_scale: tuple[float, float] = (7.0, 3.0)
    search_steps: tuple[int, int] = (200, 20)
    views: int = 10
    crop_scale: tuple[float, float] = (0.5, 1.0)

    def __post_init__(self) -> None:
        check_positive(alpha=self.alpha, beta=self.beta)
        if self.views < 0 or min(self.search_steps) < 1:
            raise ConfigError("views must be 0 (centre crops) or more, and search_steps at least 1.")


class TipAdapter(FeatureMethod):
    """Logits ``f T^T / tau + alpha exp(-beta (1 - f K^T)) V``.

    Args:
        backbone: the frozen CLIP.
        config: the options.

    Attributes:
        K: the keys (N, d), one per training image.
        V: the values (N, C), one-hot labels.
        alpha: the weight that was used.
        beta: the sharpness that was used.
    """

    K: Tensor
    V: Tensor

    def __init__(self, backbone: Backbone, config: TipAdapterConfig | None = None) -> None:
        super().__init__(backbone)
        self.config = config or TipAdapterConfig()
        self.alpha, self.beta = self.config.alpha, self.config.beta

    def learn(self, task: FewShotTask, progress: Progress) -> None:
        """Fills the cache; ``alpha`` and ``beta`` are searched on the validation images only."""
        self.fill(task, progress)
        self.search(self.validation(task, progress))

    def fill(self, task: FewShotTask, progress: Progress) -> None:
        """Keys and values, and the options before any search."""
        labels = labels_of(task.train, self.backbone.device)
        features = augmented_features(self.backbone, task, self.config.crop_scale, self.config.views, progress)
        self.K = unit(torch.stack([features(view) for view in range(max(self.config.views, 1))]).mean(dim=0))
        self.V = F.one_hot(labels, len(task.class_names)).to(self.K)
        self.alpha, self.beta = self.config.alpha, self.config.beta

    def search(self, held_out: tuple[Tensor, Tensor] | None) -> None:
        """Sets ``alpha`` and ``beta`` to the best pair of the grid on the validation images, if there are any."""
        if held_out is None:
            return
        f, y = held_out
        with torch.no_grad():
            clip, affinity, values = self.parts(f)
            self.alpha, self.beta = search_cache(
                lambda beta: cache_votes(affinity, values, beta),
                clip,
                y,
                self.config.search_scale,
                self.config.search_steps,
            )

    def parts(self, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features (B, d) to text logits (B, C), affinities to the keys (B, N), and the values (N, C)."""
        return self.zero_shot(f), f @ self.K.mT, self.V

    def score(self, f: Tensor) -> Tensor:
        """Features (N, d) to logits (N, C)."""
        clip, affinity, values = self.parts(f)
        return clip + self.alpha * cache_votes(affinity, values, self.beta)


def cache_votes(affinity: Tensor, V: Tensor, beta: float) -> Tensor:
    """``exp(-beta (1 - affinity)) V`` (B, C) of similarities to the keys (B, N) and values (N, C)."""
    return (beta * (affinity - 1)).exp() @ V


def search_cache(
    votes: Callable[[float], Tensor],
    clip: Tensor,
    labels: Tensor,
    scale: tuple[float, float],
    steps: tuple[int, int],
) -> tuple[float, float]:
    """The first pair (alpha, beta) of the grid with the most of ``clip + alpha votes(beta)`` right.

    Args:
        votes: beta to the cache's logits (N, C).
        clip: logits (N, C) beside them.
        labels: (N,), of validation images.
        scale: the largest beta and alpha.
        steps: how many of each.
    """
    betas, alphas = ([0.1 + i * (top - 0.1) / n for i in range(n)] for top, n in zip(scale, steps, strict=True))
    most, best = -1, (0.0, 0.0)
    for beta in betas:
        cache = votes(beta)
        for alpha in alphas:
            right = hits(clip + alpha * cache, labels)
            if right > most:
                most, best = right, (alpha, beta)
    return best


@dataclass(frozen=True)
class TipAdapterFConfig(TipAdapterConfig):
    """Options of Tip-Adapter-F.

    Attributes:
        epochs: of training; published: 20 (EuroSAT 100).
        batch_size: images per step.
        train_views: crops of the training images: None: fresh ones in every epoch, as published; V: so many passes,
            kept and taken in turn; 0: centre crops.
        optimizer: 'published' (AdamW 1e-3, eps 1e-4, cosine by step) or 'paper'.
    """

    epochs: int = 20
    batch_size: int = 256
    train_views: int | None = None
    optimizer: str = "published"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_optimizer(self.optimizer)
        check_positive(epochs=self.epochs, batch_size=self.batch_size)


class TipAdapterF(TipAdapter):
    """Tip-Adapter whose keys are trained.

    The published code keeps the epoch that is best on the *test* images. Here it is the best on the validation images,
    or the last without any.

    Args:
        backbone: the frozen CLIP.
        config: the options.
    """

    config: TipAdapterFConfig

    def __init__(self, backbone: Backbone, config: TipAdapterFConfig | None = None) -> None:
        super().__init__(backbone, config or TipAdapterFConfig())

    def learn(self, task: FewShotTask, progress: Progress) -> None:
        """Fills the cache, trains, then searches ``alpha`` and ``beta``; all choices are made on validation images."""
        self.fill(task, progress)
        held_out = self.validation(task, progress)
        self.descend(self.trainable(), task, held_out, progress)
        self.search(held_out)

    @property
    def published(self) -> Recipe:
        """The published recipe."""
        return Recipe(lr=1e-3, eps=1e-4, batch_size=self.config.batch_size)

    def trainable(self) -> list[Tensor]:
        """What is trained, at its start."""
        return [self.K.requires_grad_()]

    def descend(
        self,
        parameters: list[Tensor],
        task: FewShotTask,
        held_out: tuple[Tensor, Tensor] | None,
        progress: Progress,
    ) -> None:
        """Trains in place; keeps the epoch that is best on the validation images, if there are any."""
        y = labels_of(task.train, self.K.device)
        features = augmented_features(self.backbone, task, self.config.crop_scale, self.config.train_views, progress)
        recipe = choose_recipe(self.config.optimizer, self.published)
        best = BestOnValidation(parameters, held_out and (lambda: hits(self.score(held_out[0]), held_out[1])))
        train(
            parameters,
            recipe,
            len(y),
            steps_of(len(y), recipe.batch_size, self.config.epochs),
            lambda i, epoch: F.cross_entropy(self.score(features(epoch)[i]), y[i]),
            task.seed,
            progress,
            best,
        )
        best.restore()
        for p in parameters:
            p.requires_grad_(False)

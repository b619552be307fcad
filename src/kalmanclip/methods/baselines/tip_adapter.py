"""Tip-Adapter and Tip-Adapter-F: a cache of training features votes beside the zero-shot classifier."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kalmanclip.data import FewShotTask
from kalmanclip.encoders.features import Progress
from kalmanclip.encoders.preprocess import CropConfig
from kalmanclip.encoders.towers import unit
from kalmanclip.errors import ConfigError
from kalmanclip.methods.base import check_positive
from kalmanclip.methods.baselines.base import BestOnValidation, FeatureMethod, hits, joint_loss, kernel, search_grid
from kalmanclip.methods.baselines.training import Recipe, check_optimizer, choose_recipe


@dataclass(frozen=True)
class TipAdapterConfig(CropConfig):
    """Options of Tip-Adapter, and of the crops whose mean is a key (`CropConfig`), ten random ones as published.

    The search is that of the LP++ repository, which holds the published ranges of all data sets.

    Attributes:
        alpha: weight of the cache; published: 1.17 (ImageNet, Food, Pets, SUN), 2 (DTD, EuroSAT), 3 (Caltech, Cars,
            UCF), 5 (Aircraft), 10 (Flowers). Used without validation images.
        beta: sharpness of the cache; likewise, and while the keys of -F are trained.
        search_scale: the largest beta and alpha of the grid that is searched on the validation images (not reached: the
            last is one step before); published: between (7, 3) and (50, 50).
        search_steps: how many of each; both start at 0.1. The first best pair wins. Published: (200, 20).
    """

    alpha: float = 1.17
    beta: float = 1.0
    search_scale: tuple[float, float] = (50.0, 50.0)
    search_steps: tuple[int, int] = (200, 200)
    crops: int = 10
    crop_scale: tuple[float, float] = (0.5, 1.0)
    centre_weight: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(alpha=self.alpha, beta=self.beta)
        if min(self.search_steps) < 1 or min(self.search_scale) < 0.1:
            raise ConfigError("search_steps must be at least 1, and search_scale at least 0.1, where the grid begins.")


class TipAdapter(FeatureMethod):
    """Logits ``f T^T / tau + alpha exp(-beta (1 - f K^T)) V``.

    Attributes:
        K: the keys (N, d), one per training image.
        V: the values (N, C), one-hot labels.
        alpha: the weight that was used.
        beta: the sharpness that was used.
    """

    Config = TipAdapterConfig
    config: TipAdapterConfig
    K: Tensor
    V: Tensor

    def learn(self, task: FewShotTask, progress: Progress) -> None:
        """Fill the cache; ``alpha`` and ``beta`` are searched on the validation images only."""
        self.fill(task, progress)
        self.search(self.validation(task, progress))

    def fill(self, task: FewShotTask, progress: Progress) -> None:
        """Set keys and values, and the options before any search."""
        labels, f = self.labels(task), self.crops(task, self.config, progress)
        self.K = unit((f.new_tensor(self.config.weights).unsqueeze(1) * f).sum(dim=1))
        self.V = F.one_hot(labels, len(task.class_names)).to(self.K)
        self.alpha, self.beta = self.config.alpha, self.config.beta

    def search(self, held_out: tuple[Tensor, Tensor] | None) -> None:
        """Set ``alpha`` and ``beta`` to the best pair of the grid on the validation images, if there are any."""
        if held_out is None:
            return
        f, y = held_out
        with torch.no_grad():
            clip, affinity, values = self.parts(f)
            scale, steps = self.config.search_scale, self.config.search_steps
            self.alpha, self.beta = search_cache(lambda beta: kernel(affinity, beta) @ values, clip, y, scale, steps)

    def parts(self, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return, of features (B, d), text logits (B, C), affinities to the keys (B, N), and the values (N, C)."""
        return self.zero_shot(f), f @ self.K.mT, self.V

    def score(self, f: Tensor) -> Tensor:
        """Turn features (N, d) into logits (N, C)."""
        clip, affinity, values = self.parts(f)
        return clip + self.alpha * (kernel(affinity, self.beta) @ values)


def search_cache(
    votes: Callable[[float], Tensor],
    clip: Tensor,
    labels: Tensor,
    scale: tuple[float, float],
    steps: tuple[int, int],
) -> tuple[float, float]:
    """Return the first pair (alpha, beta) of the grid with the most of ``clip + alpha votes(beta)`` (N, C) right.

    ``scale`` has the largest beta and alpha, ``steps`` how many of each.
    """
    betas, alphas = map(search_grid, scale, steps)
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
        alpha_grid: the weights of the cache during training that are tried on the validation images, where there are
            some: keys are trained with each, and the first of the best stay. Empty: ``alpha``, as published.
        epochs: of training, the best of which is chosen on validation images; published: 20 (EuroSAT 100).
        lr: learning rate.
        eps: of AdamW.
        batch_size: images per step.
        train_crops: crops of the training images: None: fresh ones in every epoch, as published; V: so many passes,
            kept and taken in turn; 0: centre crops.
        optimizer: 'published' (AdamW with ``lr`` and ``eps``, cosine by step) or 'paper'.
    """

    alpha_grid: tuple[float, ...] = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
    epochs: int = 100
    lr: float = 1e-3
    eps: float = 1e-4
    batch_size: int = 256
    train_crops: int | None = None
    optimizer: str = "published"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_optimizer(self.optimizer)
        check_positive(epochs=self.epochs, batch_size=self.batch_size, lr=self.lr, eps=self.eps)
        if min(self.alpha_grid, default=0.0) < 0:
            raise ConfigError(f"alpha_grid must not have negative weights, as {self.alpha_grid} does.")


class TipAdapterF(TipAdapter):
    """Tip-Adapter whose keys are trained.

    The published code keeps the epoch that is best on the *test* images. Here it is the best on the validation images,
    or the last without any. Likewise the weight of the cache during training.
    """

    Config = TipAdapterFConfig
    config: TipAdapterFConfig

    def learn(self, task: FewShotTask, progress: Progress) -> None:
        """Fill the cache, train, then search ``alpha`` and ``beta``; all choices are made on validation images.

        All weights of the cache are trained on the same batches. The first of those that are best on the validation
        images stays, in its best epoch; without validation images the only one, as the last epoch left it.
        """
        self.fill(task, progress)
        c, held_out = self.config, self.validation(task, progress)
        candidates: list[TipAdapterF] = []
        for alpha in (c.alpha_grid if held_out is not None else ()) or (c.alpha,):
            candidates.append(copy.copy(self))
            candidates[-1].alpha = alpha
        watched = [BestOnValidation(one, one.trainable(), held_out) for one in candidates]

        def after_epoch() -> None:
            for best in watched:
                best()

        recipe, parameters = choose_recipe(c.optimizer, self.published), [p for one in watched for p in one.parameters]
        loss = joint_loss(candidates)
        self.train_on_crops(task, c.train_crops, recipe, c.epochs, parameters, loss, progress, after_epoch)
        best = max(watched, key=lambda one: one.most)
        best.restore()
        for p in best.parameters:
            p.requires_grad_(False)
        vars(self).update(vars(best.method))
        self.search(held_out)

    @property
    def published(self) -> Recipe:
        """The published recipe."""
        return Recipe(lr=self.config.lr, eps=self.config.eps, batch_size=self.config.batch_size)

    def trainable(self) -> list[Tensor]:
        """Return what is trained, at its start."""
        self.K = self.K.clone().requires_grad_()
        return [self.K]

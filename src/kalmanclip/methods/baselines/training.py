"""The one training loop that every method with gradients uses, and the recipes for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kalmanclip.encoders.features import Progress, silent
from kalmanclip.errors import ConfigError, NumericalError

OPTIMIZERS = ("published", "paper")
"""Each method's own recipe, or the one that the Kalman filter's paper gives all its baselines."""


@dataclass(frozen=True)
class Recipe:
    """How parameters descend.

    Attributes:
        optimizer: 'adamw' or 'sgd' (momentum 0.9).
        lr: learning rate at the start.
        weight_decay: as the optimiser understands it.
        decay: 'cosine' or 'linear', down to ``final_lr``.
        final_lr: at the end.
        eps: of AdamW.
        per_epoch: the rate changes between epochs rather than between steps.
        warmup_epochs: at ``warmup_lr``, before the decay begins.
        warmup_lr: constant.
        batch_size: images per step.
    """

    optimizer: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 1e-2
    decay: str = "cosine"
    final_lr: float = 0.0
    eps: float = 1e-8
    per_epoch: bool = False
    warmup_epochs: int = 0
    warmup_lr: float = 1e-5
    batch_size: int = 32

    def rate(self, step: int, steps: int, per_epoch: int) -> float:
        """Return the learning rate of one step out of ``steps``, of which ``per_epoch`` make an epoch."""
        if step < self.warmup_epochs * per_epoch:
            return self.warmup_lr
        step -= self.warmup_epochs * per_epoch
        if self.per_epoch:
            step -= step % per_epoch
        share = min(step / steps, 1.0)
        left = (1 + math.cos(math.pi * share)) / 2 if self.decay == "cosine" else 1 - share
        return self.final_lr + (self.lr - self.final_lr) * left


def paper_recipe(batch_size: int) -> Recipe:
    """Return AdamW 1e-3, linear decay, weight decay 1e-4."""
    return Recipe(lr=1e-3, weight_decay=1e-4, decay="linear", batch_size=batch_size)


def choose_recipe(optimizer: str, published: Recipe) -> Recipe:
    """Return the method's own recipe or the paper's, by name."""
    check_optimizer(optimizer)
    return published if optimizer == "published" else paper_recipe(published.batch_size)


def check_optimizer(optimizer: str) -> None:
    """Refuse a name that is no recipe."""
    if optimizer not in OPTIMIZERS:
        raise ConfigError(f"optimizer must be 'published' or 'paper', not {optimizer!r}.")


def check_positive(**options: float) -> None:
    """Refuse options that are not positive and finite."""
    for name, value in options.items():
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{name} must be positive and finite, not {value}.")


def steps_of(count: int, batch_size: int, epochs: int) -> int:
    """Return how many steps so many passes over N images take."""
    return epochs * math.ceil(count / batch_size)


def train(
    parameters: Sequence[Tensor],
    recipe: Recipe,
    count: int,
    steps: int,
    loss: Callable[[Tensor, int], Tensor],
    seed: int,
    progress: Progress = silent,
    after_epoch: Callable[[], None] | None = None,
    order: Callable[[int], Tensor] | None = None,
) -> None:
    """Descend ``loss`` for a number of steps over shuffled batches.

    Args:
        parameters: changed in place.
        recipe: optimiser, rate, batch size.
        count: N, how many training images there are.
        steps: in all; the last epoch may stay incomplete.
        loss: indices (B,) of a batch and the number of its epoch to a scalar.
        seed: of the order of the images.
        progress: told about the steps.
        after_epoch: called after each complete epoch.
        order: from the number of steps taken to the order (N,) of the pass that begins; None: drawn from ``seed``.

    Raises:
        NumericalError: the loss is not finite.
    """
    lr, weight_decay = recipe.lr, recipe.weight_decay
    optimiser: torch.optim.Optimizer
    if recipe.optimizer == "sgd":
        optimiser = torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=weight_decay)
    else:
        optimiser = torch.optim.AdamW(parameters, lr=lr, eps=recipe.eps, weight_decay=weight_decay)
    generator = torch.Generator().manual_seed(seed)
    per_epoch = math.ceil(count / recipe.batch_size)
    step = epoch = 0
    while step < steps:
        indices = torch.randperm(count, generator=generator) if order is None else order(step)
        for batch in indices.split(recipe.batch_size)[: steps - step]:
            for group in optimiser.param_groups:
                group["lr"] = recipe.rate(step, steps, per_epoch)
            value = loss(batch, epoch)
            if not torch.isfinite(value):
                raise NumericalError(f"The loss of step {step + 1} is not finite; try a smaller learning rate.")
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            step += 1
            progress("training", step, steps)
        epoch += 1
        if after_epoch is not None and step == epoch * per_epoch:
            after_epoch()


def weighted_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return the mean of ``weights * cross-entropy`` over N samples (N, C); the weights (N,) have mean one over all."""
    return (weights * F.cross_entropy(logits, labels, reduction="none")).mean()


class BestOnValidation:
    """Keeps the parameters of the epoch with the most validation images right; of equal ones the last.

    Without validation images it keeps nothing, and the last step's parameters stand.

    Args:
        parameters: watched, and put back by `restore`.
        score: how many validation images are right now; None without any.
    """

    def __init__(self, parameters: Sequence[Tensor], score: Callable[[], int] | None) -> None:
        self.parameters, self.score = parameters, score
        self.most = -1
        self.best: list[Tensor] = []

    def __call__(self) -> None:
        """After an epoch: is it the best so far?"""
        if self.score is None:
            return
        with torch.no_grad():
            right = self.score()
        if right >= self.most:
            self.most, self.best = right, [p.detach().clone() for p in self.parameters]

    def restore(self) -> None:
        """Put the best parameters back."""
        with torch.no_grad():
            for p, kept in zip(self.parameters, self.best, strict=False):
                p.copy_(kept)


def coop_recipe(batch_size: int) -> Recipe:
    """Return CoOp's: SGD 0.002, momentum 0.9, weight decay 5e-4, cosine by epoch after one epoch at 1e-5."""
    return Recipe("sgd", lr=2e-3, weight_decay=5e-4, per_epoch=True, warmup_epochs=1, batch_size=batch_size)


def coop_epochs(shots: int) -> int:
    """Return CoOp's number of epochs for so many images per class (ImageNet, published with 50, sets its own)."""
    return 50 if shots < 2 else 100 if shots < 8 else 200

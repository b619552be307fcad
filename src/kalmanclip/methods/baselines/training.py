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
from kalmanclip.methods.base import check_positive
from kalmanclip.methods.baselines.descent import Descent, make_adamw

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
    return published if optimizer == "published" else paper_recipe(published.batch_size)


def check_optimizer(optimizer: str) -> None:
    """Raise `ConfigError` for a name that is no recipe."""
    if optimizer not in OPTIMIZERS:
        raise ConfigError(f"optimizer must be 'published' or 'paper', not {optimizer!r}.")


def steps_of(count: int, batch_size: int, epochs: int) -> int:
    """Return how many steps so many passes over N images take."""
    return epochs * math.ceil(count / batch_size)


def train(
    parameters: Sequence[Tensor],
    recipe: Recipe,
    count: int,
    steps: int,
    loss: Callable[..., Tensor],
    seed: int,
    progress: Progress = silent,
    after_epoch: Callable[[], None] | None = None,
    order: Callable[[int], Tensor] | None = None,
    inputs: Callable[[Tensor, int], tuple[Tensor, ...]] | None = None,
    generators: Sequence[torch.Generator] = (),
) -> None:
    """Descend ``loss`` for a number of steps over shuffled batches.

    With ``inputs`` the steps are captured on a GPU (`Descent`), if they are AdamW's.

    Args:
        parameters: changed in place.
        recipe: optimiser, rate, batch size.
        count: N, how many training images there are.
        steps: in all; the last epoch may stay incomplete.
        loss: indices (B,) of a batch and the number of its epoch to a scalar; with ``inputs``, these.
        seed: of the order of the images.
        progress: told about the steps.
        after_epoch: called after each complete epoch.
        order: from the number of steps taken to the order (N,) of the pass that begins; None: drawn from ``seed``.
        inputs: indices (B,) of a batch and the number of its epoch to all that changes from batch to batch.
        generators: of random numbers that the loss draws on the device.

    Raises:
        NumericalError: the loss is not finite.
    """
    lr, weight_decay = recipe.lr, recipe.weight_decay
    optimiser: torch.optim.Optimizer
    if recipe.optimizer == "sgd":
        optimiser = torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=weight_decay)
    elif inputs is not None:
        optimiser = make_adamw(parameters, lr, weight_decay, recipe.eps)
    else:
        optimiser = torch.optim.AdamW(parameters, lr=lr, eps=recipe.eps, weight_decay=weight_decay)
    descent = Descent(optimiser, loss, generators)
    generator = torch.Generator().manual_seed(seed)
    per_epoch = math.ceil(count / recipe.batch_size)
    step = epoch = 0
    while step < steps:
        indices = torch.randperm(count, generator=generator) if order is None else order(step)
        for batch in indices.split(recipe.batch_size)[: steps - step]:
            given = (batch, epoch) if inputs is None else inputs(batch, epoch)
            value = descent.step(recipe.rate(step, steps, per_epoch), *given)
            if not torch.isfinite(value):
                raise NumericalError(f"The loss of step {step + 1} is not finite; try a smaller learning rate.")
            step += 1
            progress("training", step, steps)
        epoch += 1
        if after_epoch is not None and step == epoch * per_epoch:
            after_epoch()


def weighted_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return the mean of ``weights * cross-entropy`` over N samples (N, C); the weights (N,) have mean one over all."""
    return (weights * F.cross_entropy(logits, labels, reduction="none")).mean()


@dataclass(frozen=True)
class IterationConfig:
    """Options of training whole towers for a number of steps.

    Attributes:
        iterations: steps per shot.
        most_iterations: steps at most, however many shots; None: no limit, as published.
        batch_size: images per step.
        augment: random crops and flips, fresh in every epoch; otherwise centre crops.
        crop_scale: of the random crops.
        optimizer: 'published' or 'paper'.
    """

    iterations: int = 500
    most_iterations: int | None = None
    batch_size: int = 32
    augment: bool = True
    crop_scale: tuple[float, float] = (0.08, 1.0)
    optimizer: str = "published"

    def __post_init__(self) -> None:
        check_optimizer(self.optimizer)
        check_positive(iterations=self.iterations, most_iterations=self.most_iterations, batch_size=self.batch_size)

    def steps(self, shots: int) -> int:
        """Return how many steps to take for so many images per class."""
        return min(self.iterations * shots, self.most_iterations or self.iterations * shots)

    def recipe(self, lr: float) -> Recipe:
        """Return AdamW with that rate, weight decay 1e-2 and cosine to 1e-6, or the paper's."""
        return choose_recipe(self.optimizer, Recipe(lr=lr, final_lr=1e-6, batch_size=self.batch_size))


def coop_recipe(batch_size: int) -> Recipe:
    """Return CoOp's: SGD 0.002, momentum 0.9, weight decay 5e-4, cosine by epoch after one epoch at 1e-5."""
    return Recipe("sgd", lr=2e-3, weight_decay=5e-4, per_epoch=True, warmup_epochs=1, batch_size=batch_size)


def coop_epochs(shots: int) -> int:
    """Return CoOp's number of epochs for so many images per class (ImageNet, published with 50, sets its own)."""
    return 50 if shots < 2 else 100 if shots < 8 else 200


@dataclass(frozen=True)
class CoOpTrainingConfig:
    """Options of CoOp's training, which CLIP-Adapter's is, too.

    Attributes:
        epochs: None: 50 for 1 shot, 100 for 2 and 4, 200 beyond (ImageNet, published with 50, sets its own).
        batch_size: images per step.
        crops: of the training images: None: fresh ones in every epoch, as published; V: so many passes, kept
            and taken in turn; 0: centre crops.
        crop_scale: of the random crops.
        optimizer: 'published' (SGD 0.002, momentum 0.9, weight decay 5e-4, cosine, one epoch at 1e-5) or 'paper'.
    """

    epochs: int | None = None
    batch_size: int = 32
    crops: int | None = None
    crop_scale: tuple[float, float] = (0.08, 1.0)
    optimizer: str = "published"

    def __post_init__(self) -> None:
        check_optimizer(self.optimizer)
        check_positive(batch_size=self.batch_size, epochs=self.epochs)

    def recipe(self) -> Recipe:
        """Return CoOp's recipe or the paper's."""
        return choose_recipe(self.optimizer, coop_recipe(self.batch_size))

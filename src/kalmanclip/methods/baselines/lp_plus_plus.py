"""LP++: a linear probe blended with the text weights; step sizes come from Lipschitz constants, not from a search."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kalmanclip.data import FewShotTask
from kalmanclip.encoders.features import Progress
from kalmanclip.encoders.preprocess import CropConfig
from kalmanclip.errors import NumericalError
from kalmanclip.methods.base import check_positive
from kalmanclip.methods.baselines.base import BestOnValidation, FeatureMethod
from kalmanclip.methods.baselines.training import check_optimizer, paper_recipe, train, weighted_cross_entropy


@dataclass(frozen=True)
class LPPlusPlusConfig(CropConfig):
    """Options of LP++, and of the crops that are its training samples (`CropConfig`).

    As published, one random crop of each image is: ``crops=1, crop_scale=(0.5, 1.0), centre_weight=0.0``.

    Attributes:
        epochs: full-batch steps on ``W``.
        alpha_every: every so many of them is also a step on ``alpha``.
        alpha_factor: ``alpha`` starts at this times the mean similarity of the images with their own class's text.
        optimizer: 'published' (momentum 0.9, steps from the Lipschitz constants) or 'paper' (AdamW, full batch).
    """

    epochs: int = 300
    alpha_every: int = 10
    alpha_factor: float = 250.0
    optimizer: str = "published"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_optimizer(self.optimizer)
        check_positive(epochs=self.epochs, alpha_every=self.alpha_every, alpha_factor=self.alpha_factor)


def lipschitz_constant(f: Tensor, weights: Tensor) -> float:
    """Return ``lambda_max(sum_i w_i f_i f_i^T) / 4N`` of features (N, d) and weights (N,) of mean one.

    It bounds the curvature of the cross-entropy in one class's weights: in ``w_k`` alone the Hessian is
    ``1/N sum_i w_i p_ik (1 - p_ik) f_i f_i^T``, and ``p (1 - p)`` is at most 1/4.
    """
    weighted = weights.double().sqrt().unsqueeze(1) * f.double()
    return float(torch.linalg.matrix_norm(weighted, ord=2) ** 2) / (4 * len(f))


class LPPlusPlus(FeatureMethod):
    """Logits ``f W^T + b + alpha * (f T^T)``, with one ``alpha`` per class in the place of 1 / tau.

    Attributes:
        W: (C, d); starts at the sums of the classes' features, of each image the mean over its crops.
        b: (C,).
        alpha: (C,).
    """

    Config = LPPlusPlusConfig
    config: LPPlusPlusConfig
    W: Tensor
    b: Tensor
    alpha: Tensor

    def learn(self, task: FewShotTask, progress: Progress) -> None:
        """Descend on the crops; the epoch is chosen on the validation images only (without any, the last)."""
        f, y, weights = self.samples(task, self.config, progress)
        self.start(f, y, weights / len(self.config.weights))
        held_out = self.validation(task, progress)
        parameters = [self.W, self.b, self.alpha]
        best = BestOnValidation(self, parameters, held_out)
        if self.config.optimizer == "paper":

            def loss(i: Tensor, epoch: int) -> Tensor:
                return weighted_cross_entropy(self.score(f[i]), y[i], weights[i])

            recipe, steps = paper_recipe(len(f)), self.config.epochs
            train(parameters, recipe, len(f), steps, loss, task.seed, progress, best)
        else:
            self._descend(f, y, weights, best, progress)
        best.restore()
        self.W, self.b, self.alpha = (p.detach() for p in parameters)

    def start(self, f: Tensor, y: Tensor, shares: Tensor) -> None:
        """Set the parameters before the first step, from crops (N, d), labels (N,) and shares (N,) of their images."""
        classes = len(self.T)
        self.W = torch.zeros_like(self.T).index_add_(0, y, shares.unsqueeze(1) * f).requires_grad_()
        self.b = torch.zeros(classes, device=f.device, dtype=f.dtype, requires_grad=True)
        own = (f * self.T[y]).sum(dim=1)
        sums = own.new_zeros(classes).index_add_(0, y, shares * own)
        counts = own.new_zeros(classes).index_add_(0, y, shares)
        # the publication starts every class at the mean over the classes
        alpha = self.config.alpha_factor * (sums[counts > 0] / counts[counts > 0]).mean()
        self.alpha = alpha.repeat(classes).requires_grad_()

    def _descend(self, f: Tensor, y: Tensor, weights: Tensor, best: BestOnValidation, progress: Progress) -> None:
        """Descend with momentum on ``W`` and ``b``, and now and then a plain step on ``alpha``."""
        optimiser = torch.optim.SGD([self.W, self.b], lr=1 / lipschitz_constant(f, weights), momentum=0.9)
        # a sixteenth of the inverse Lipschitz constant in alpha, as published
        alpha_rate = len(f) / (4 * (weights @ (f @ self.T.mT).square()).max())
        for epoch in range(1, self.config.epochs + 1):
            loss = weighted_cross_entropy(self.score(f), y, weights)
            W, b, alpha = torch.autograd.grad(loss, [self.W, self.b, self.alpha])
            if not torch.isfinite(W).all():
                raise NumericalError(f"The derivatives of step {epoch} are not finite.")
            self.W.grad, self.b.grad = W, b
            optimiser.step()
            if epoch % self.config.alpha_every == 0:
                with torch.no_grad():
                    self.alpha -= alpha_rate * alpha
            best()
            progress("training", epoch, self.config.epochs)

    def score(self, f: Tensor) -> Tensor:
        """Turn features (N, d) into logits (N, C)."""
        return f @ self.W.mT + self.b + self.alpha * (f @ self.T.mT)

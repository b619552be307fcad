"""LP++: a linear probe blended with the text weights; step sizes come from Lipschitz constants, not from a search."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kalmanclip.data import FewShotTask
from kalmanclip.encoders import Backbone
from kalmanclip.errors import NumericalError
from kalmanclip.methods.base import Progress
from kalmanclip.methods.features import FeatureMethod, hits, image_features, labels_of
from kalmanclip.methods.training import BestOnValidation, check_optimizer, check_positive, paper_recipe, train


@dataclass(frozen=True)
class LPPlusPlusConfig:
    """Options of LP++.

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
        check_optimizer(self.optimizer)
        check_positive(epochs=self.epochs, alpha_every=self.alpha_every, alpha_factor=self.alpha_factor)


def lipschitz_constant(f: Tensor) -> float:
    """``lambda_max(F^T F) / 4N`` of features (N, d): bounds the curvature of the cross-entropy in one class's weights.

    In ``w_k`` alone the Hessian is ``1/N sum_i p_ik (1 - p_ik) f_i f_i^T``, and ``p (1 - p)`` is at most 1/4.
    """
    return float(torch.linalg.matrix_norm(f.double(), ord=2) ** 2) / (4 * len(f))


class LPPlusPlus(FeatureMethod):
    """Logits ``f W^T + b + alpha * (f T^T)``, with one ``alpha`` per class in the place of 1 / tau.

    Args:
        backbone: the frozen CLIP.
        config: the options.

    Attributes:
        W: (C, d); starts at the sums of the classes' features.
        b: (C,).
        alpha: (C,).
    """

    W: Tensor
    b: Tensor
    alpha: Tensor

    def __init__(self, backbone: Backbone, config: LPPlusPlusConfig | None = None) -> None:
        super().__init__(backbone)
        self.config = config or LPPlusPlusConfig()

    def learn(self, task: FewShotTask, progress: Progress) -> None:
        """Descends on centre crops; the epoch is chosen on the validation images only (without any, the last)."""
        f = image_features(self.backbone, task.train.sources, progress)
        y = labels_of(task.train, f.device)
        self.start(f, y)
        held_out = self.validation(task, progress)
        parameters = [self.W, self.b, self.alpha]
        best = BestOnValidation(parameters, held_out and (lambda: hits(self.score(held_out[0]), held_out[1])))
        if self.config.optimizer == "paper":
            whole, epochs = paper_recipe(len(f)), self.config.epochs
            train(parameters, whole, len(f), epochs, lambda i, _: self._loss(f[i], y[i]), task.seed, progress, best)
        else:
            self._descend(f, y, best, progress)
        best.restore()
        self.W, self.b, self.alpha = (p.detach() for p in parameters)

    def start(self, f: Tensor, y: Tensor) -> None:
        """The parameters before the first step, from features (N, d) and labels (N,)."""
        assert self.T is not None
        classes = len(self.T)
        self.W = torch.zeros_like(self.T).index_add_(0, y, f).requires_grad_()
        self.b = torch.zeros(classes, device=f.device, dtype=f.dtype, requires_grad=True)
        own = (f * self.T[y]).sum(dim=1)
        counts = torch.bincount(y, minlength=classes)
        means = torch.zeros_like(own[:1]).repeat(classes).index_add_(0, y, own) / counts.clamp_min(1)
        # the publication starts every class at the mean over the classes
        alpha = self.config.alpha_factor * means[counts > 0].mean()
        self.alpha = alpha.repeat(classes).requires_grad_()

    def _loss(self, f: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.score(f), y)

    def _descend(self, f: Tensor, y: Tensor, best: BestOnValidation, progress: Progress) -> None:
        """Momentum on ``W`` and ``b``, and now and then a plain step on ``alpha``."""
        assert self.T is not None
        optimiser = torch.optim.SGD([self.W, self.b], lr=1 / lipschitz_constant(f), momentum=0.9)
        # a sixteenth of the inverse Lipschitz constant in alpha, as published
        alpha_rate = len(f) / (4 * (f @ self.T.mT).square().sum(dim=0).max())
        for epoch in range(1, self.config.epochs + 1):
            W, b, alpha = torch.autograd.grad(self._loss(f, y), [self.W, self.b, self.alpha])
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
        """Features (N, d) to logits (N, C)."""
        assert self.T is not None
        return f @ self.W.mT + self.b + self.alpha * (f @ self.T.mT)

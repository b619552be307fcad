"""GDA: a Gaussian discriminant classifier on cached features, added to the zero-shot logits. Nothing is trained."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kalmanclip.data import FewShotTask
from kalmanclip.encoders.features import Progress
from kalmanclip.encoders.preprocess import CropConfig
from kalmanclip.methods.base import check_positive
from kalmanclip.methods.baselines.base import FeatureMethod, class_means, hits


@dataclass(frozen=True)
class GDAConfig(CropConfig):
    """Options of GDA, and of the crops that are its samples (`CropConfig`).

    As published, ten random crops of each image are: ``crops=10, crop_scale=(0.5, 1.0), centre_weight=0.0``.

    Attributes:
        alpha: weight of the discriminant. Used without validation images.
        alpha_grid: the values tried on the validation images, where there are some; ties go to the first.
    """

    alpha: float = 0.1
    alpha_grid: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(alpha=self.alpha)


class GDA(FeatureMethod):
    """Logits ``f T^T / tau + alpha (f W^T + b)``: classes are Gaussians of one shared covariance, equally probable.

    ``W = mu Sigma^-1`` and ``b = -1/2 diag(mu Sigma^-1 mu^T)``.

    Attributes:
        W: (C, d).
        b: (C,).
        alpha: the weight that was used.
    """

    Config = GDAConfig
    config: GDAConfig
    W: Tensor
    b: Tensor

    def learn(self, task: FewShotTask, progress: Progress) -> None:
        """Take means and covariance of the training features; ``alpha`` is chosen on the validation images only."""
        f, labels, weights = self.samples(task, self.config, progress)
        self.W, self.b = gaussian_discriminant(f, labels, task.class_names, weights)
        self.alpha = self.config.alpha
        held_out = self.validation(task, progress)
        if held_out is not None:
            f, y = held_out
            clip, discriminant = self.zero_shot(f), self.discriminant(f)
            self.alpha = max(self.config.alpha_grid, key=lambda alpha: hits(clip + alpha * discriminant, y))

    def discriminant(self, f: Tensor) -> Tensor:
        """Return ``f W^T + b`` (N, C)."""
        return f @ self.W.mT + self.b

    def score(self, f: Tensor) -> Tensor:
        """Turn features (N, d) into logits (N, C)."""
        return self.zero_shot(f) + self.alpha * self.discriminant(f)


def gaussian_discriminant(
    f: Tensor, labels: Tensor, class_names: list[str], weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return ``W = mu Sigma^-1`` (C, d) and ``b = -1/2 diag(mu Sigma^-1 mu^T)`` (C,) of samples (N, d), labels (N,).

    Weights (N,) have a mean of one; None: all samples count the same.
    """
    mu = class_means(f, labels, class_names, weights)
    residuals = f - mu[labels]
    if weights is not None:
        residuals = weights.sqrt().unsqueeze(1) * residuals
    W = torch.linalg.solve(shrunken_covariance(residuals), mu.mT.double()).mT
    return W.to(f), -0.5 * (W * mu).sum(dim=1).to(f)


def shrunken_covariance(residuals: Tensor) -> Tensor:
    """Return ``((N - 1) S + tr(S) I) / d`` (d, d) in float64, with ``S`` the covariance of N residuals (N, d).

    Weighted samples come multiplied by the roots of their weights.

    The published estimator (Kubokawa and Srivastava). Up to the factor ``(N - 1 + d) / d`` it is ``S`` shrunk towards
    ``tr(S) / d I`` with weight ``d / (N - 1 + d)``: positive definite for however few images.
    """
    n, d = residuals.shape
    r = residuals.double()
    scatter = r.mT @ r  # (N - 1) S: the (weighted) residuals have mean zero
    identity = torch.eye(d, device=r.device, dtype=r.dtype)
    trace = scatter.trace() / max(n - 1, 1)
    # one centre crop per class leaves no residuals at all: then only distances to the means count
    return (scatter + (trace if trace > 0 else 1.0) * identity) / d

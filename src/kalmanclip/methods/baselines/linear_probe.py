"""Linear probe: softmax regression on frozen features, started from the text weights and held near them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kalmanclip.data import FewShotTask
from kalmanclip.encoders.features import Progress
from kalmanclip.encoders.preprocess import CropConfig
from kalmanclip.errors import NumericalError
from kalmanclip.methods.base import check_positive
from kalmanclip.methods.baselines.base import FeatureMethod, hits
from kalmanclip.methods.baselines.training import check_optimizer, paper_recipe, steps_of, train, weighted_cross_entropy


@dataclass(frozen=True)
class LinearProbeConfig(CropConfig):
    """The objective is ``mean cross-entropy + l2 / 2 |W - T|^2``, convex in the classifier ``W``.

    Every crop is a training sample with its share of the image's weight, see `CropConfig`.

    Attributes:
        l2: the pull towards the text weights; infinity is zero-shot CLIP. Used without validation images.
        l2_grid: the values tried on the validation images, where there are some; ties go to the strongest pull.
        iterations: of L-BFGS, at most.
        optimizer: 'published' (L-BFGS to convergence) or 'paper' (AdamW; its weight decay takes the place of ``l2``).
        epochs: for 'paper'.
        batch_size: for 'paper'.
    """

    l2: float = 1.0
    l2_grid: tuple[float, ...] = (1e3, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
    iterations: int = 200
    optimizer: str = "published"
    epochs: int = 100
    batch_size: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_optimizer(self.optimizer)
        check_positive(l2=self.l2, l2_grid=self.l2_grid, iterations=self.iterations)
        check_positive(epochs=self.epochs, batch_size=self.batch_size)


class LinearProbe(FeatureMethod):
    """Logits ``f W^T / tau``.

    Attributes:
        W: the classifier (C, d).
        l2: the pull that was used.
    """

    Config = LinearProbeConfig
    config: LinearProbeConfig
    W: Tensor

    def learn(self, task: FewShotTask, progress: Progress) -> None:
        """Regress on the crops; ``l2`` is chosen on the validation images only."""
        # an epoch of the paper's recipe shows each image once
        crops = replace(self.config, crops=0) if self.config.optimizer == "paper" else self.config
        f, y, weights = self.samples(task, crops, progress)
        if self.config.optimizer == "paper":
            recipe = paper_recipe(self.config.batch_size)
            steps, W = steps_of(len(f), recipe.batch_size, self.config.epochs), self.T.clone().requires_grad_()

            def loss(i: Tensor, epoch: int) -> Tensor:
                return self.objective(W, f[i], y[i], weights[i], 0.0)

            train([W], recipe, len(f), steps, loss, task.seed, progress)
            self.W = W.detach()
            return
        self.l2, held_out = self.config.l2, self.validation(task, progress)
        if held_out is not None:
            most = -1
            for l2 in sorted(self.config.l2_grid, reverse=True):
                self.W = self.regress(f, y, weights, l2)
                right = hits(self.score(held_out[0]), held_out[1])
                if right > most:
                    most, self.l2 = right, l2
        self.W = self.regress(f, y, weights, self.l2)

    def regress(self, f: Tensor, y: Tensor, weights: Tensor, l2: float) -> Tensor:
        """Return the minimum ``W`` (C, d) for features (N, d), labels and weights (N,), by L-BFGS from the texts."""
        W = self.T.clone().requires_grad_()
        optimiser = torch.optim.LBFGS(
            [W], max_iter=self.config.iterations, tolerance_grad=1e-7, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            optimiser.zero_grad()
            value = self.objective(W, f, y, weights, l2)
            value.backward()
            return value

        optimiser.step(closure)
        if not torch.isfinite(W).all():
            raise NumericalError(f"The regression with l2={l2} did not converge; try a larger one.")
        return W.detach()

    def objective(self, W: Tensor, f: Tensor, y: Tensor, weights: Tensor, l2: float) -> Tensor:
        """Return the mean cross-entropy, with weights (N,) of mean one, and the pull towards the text weights."""
        return weighted_cross_entropy(self.scale * f @ W.mT, y, weights) + l2 / 2 * (W - self.T).square().sum()

    def score(self, f: Tensor) -> Tensor:
        """Turn features (N, d) into logits (N, C)."""
        return self.scale * f @ self.W.mT

"""Training images whose labels are probably wrong, by class residuals that have not seen them.

Each image is predicted by residuals learned from the others. Where the labels are noisy, so are those it is predicted
by. Hence rounds: as many images as are expected to be wrong, the likeliest, are left out of the residuals and of the
metric, and all are predicted again. The prior, the share of the generative classifier and the sharpness of the
predictions are those under which the labels are most probable *as noisy labels* (`kalmanclip.prediction.label_noise`):
by plain likelihood no prediction is sure enough to doubt a label.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kalmanclip.methods.residuals import Fold, FoldResiduals, ResidualBelief, choose_scales
from kalmanclip.prediction.label_noise import LabelNoise, sharpened

ROUNDS = 3
"""At most; later ones find a few more of many errors, and cost as much."""


@dataclass(frozen=True, eq=False)
class Predicted:
    """What was predicted for images that were held out.

    Attributes:
        probabilities: (N, C), averaged over the crops, then sharpened.
        noise: what that says about the labels.
        prior_std: under which they were predicted.
        generative: how much of the generative classifier they were predicted with.
    """

    probabilities: Tensor
    noise: LabelNoise
    prior_std: float
    generative: float


def predict_held_out(
    residuals: ResidualBelief,
    crops: Tensor,
    labels: Tensor,
    tell: Callable[[int, int], None] = lambda done, total: None,
    rounds: int = ROUNDS,
) -> list[Predicted]:
    """Return what each round predicts; the last is what to go by.

    Args:
        residuals: with its classes set; nothing is learned by it.
        crops: unit-length features (N, V, d), the centre crop first.
        labels: (N,), numbers of the classes, as given.
        tell: called with rounds done and to do.
        rounds: at most; fewer if no image changes sides.
    """
    trusted = torch.ones_like(labels, dtype=torch.bool)
    found: list[Predicted] = []
    for done in range(rounds):
        tell(done, rounds)
        found.append(_predict(residuals, crops, labels, trusted))
        wrong = found[-1].noise.wrong
        before, trusted = trusted, torch.ones_like(trusted)
        trusted[wrong.argsort(descending=True, stable=True)[: int(wrong.sum())]] = False
        if torch.equal(before, trusted):
            break
    tell(rounds, rounds)
    return found


def every_part(labels: Tensor, folds: int) -> list[Tensor]:
    """Return the positions of each part; every image is in one, and those of a class are spread evenly over them."""
    order = labels.argsort(stable=True)
    number = torch.empty_like(order)
    number[order] = torch.arange(len(order), device=labels.device) % folds
    return [part for k in range(folds) if len(part := torch.where(number == k)[0])]


def _predict(residuals: ResidualBelief, crops: Tensor, labels: Tensor, trusted: Tensor) -> Predicted:
    """Predict all images, each part from the trusted images of the others."""
    parts = every_part(labels, residuals.config.folds)
    folds = []
    for held in parts:
        others = trusted.clone()
        others[held] = False
        if not others.any():  # suspects teach more than nothing does
            others = torch.ones_like(trusted)
            others[held] = False
        fold = Fold(crops[others], labels[others], crops[held], labels[held], residuals.T)
        folds.append(FoldResiduals(residuals, fold))

    known: dict[tuple[float, float], tuple[Tensor, LabelNoise]] = {}

    def score(std: float, generative: float) -> float:
        p = torch.empty(len(labels), len(residuals.T), dtype=crops.dtype, device=crops.device)
        for held, fold in zip(parts, folds, strict=True):
            fold.generative = generative
            p[held] = fold.probabilities(std)
        known[std, generative] = sharpened(p, labels)
        return known[std, generative][1].log_evidence

    chosen = choose_scales(residuals.config, score)[:2]
    if chosen not in known:  # both are given
        score(*chosen)
    return Predicted(*known[chosen], *chosen)

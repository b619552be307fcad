"""RanPAC: ridge regression on random features, from sums that are added step by step.

McDonnell, Gong, Parvaneh, Abbasnejad, van den Hengel: *RanPAC: Random Projections and Pre-trained Models for Continual
Learning.* NeurIPS 2023. Frozen features pass a random matrix and a ReLU; of these random features ``h`` the sums
``G = sum h h^T`` and ``Q = sum h y^T`` are kept, and the classifier is ``(G + ridge I)^-1 Q``. As in the authors'
repository (RanPAC/RanPAC) the matrix is drawn once, its entries N(0, 1); there are 10,000 random features; and the
ridge is, at each step, the one of ``RIDGES`` with the least squared error on a fifth of the new step's images, drawn at
random, after a fit to the others alone.

The sums are in double precision, which the authors' are not: the ridge that the split prefers may be so small that in
single precision nothing but rounding is solved for. Left out is the paper's first phase, which fine-tunes the backbone
on the first step's classes: here all learn from the same frozen features (the rows "no Phase 1" of its tables).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

FEATURES = 10_000
RIDGES = tuple(10.0**power for power in range(-8, 9))
KEPT = 0.8  # of a step's images, to fit to where a ridge is chosen


class RandomFeatures:
    """``relu(f W)`` of features (N, d), with entries of ``W`` (d, M) from N(0, 1); without any, the features."""

    def __init__(self, d: int, features: int, seed: int, like: Tensor) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._W = torch.randn(d, features, generator=generator).to(like) if features else None
        self.width, self.device = features or d, like.device

    def __call__(self, f: Tensor) -> Tensor:
        return f if self._W is None else torch.relu(f @ self._W)


class RanPAC:
    """The classifier and its sums.

    Args:
        expand: makes random features (N, M) of features (N, d).
        seed: of the splits by which ridges are chosen.

    Attributes:
        gram: ``G`` (M, M).
        products: ``Q`` (M, C).
        weights: (M, C).
        ridge: the last that was chosen.
    """

    def __init__(self, expand: RandomFeatures, seed: int) -> None:
        self.expand, M = expand, expand.width
        self.gram = torch.zeros(M, M, dtype=torch.float64, device=expand.device)
        self.products = self.weights = self.gram[:, :0]
        self.ridge = 0.0
        self._generator = torch.Generator().manual_seed(seed)

    def learn(self, f: Tensor, labels: Tensor, classes: int) -> None:
        """Add images with features (N, d) and labels (N,); there are so many classes by now."""
        order = torch.randperm(len(f), generator=self._generator)
        h, y = self.expand(f[order]).double(), F.one_hot(labels[order], classes).double()
        self.gram.addmm_(h.mT, h)
        self.products = F.pad(self.products, (0, classes - self.products.shape[1])) + h.mT @ y
        self.ridge = chosen_ridge(h, y)
        self.weights = _solved(self.gram, self.ridge, self.products)

    def scores(self, f: Tensor) -> Tensor:
        """Of all classes so far (N, C)."""
        return self.expand(f).double() @ self.weights


def chosen_ridge(h: Tensor, y: Tensor) -> float:
    """The one with the least squared error on the last fifth of random features (N, M) with targets (N, C)."""
    n = int(KEPT * len(h))
    kept, held = h[:n], h[n:]
    dual = n < h.shape[1]  # the same predictions, by the smaller of two systems
    gram = kept @ kept.mT if dual else kept.mT @ kept
    others = held @ kept.mT if dual else held
    target = y[:n] if dual else kept.mT @ y[:n]
    losses = {ridge: F.mse_loss(others @ _solved(gram, ridge, target), y[n:]).item() for ridge in RIDGES}
    return min(losses, key=lambda ridge: losses[ridge])


def _solved(gram: Tensor, ridge: float, right: Tensor) -> Tensor:
    return torch.linalg.solve(gram + ridge * torch.eye(len(gram), dtype=gram.dtype, device=gram.device), right)

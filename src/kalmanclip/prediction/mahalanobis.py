"""The relative Mahalanobis distance: how much nearer an image is to some class than to the middle of all.

With the mean ``m_c`` of each class, their mean ``g``, and one covariance ``S`` of images within their classes, it is

    r(f) = min_c (f - m_c)^T S^-1 (f - m_c)  -  (f - g)^T S^-1 (f - g)

(Ren et al., 2021). What all images of this kind share cancels, so it tells a new class of the same kind from the known
ones; far from all of them it says nothing. ``S`` is drawn towards a sphere of the same size by `SPHERE`: few images
know few of its directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

SPHERE = 0.8
"""How much of the covariance within classes is a sphere. Chosen on training images outside the shots."""

_TINY = 1e-12  # all images of a class may be the same


@dataclass(frozen=True, eq=False)
class RelativeMahalanobis:
    """The distance to the classes of some images.

    Attributes:
        features: of the images (N, d), float64.
        labels: (N,), numbers of the classes, 0 to C - 1.
        counts: images of each class (C,).
        means: (C, d); zero where there are no images.
        scatter: around the means, summed over all images (d, d).
    """

    features: Tensor
    labels: Tensor
    counts: Tensor
    means: Tensor
    scatter: Tensor

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, classes: int) -> RelativeMahalanobis | None:
        """Make one of features (N, d) and labels (N,); None if there is nothing to compare.

        That takes two classes, and two images of each on average.
        """
        f = features.double()
        counts = torch.bincount(labels, minlength=classes).double()
        present = int((counts > 0).sum())
        if present < 2 or len(f) < 2 * present:
            return None
        means = torch.zeros(classes, f.shape[1], dtype=f.dtype, device=f.device).index_add_(0, labels, f)
        means = means / counts.clamp_min(1).unsqueeze(1)
        around = f - means[labels]
        return cls(f, labels, counts, means, around.mT @ around)

    def distance(self, f: Tensor) -> Tensor:
        """Return the distance (N,) of features (N, d)."""
        weights, bias = self._linear
        return (bias - (f.double() - self._overall) @ weights).amin(dim=1)

    @cached_property
    def held_out(self) -> Tensor:
        """The distance (N,) of each image as if it had not been among them.

        Without it, the mean of its class moves away from it, and the scatter loses a matrix of rank one.
        """
        spectrum, Q = self._spectrum
        own, n = self.labels, self.counts[self.labels]
        there = self._there
        C, N, d = int(there.sum()), *self.features.shape
        lone = n < 2
        # all in the eigenvectors' coordinates; u points from the mean of the class to the image
        x, m = (self.features - self._overall) @ Q, (self.means - self._overall) @ Q
        u = x - m[own]
        share = torch.where(lone, 0.0, n / (n - 1).clamp_min(1))  # scatter - share u u^T
        freedom = torch.where(lone, N - C, N - 1 - C).double()
        trace = spectrum.sum() - share * u.square().sum(dim=1)
        inverse = 1 / (
            (1 - SPHERE) * spectrum + SPHERE * trace.unsqueeze(1).clamp_min(_TINY * d) / d
        )  # (N, d), before the rank one
        lost = (1 - SPHERE) * share
        lost = lost / (1 - lost * (inverse * u.square()).sum(dim=1))  # Sherman and Morrison

        def to_each(points: Tensor) -> Tensor:
            """Return the squared distances (N, P) of every image to points (P, d)."""
            w, v = inverse * x, inverse * u
            plain = (w * x).sum(dim=1, keepdim=True) - 2 * w @ points.mT + inverse @ points.square().mT
            along = (v * x).sum(dim=1, keepdim=True) - v @ points.mT
            return freedom.unsqueeze(1) * (plain + lost.unsqueeze(1) * along.square())

        def to_one(points: Tensor) -> Tensor:
            """Return the squared distance (N,) of every image to a point of its own (N, d)."""
            away = x - points
            return freedom * ((inverse * away.square()).sum(dim=1) + lost * (inverse * u * away).sum(dim=1).square())

        moved = m[own] - u / (n - 1).clamp_min(1).unsqueeze(1)  # the mean of its class without it
        to_class = to_each(m).masked_fill(~there, torch.inf)
        to_own = to_one(moved).masked_fill(lone, torch.inf)
        to_class = to_class.scatter(1, own.unsqueeze(1), to_own.unsqueeze(1))
        # the origin is the mean of all C means; a class without images has none
        left = torch.where(lone, C - 1, C).unsqueeze(1)
        overall = (torch.where(lone.unsqueeze(1), 0.0, moved) - m[own]) / left
        return to_class.amin(dim=1) - to_one(overall)

    @cached_property
    def _linear(self) -> tuple[Tensor, Tensor]:
        """Weights (d, C) and biases (C,) of the classes with images: what is squared in the image cancels."""
        spectrum, Q = self._spectrum
        freedom = len(self.features) - int(self._there.sum())
        inverse = freedom / ((1 - SPHERE) * spectrum + SPHERE * spectrum.mean().clamp_min(_TINY))
        means = (self.means[self._there] - self._overall) @ Q
        return 2 * Q @ (inverse * means).mT, (inverse * means.square()).sum(dim=1)

    @cached_property
    def _there(self) -> Tensor:
        """Which classes have images (C,)."""
        return self.counts > 0

    @cached_property
    def _overall(self) -> Tensor:
        """The mean of the means of classes with images (d,)."""
        return self.means[self._there].mean(dim=0)

    @cached_property
    def _spectrum(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues (d,) and eigenvectors (d, d) of the scatter."""
        values, Q = torch.linalg.eigh(self.scatter)
        return values.clamp_min(0), Q

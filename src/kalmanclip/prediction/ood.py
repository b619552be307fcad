"""Out-of-distribution images: a score, and the threshold above which an image is flagged.

The score of a unit-length feature ``f`` is minus

    max_c f . m_c  +  f . g  +  `TEXT_WEIGHT` (max_c f . t_c - mean_c f . t_c),

with the direction ``m_c`` of the training images of class c, the direction ``g`` of all of them, and the texts ``t_c``.
The first two ask whether images like this one were there to learn from. The last asks whether one text fits it better
than the others; it is what the reference (MCM, the largest softmax of the similarities) measures, to first order.
With few images ``m_c`` is uncertain, so it is shrunk towards ``g`` as if `SHRINKAGE` more images had been seen there.

The threshold comes from the training images alone: each is scored as if it had not been among them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import scipy.special  # type: ignore[import-untyped, unused-ignore]
import torch
import torch.nn.functional as F
from torch import Tensor

from kalmanclip.errors import ConfigError
from kalmanclip.prediction.predictive import Neighbors

SHRINKAGE = 3.0
"""So many images' worth of the overall mean is in the mean of a class. Chosen on training images."""

TEXT_WEIGHT = 4.0
"""How much the texts count beside the images. Chosen on training images."""

FALSE_ALARMS = 0.05
"""The share of in-distribution images that may be flagged, unless another is asked for."""


class Threshold(NamedTuple):
    """Above which score an image counts as out-of-distribution.

    Attributes:
        value: images above it are flagged.
        counted: whether it is a rank among held-out training images. If there are too few of them for the rate that was
            asked for, it is what a Gaussian of their mean and spread makes of it.
    """

    value: float
    counted: bool


@dataclass(frozen=True, eq=False)
class OODDetector:
    """The training images of a classifier, as far as the out-of-distribution score needs them.

    Attributes:
        features: of their centre crops, unit-length (N, d), rounded to half precision: that is how they are stored.
        labels: (N,), numbers of the classes.
        texts: of the classes, unit-length (C, d).
        names: short names of the images, N of them.
    """

    features: Tensor
    labels: Tensor
    texts: Tensor
    names: tuple[str, ...]

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, texts: Tensor, names: Sequence[str]) -> OODDetector:
        """Make one of unit-length features (N, d), labels (N,), text weights (C, d) and N names."""
        if not len(features) == len(labels) == len(names) or texts.shape[-1] != features.shape[-1]:
            raise ConfigError("features, labels, texts and names of training images do not belong together")
        return cls(features.half().to(features.dtype), labels, F.normalize(texts, dim=-1), tuple(names))

    def with_more(self, features: Tensor, labels: Tensor, names: Sequence[str]) -> OODDetector:
        """Return one of these and further images of the same classes."""
        more = OODDetector.of(features, labels, self.texts, names)
        return replace(
            self,
            features=torch.cat([self.features, more.features]),
            labels=torch.cat([self.labels, more.labels]),
            names=self.names + more.names,
        )

    def select(self, rows: Sequence[int | None], texts: Tensor) -> OODDetector:
        """Return one about other classes: class c is old class ``rows[c]``, or a new one if None; with their texts."""
        new = self.labels.new_full((len(self.texts),), -1)
        for c, row in enumerate(rows):
            if row is not None:
                new[row] = c
        labels = new[self.labels]
        kept = labels >= 0
        names = tuple(name for name, keep in zip(self.names, kept.tolist(), strict=True) if keep)
        return OODDetector(self.features[kept], labels[kept], F.normalize(texts, dim=-1), names)

    def score(self, f: Tensor) -> Tensor:
        """Return the score (N,) of unit-length features (N, d): the larger, the less like those learned from."""
        _, sums, overall = self._sums
        directions = F.normalize(sums + SHRINKAGE * overall, dim=-1)
        return -((f @ directions.mT).amax(dim=1) + f @ F.normalize(overall, dim=-1) + self._text(f))

    @cached_property
    def held_out(self) -> Tensor:
        """The score (N,) of each training image as if it had not been among them."""
        counts, sums, overall = self._sums
        f, own = self.features, self.labels
        left = counts[own] - 1
        own_sum = sums[own] - f
        # the mean of class means without the image: its class has another mean, or none
        classes = (counts > 0).sum()
        old, new = sums[own] / counts[own].unsqueeze(1), own_sum / left.clamp_min(1).unsqueeze(1)
        remaining = torch.where(left > 0, classes, classes - 1).clamp_min(1).unsqueeze(1)
        g = (classes * overall - old + new) / remaining
        fg, gg = (f * g).sum(dim=1), (g * g).sum(dim=1)
        along = f @ sums.mT + SHRINKAGE * fg.unsqueeze(1)
        length = sums.square().sum(dim=1) + 2 * SHRINKAGE * g @ sums.mT + SHRINKAGE**2 * gg.unsqueeze(1)
        similarity = along / length.clamp_min(torch.finfo(f.dtype).tiny).sqrt()
        direction = F.normalize(own_sum + SHRINKAGE * g, dim=-1)
        similarity = similarity.scatter(1, own.unsqueeze(1), (f * direction).sum(dim=1, keepdim=True))
        overall_part = fg / gg.clamp_min(torch.finfo(f.dtype).tiny).sqrt()
        return -(similarity.amax(dim=1) + overall_part + self._text(f))

    def threshold(self, rate: float = FALSE_ALARMS) -> Threshold:
        """Return the threshold above which a share ``rate`` of in-distribution images lies, at most and on average.

        Raises:
            ConfigError: the rate is no share, or there are too few training images for any threshold.
        """
        if not 0 < rate < 1:
            raise ConfigError(f"The rate of false alarms must lie between 0 and 1, not {rate}.")
        scores = self.held_out.double()
        N = len(scores)
        # a new image lies above the rank-th largest of N with chance rank / (N + 1)
        rank = math.floor(rate * (N + 1) + 1e-9)
        if rank >= 1:
            return Threshold(float(scores.sort(descending=True).values[rank - 1]), counted=True)
        if N < 3:
            raise ConfigError(f"A threshold for the OOD score needs at least 3 training images; there are {N}.")
        quantile = float(scipy.special.stdtrit(N - 1, rate)) * math.sqrt(1 + 1 / N)
        return Threshold(float(scores.mean() - quantile * scores.std()), counted=False)

    def nearest(self, f: Tensor, k: int = 1) -> Neighbors:
        """Return the k training images most similar to each of N with unit-length features (N, d)."""
        return Neighbors(*(f @ self.features.mT).topk(min(k, len(self.features)), dim=1))

    @cached_property
    def _sums(self) -> tuple[Tensor, Tensor, Tensor]:
        """Images (C,) and sums of features (C, d) by class, and the mean (d,) of the means of classes with images."""
        C = len(self.texts)
        counts = torch.bincount(self.labels, minlength=C).to(self.features.dtype)
        sums = torch.zeros(C, self.features.shape[1], dtype=self.features.dtype, device=self.features.device)
        sums = sums.index_add(0, self.labels, self.features)
        return counts, sums, (sums / counts.clamp_min(1).unsqueeze(1)).sum(dim=0) / (counts > 0).sum().clamp_min(1)

    def _text(self, f: Tensor) -> Tensor:
        similarity = f @ self.texts.mT
        return TEXT_WEIGHT * (similarity.amax(dim=1) - similarity.mean(dim=1))

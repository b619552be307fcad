"""Out-of-distribution images: a score, and the threshold above which an image is flagged.

Two things can be strange about an image. It may show *another kind of thing*: then it lies far from all that was
learned, and its unfamiliarity is large. That is, for a unit-length feature ``f``, minus

    max_c f . m_c  +  f . g  +  `TEXT_WEIGHT` (max_c f . t_c - mean_c f . t_c),

with the direction ``m_c`` of the training images of class c, the direction ``g`` of all of them, and the texts ``t_c``.
The first two ask whether images like this one were there to learn from. The last asks whether one text fits it better
than the others; it is what the reference (MCM, the largest softmax of the similarities) measures, to first order.
With few images ``m_c`` is uncertain, so it is shrunk towards ``g`` as if `SHRINKAGE` more images had been seen there.

Or it may show *another class of the same kind*: a breed of dog beside other breeds. It is as familiar as they are, but
nearer to the middle of all than to any class; that is the relative Mahalanobis distance. The score is

    s(r)  +  `FAR_WEIGHT` s(u),        s(x) = log(1 + e^x),

both distance ``r`` and unfamiliarity ``u`` in standard deviations from their means over the training images, each as if
it had not been among them. An image is strange if either is large. Neither makes up for the other: far below its mean
it counts no more, as a faded picture may lie far out on the side of one class. Without two images of each class on
average nothing is known within classes, and the score is the unfamiliarity alone.

All of this is about frozen features: whatever else was learned, they have not seen the training images.

The threshold comes from those held-out scores, or from images that were held out altogether.
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
from kalmanclip.prediction.mahalanobis import RelativeMahalanobis
from kalmanclip.prediction.predictive import Neighbors

SHRINKAGE = 3.0
"""So many images' worth of the overall mean is in the mean of a class. Chosen on training images."""

TEXT_WEIGHT = 4.0
"""How much the texts count beside the images. Chosen on training images."""

FAR_WEIGHT = 2.0
"""How much unfamiliarity counts beside the distance. Chosen on training images outside the shots."""

FALSE_ALARMS = 0.05
"""The share of in-distribution images that may be flagged, unless another is asked for."""

CONFIDENCE = 0.9
"""The probability with which the interval of a threshold holds its share of false alarms."""

_TAILS = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
_SAME = 1e-3  # features of one image, in half precision, are as near as that


class Threshold(NamedTuple):
    """Above which score an image counts as out-of-distribution.

    Attributes:
        value: images above it are flagged.
        counted: whether it is a rank among held-out images. If there are too few of them for the rate that was asked
            for, it is what a Gaussian of their mean and spread makes of it.
        interval: between which shares of false alarms this threshold has with probability `CONFIDENCE`, over draws of
            the held-out images; None unless counted.
        calibrated: whether those images were held out altogether. Then rate and interval hold exactly, for images
            exchangeable with them; else each was left out of what scored it, and they hold approximately.
    """

    value: float
    counted: bool
    interval: tuple[float, float] | None = None
    calibrated: bool = False


class _Strangeness(NamedTuple):
    """Of N images: the relative distance, None where it cannot be known, and the unfamiliarity, (N,) each."""

    near: Tensor | None
    far: Tensor


@dataclass(frozen=True, eq=False)
class OODDetector:
    """The training images of a classifier, as far as the out-of-distribution score needs them.

    Attributes:
        features: of their centre crops, unit-length (N, d), rounded to half precision: that is how they are stored.
        labels: (N,), numbers of the classes.
        texts: of the classes, unit-length (C, d).
        names: short names of the images, N of them.
        calibration: scores (n,) of images held out altogether; None: there are none.
    """

    features: Tensor
    labels: Tensor
    texts: Tensor
    names: tuple[str, ...]
    calibration: Tensor | None = None

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, texts: Tensor, names: Sequence[str]) -> OODDetector:
        """Make one of unit-length features (N, d), labels (N,), text weights (C, d) and N names."""
        if not len(features) == len(labels) == len(names) or texts.shape[-1] != features.shape[-1]:
            raise ConfigError("features, labels, texts and names of training images do not belong together")
        return cls(features.half().to(features.dtype), labels, F.normalize(texts, dim=-1), tuple(names))

    def with_more(self, features: Tensor, labels: Tensor, names: Sequence[str]) -> OODDetector:
        """Return one of these and further images of the same classes; those that are there already count once."""
        more = OODDetector.of(features, labels, self.texts, names)
        same = (torch.cdist(more.features, self.features) < _SAME) & (more.labels.unsqueeze(1) == self.labels)
        new = ~same.any(dim=1)
        return replace(
            self,
            features=torch.cat([self.features, more.features[new]]),
            labels=torch.cat([self.labels, more.labels[new]]),
            names=self.names + tuple(name for name, keep in zip(more.names, new.tolist(), strict=True) if keep),
            calibration=None,  # it was about fewer images
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
        near = None if self._classes is None else self._classes.distance(f).to(f)
        return self._combined(_Strangeness(near, self.unfamiliarity(f)))

    @cached_property
    def held_out(self) -> Tensor:
        """The score (N,) of each training image as if it had not been among them."""
        return self._combined(self._held_out)

    def unfamiliarity(self, f: Tensor) -> Tensor:
        """Return how little unit-length features (N, d) are like the training images and their texts, (N,)."""
        _, sums, overall = self._sums
        directions = F.normalize(sums + SHRINKAGE * overall, dim=-1)
        return -((f @ directions.mT).amax(dim=1) + f @ F.normalize(overall, dim=-1) + self._text(f))

    def _combined(self, parts: _Strangeness) -> Tensor:
        """Return the scores (N,) of what is strange about images."""
        reference = self._held_out
        if parts.near is None or reference.near is None:
            return parts.far
        near, far = _standardized(parts.near, reference.near), _standardized(parts.far, reference.far)
        return F.softplus(near) + FAR_WEIGHT * F.softplus(far)

    @cached_property
    def _held_out(self) -> _Strangeness:
        near = None if self._classes is None else self._classes.held_out.to(self.features)
        return _Strangeness(near, self._unfamiliarity_held_out())

    @cached_property
    def _classes(self) -> RelativeMahalanobis | None:
        return RelativeMahalanobis.of(self.features, self.labels, len(self.texts))

    def _unfamiliarity_held_out(self) -> Tensor:
        """Return the unfamiliarity (N,) of each training image as if it had not been among them."""
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

        It is a rank among the scores of images held out altogether, if they are enough, or of the training images.

        Raises:
            ConfigError: the rate is no share, or there are too few training images for any threshold.
        """
        if not 0 < rate < 1:
            raise ConfigError(f"The rate of false alarms must lie between 0 and 1, not {rate}.")
        calibrated = self.calibration is not None and _rank(rate, len(self.calibration)) >= 1
        scores = (self.held_out if not calibrated or self.calibration is None else self.calibration).double()
        N, rank = len(scores), _rank(rate, len(scores))
        if rank >= 1:
            # the chance that a new image lies above the rank-th largest of N has this distribution
            low, high = (float(scipy.special.betaincinv(rank, N + 1 - rank, q)) for q in _TAILS)
            value = float(scores.sort(descending=True).values[rank - 1])
            return Threshold(value, counted=True, interval=(low, high), calibrated=calibrated)
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


def _rank(rate: float, n: int) -> int:
    """Return the largest rank that a new image exceeds with at most the chance ``rate``: rank / (n + 1)."""
    return math.floor(rate * (n + 1) + 1e-9)


def _standardized(values: Tensor, reference: Tensor) -> Tensor:
    """Return values (N,) less the mean of a reference (M,), in its standard deviations."""
    return (values - reference.mean()) / reference.std().clamp_min(torch.finfo(values.dtype).tiny)

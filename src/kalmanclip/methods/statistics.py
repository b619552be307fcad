"""Sufficient statistics of the images learned from: counts, means, and the covariance within classes.

A Gaussian belief about class weights is not enough to go on learning from when *new* classes come. The images it was
learned from were told apart with great certainty, so their information, as it was at the mode, is small and local; and
nothing in it says that they are none of the new classes. So a few sums of their features are stored, of a size that
does not depend on the number of images. Pseudo-images stand for the images: they are drawn from one Gaussian per class,
with its own mean and the covariance common to all. Their likelihood has the true one's shape far from the mode; a
linear term, the *slope*, gives it the true one's gradient at the mode. Without new images the mode stays where it is.

Sums add: statistics of different images of the same classes, made anywhere, become one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from kalmanclip.errors import ConfigError
from kalmanclip.filtering.linalg import check_finite, eigh, spectral

PSEUDO_IMAGES = 256
"""Drawn to stand for those of one class: so few that each weighs much would be told apart too easily."""

MOST = 8192
"""Of all classes together."""

_LEAST = 16  # of each, where there are very many

_NUMBERS = 2**22  # of features that are in double precision at a time, for the memory

_POWER = 0.75  # of the covariance within classes: see docs/method.md for what other powers give
_FLOOR = 0.03  # relative to its largest eigenvalue: never divide by what was not seen

PSEUDO_COUNT = 2.0
"""Images like the mean of all that a class mean is drawn to: that of one image is far off."""


@dataclass(frozen=True, eq=False)
class ClassStatistics:
    """Sums over images, whose features are unit-length; the crops of an image count one together.

    Attributes:
        count: images of each class, (C,).
        total: sum of the features of each class, (C, d).
        within: scatter of the features around the means of their classes, (d, d).
        slope: what the gradient of the log-likelihood of the images, with respect to the class weights and at the mode,
            has more than that of the pseudo-images, (C, d).
        gain_slope: the same for the gain, ().
    """

    count: Tensor
    total: Tensor
    within: Tensor
    slope: Tensor
    gain_slope: Tensor

    @classmethod
    def empty(cls, classes: int, like: Tensor) -> ClassStatistics:
        """Return those of no images. ``like``: any tensor (..., d) of its kind."""
        d, zero = like.shape[-1], like.new_zeros
        return cls(zero(classes), zero(classes, d), zero(d, d), zero(classes, d), zero(()))

    @classmethod
    def of(cls, crops: Tensor, labels: Tensor, classes: int) -> ClassStatistics:
        """Return those of images with crops (N, V, d) and labels (N,)."""
        made = cls.empty(classes, crops)
        total, within = (torch.zeros_like(sums, dtype=torch.float64) for sums in (made.total, made.within))
        rows = max(1, _NUMBERS // crops[:1].numel())
        batches = list(zip(crops.split(rows), labels.split(rows), strict=True))
        for f, y in batches:
            total.index_add_(0, y, f.double().mean(dim=1))
        count = torch.bincount(labels, minlength=classes)
        means = total / count.clamp_min(1).unsqueeze(1)
        for f, y in batches:
            around = (f.double() - means[y].unsqueeze(1)).flatten(0, 1)
            within += around.mT @ around / crops.shape[1]
        check_finite(within, "the scatter of the features")
        return replace(made, count=count.to(crops), total=total.to(crops), within=within.to(crops))

    def select(self, rows: Sequence[int | None]) -> ClassStatistics:
        """Return those of other classes: row c is old class ``rows[c]``, or one without images if None.

        What all classes share stays per image what it was.
        """
        old = torch.tensor([0 if row is None else row for row in rows], device=self.count.device)
        known = torch.tensor([row is not None for row in rows], device=self.count.device)
        column = known.unsqueeze(1)
        count = self.count[old] * known
        share = count.sum() / self.count.sum().clamp_min(1)
        total, slope = self.total[old] * column, self.slope[old] * column
        return ClassStatistics(count, total, self.within * share, slope, self.gain_slope * share)

    def __add__(self, other: ClassStatistics) -> ClassStatistics:
        """Return those of both sets of images, which are of the same classes."""
        n, m = self.count.double(), other.count.double()
        apart = self.means.double() - other.means.double()
        shared = n * m / (n + m).clamp_min(1)  # scatter of two means around their common one
        return ClassStatistics(
            self.count + other.count,
            self.total + other.total,
            self.within + other.within + (apart.mT @ (shared.unsqueeze(1) * apart)).to(self.within),
            self.slope + other.slope,
            self.gain_slope + other.gain_slope,
        )

    @property
    def means(self) -> Tensor:
        """Of the features of each class, (C, d); zero where there are none."""
        return self.total / self.count.clamp_min(1).unsqueeze(1)

    def pseudo_images(self, most: int = MOST) -> tuple[Tensor, Tensor, Tensor]:
        """Return images that stand for those seen: unit-length features (n, d), labels (n,), weights (n,).

        The deviations from the mean are drawn for each class anew: few of many classes vary in all directions
        together. They come with both signs.
        """
        there = torch.where(self.count > 0)[0]
        pairs = max(_LEAST, min(PSEUDO_IMAGES, most // max(len(there), 1))) // 2
        root = spectral(self.within / self.count.sum().clamp_min(1), torch.sqrt).to(self.within)
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(len(there), pairs, len(root), generator=generator).to(root) @ root
        deviations = torch.cat([noise, -noise], dim=1)
        f = F.normalize(self.means[there].unsqueeze(1) + deviations, dim=-1)
        each = deviations.shape[1]
        weights = (self.count[there] / each).repeat_interleave(each)
        return f.flatten(0, 1), there.repeat_interleave(each), weights

    def metric(self) -> Tensor:
        """Return the symmetric square root of ``M`` (d, d), small where crops of the same class differ."""
        count = self.count.sum().clamp_min(1)
        covariance = self.within.double() / count
        values, vectors = eigh(covariance)
        largest = values[-1]
        if largest <= (100 * torch.finfo(self.within.dtype).eps) ** 2:  # one crop of each class, but for rounding
            return torch.eye(len(self.within)).to(self.within)
        powers = (values.clamp_min(0) + _FLOOR * largest) ** (-_POWER / 2)
        root = ((vectors * powers) @ vectors.mT).to(self.within)
        # the mean squared length of an image's feature becomes one
        size = (self.within @ root * root).sum() + (self.count * (self.means @ root).square().sum(dim=1)).sum()
        return root / (size / count).sqrt()

    def generative(self, root: Tensor) -> Tensor:
        """Return the classifier (C, d) of Gaussian classes with the covariance ``M^-1``, on unit-length features.

        With the class means drawn to the mean ``g`` of all, ``d_c = m_c - g``, the log-density of class c, less what
        all classes share, is ``(f - g)^T M d_c - d_c^T M d_c / 2``. The constant is put into the weights along ``g``,
        on which all images lie alike: there is no intercept. A class without images has zero weights.

        Args:
            root: a square root of ``M`` (d, d).
        """
        total, count = self.total.double(), self.count.double().unsqueeze(1)
        g = total.sum(dim=0) / count.sum().clamp_min(1)
        means = (total + PSEUDO_COUNT * g) / (count + PSEUDO_COUNT)
        away = means - g
        weights = away @ root.double() @ root.double().mT
        constant = -(weights * (g + away / 2)).sum(dim=1)
        along = g / (g @ g).clamp_min(torch.finfo(g.dtype).tiny)  # its product with an image is one on average
        return (weights + constant.unsqueeze(1) * along).to(root)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the sums as named tensors."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], classes: int, d: int) -> ClassStatistics:
        """Return what `state_dict` gave, about so many classes and features of size d."""
        shapes = {"count": (classes,), "total": (classes, d), "slope": (classes, d), "gain_slope": (), "within": (d, d)}
        check_shapes(state, shapes)
        return cls(**{name: state[name] for name in shapes})


def check_shapes(state: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `ConfigError` if a tensor is missing or has another shape."""
    for name, shape in shapes.items():
        if name not in state or state[name].shape != shape:
            raise ConfigError(f"its class residuals lack the tensor {name!r}, or it has another shape")

"""What the towers learn from: the label of each training image, predicted by its text and by the *other* images.

A classifier that has been fitted to an image says nothing about what the image's embedding should be: it is right
whatever that is. So each image is classified as if it were new. The logits of image i with embedding ``f`` are

    (a f . t_c / tau + b g_c(f)) / 2,

with ``t_c`` the text of class c and ``g_c`` the log-density of a Gaussian class around the mean of its images *without*
image i (`ClassStatistics.generative`). ``a`` and ``b`` are those under which the labels are most probable on the frozen
embeddings; half of that is softer, and leaves more to learn.

The observation is the deviance residual ``sqrt(-2 log p)`` of the label (docs/method.md), one number for each image.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kalmanclip.methods.statistics import PSEUDO_COUNT

_SOFTNESS = 2.0
_MEMORY = 0.3  # share of an image's latest embedding in the one that stands for it
_TYPICAL = 50.0  # of b, as of the class residuals
_SPREAD = 0.5  # standard deviation of a, and of b relative to its typical value, around one


class LeaveOneOut:
    """The classifier, and what it remembers of the training images.

    Left out of the means of the other images is the image itself, not its class alone; the precision and the mean of
    all images, to which every mean is drawn, are those of all. An image that is alone in its class has no others: its
    own earlier crops stand for them.

    Args:
        f: unit-length embeddings (N, d) of the training images.
        labels: (N,).
        T: the texts (C, d).
        root: a square root of the precision that the Gaussian classes share (d, d).
        scale: 1 / tau.

    Attributes:
        f: an embedding for each image, following the towers (N, d); changed in place.
        gains: ``a`` and ``b`` (2,).
    """

    def __init__(self, f: Tensor, labels: Tensor, T: Tensor, root: Tensor, scale: float) -> None:
        self.f, self.labels, self.T, self.scale = f.clone(), labels, T, scale
        self.M = root @ root.mT
        self._members = F.one_hot(labels, len(T)).to(f)
        self._count = self._members.sum(dim=0)
        self.gains = self._fitted()

    def logits(self, f: Tensor, positions: Tensor) -> Tensor:
        """Return logits (B, C) of embeddings (B, d) of the training images at these positions."""
        text, others = self._parts(f, positions)
        return (self.gains[0] * text + self.gains[1] * others) / _SOFTNESS

    def deviance(self, f: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return deviance residuals (B,) and their derivatives with respect to the embeddings (B, d)."""
        with torch.enable_grad():
            at = f.detach().requires_grad_()
            log_p = self.logits(at, positions).log_softmax(dim=1)
            nll = -log_p.gather(1, self.labels[positions].unsqueeze(1)).squeeze(1)
            # an image that is certain pulls no more, where the root's derivative would be infinite
            residual = (2 * nll).clamp_min(1e-10).sqrt()
            (slope,) = torch.autograd.grad(residual.sum(), at)
        return residual.detach(), slope

    def remember(self, f: Tensor, positions: Tensor) -> None:
        """Follow the towers: embeddings (B, d) of these images have been seen."""
        self.f.index_copy_(0, positions, F.normalize(self.f[positions].lerp(f, _MEMORY), dim=1))

    def _parts(self, f: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits (B, C) of the texts and of the other images."""
        k, g, total = PSEUDO_COUNT, self.f.mean(dim=0), self._members.mT @ self.f
        means = (total + k * g) / (self._count + k).unsqueeze(1)
        own = self.labels[positions]
        n = self._count[own].unsqueeze(1)
        rest = (total[own] - self.f[positions] + k * g) / (n - 1 + k)
        rest = torch.where(n > 1, rest, means[own])  # a lone image has its other crops
        away, own_away = (means - g) @ self.M, (rest - g) @ self.M
        others = f @ away.mT - (away * (means + g)).sum(dim=1) / 2
        mine = (f * own_away).sum(dim=1) - (own_away * (rest + g)).sum(dim=1) / 2
        return self.scale * f @ self.T.mT, others.scatter(1, own.unsqueeze(1), mine.unsqueeze(1))

    def _fitted(self) -> Tensor:
        """Return the gains under which the labels are most probable, by Newton's method: two numbers, convex.

        Images that are alone in their class say nothing: their own embeddings stand for the others.
        """
        several = torch.where(self._count[self.labels] > 1)[0]
        text, others = self._parts(self.f[several], several)
        x = torch.stack([text, _TYPICAL * others], dim=2).double()  # (N, C, 2)
        own = x.gather(1, self.labels[several].view(-1, 1, 1).expand(-1, 1, 2)).squeeze(1)
        gains = x.new_ones(2)
        for _ in range(20):
            p = (x @ gains).softmax(dim=1)
            mean = (p.unsqueeze(2) * x).sum(dim=1)
            gradient = (own - mean).sum(dim=0) - (gains - 1) / _SPREAD**2
            centred = x - mean.unsqueeze(1)
            curvature = torch.einsum("nc,nci,ncj->ij", p, centred, centred)
            curvature = curvature + torch.eye(2, dtype=x.dtype, device=x.device) / _SPREAD**2
            step = torch.linalg.solve(curvature, gradient)
            gains = gains + step * (1 / step.abs().max()).clamp_max(1)  # not too far at once
        return torch.stack([gains[0], _TYPICAL * gains[1]]).to(self.f)

"""Softmax regression by iterated Kalman updates: all images at once, re-linearised until the mean stands still.

The model: C classes, features ``x`` (d,), offsets ``o`` (C,) that are given (a zero-shot classifier's logits), and

    logits = gain o + scale Z x,        gain ~ N(1, 1 / gain_precision),        Z_c ~ N(Z0_c, Lambda_c^-1).

One Kalman update with Boehning's bound on the curvature of the log-likelihood (see `observation.bounded`) moves the
mean of ``Z`` by ``(gradient of the log-posterior) P``, ``P^-1 = Lambda + scale^2 / 2 sum_i w_i x_i x_i^T``, one matrix
for all classes: the belief of `kronecker`, in closed form. Filtering the same images again and again would count them
again and again. So each pass starts from the *prior* and only linearises anew, at the mean found last (the iterated
Kalman filter); its fixed point is the mode of the posterior, and each pass climbs, because the bound is one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from kalmanclip.errors import NumericalError
from kalmanclip.filtering.linalg import cholesky


@dataclass(frozen=True, eq=False)
class SoftmaxBelief:
    """A Gaussian belief over the class weights ``Z`` (C, d) and the gain.

    The classes are independent and class c has the precision ``Lambda_c = strength I + curvature_c gram``: what all
    images say about ``x x^T``, weighted by how undecided the class was about them (0 before any image).

    Attributes:
        mean: of ``Z`` (C, d).
        strength: of the prior, a number.
        gram: (d, d).
        curvature: (C,), not negative.
        gain: its mean, ().
        gain_precision: ().
    """

    mean: Tensor
    strength: float
    gram: Tensor
    curvature: Tensor
    gain: Tensor
    gain_precision: Tensor

    @classmethod
    def prior(cls, classes: int, like: Tensor, strength: float, gain_std: float) -> SoftmaxBelief:
        """The belief before any image: no weights, a gain of one. ``like``: any tensor (..., d) of its kind."""
        d = like.shape[-1]
        gain_precision = like.new_tensor(1 / gain_std**2)
        zero = like.new_zeros
        return cls(zero(classes, d), strength, zero(d, d), zero(classes), like.new_ones(()), gain_precision)

    def logits(self, x: Tensor, offsets: Tensor, scale: float) -> Tensor:
        """Logits (N, C) at the mean, of features (N, d) with offsets (N, C)."""
        return self.gain * offsets + scale * x @ self.mean.mT

    def variance(self, x: Tensor, offsets: Tensor, scale: float) -> Tensor:
        """Variance (N, C) of the logits, up to what all classes of an image share: that moves no probability."""
        values, Q = self._spectrum
        precision = self.strength + self.curvature.double().unsqueeze(1) * values.clamp_min(0)  # (C, d)
        weights = scale**2 * (x.double() @ Q).square() @ precision.reciprocal().mT
        centred = (offsets - offsets.mean(dim=1, keepdim=True)).double()
        total: Tensor = weights + centred.square() / self.gain_precision.double()
        return total.to(x)

    def sample(self, temper: float = 1.0, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Draws a gain () and class weights (C, d), with ``temper`` times the covariance.

        A ``generator`` lives on the CPU: the same draws on every device.
        """
        values, Q = self._spectrum
        precision = self.strength + self.curvature.double().unsqueeze(1) * values.clamp_min(0)  # (C, d)
        noise = torch.randn(self.mean.numel() + 1, generator=generator, dtype=torch.float64).to(values.device)
        away = math.sqrt(temper) * (noise[1:].view_as(precision) / precision.sqrt()) @ Q.mT
        gain = self.gain.double() + math.sqrt(temper) * noise[0] / self.gain_precision.double().sqrt()
        return gain.to(self.mean), self.mean + away.to(self.mean)

    @cached_property
    def _spectrum(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues (d,) and eigenvectors (d, d) of the gram matrix."""
        values, Q = torch.linalg.eigh(self.gram.double())
        return values, Q

    def chosen(self, rows: list[int | None]) -> SoftmaxBelief:
        """The belief about other classes: row c is old class ``rows[c]``, or a new one if None.

        A new class has no weights, but it is not free either: no image so far was one of it, which says as much as it
        said to the others. It gets their mean curvature. With none, a few images of it would claim every image's
        common direction for it, and it would swallow the classes that had to share that direction.
        """
        old = torch.tensor([0 if row is None else row for row in rows], device=self.mean.device)
        known = torch.tensor([row is not None for row in rows], device=self.mean.device)
        curvature = torch.where(known, self.curvature[old], self.curvature.mean())
        return replace(self, mean=self.mean[old] * known.unsqueeze(1), curvature=curvature)


def softmax_update(
    prior: SoftmaxBelief,
    x: Tensor,
    offsets: Tensor,
    labels: Tensor,
    weights: Tensor,
    scale: float,
    alpha: float = 0.0,
    iterations: int = 500,
    tolerance: float = 1e-4,
    start: SoftmaxBelief | None = None,
) -> SoftmaxBelief:
    """The belief after N weighted observations.

    The passes are accelerated (Nesterov's momentum, dropped whenever it points downhill): the same fixed point, in tens
    instead of thousands of passes.

    Args:
        prior: the belief before.
        x: features (N, d).
        offsets: (N, C).
        labels: (N,).
        weights: (N,), how often each counts.
        scale: of the logits.
        alpha: the paper's regulation: an observation counts ``exp(-alpha d_M)`` times, with ``d_M`` the Mahalanobis
            distance of its innovation at the mode, so that outlying images weigh less. Solved by re-weighting.
        iterations: passes at most.
        tolerance: the passes stop when the next one is predicted to gain less, in nats per unit of weight.
        start: where to begin, if a good guess is at hand; changes only the time it takes.

    Raises:
        NumericalError: the numbers broke down.
    """
    belief = start or prior
    regulated = weights
    for _ in range(3 if alpha else 1):  # the weights hardly move after the second time
        belief = _mode(prior, belief, x, offsets, labels, regulated, scale, iterations, tolerance)
        p = belief.logits(x, offsets, scale).softmax(dim=1)
        regulated = _regulated(weights, F.one_hot(labels, p.shape[1]) - p, alpha)
    return _posterior(prior, belief, x, offsets, p, regulated, scale)


def softmax_gradient(
    belief: SoftmaxBelief, x: Tensor, offsets: Tensor, labels: Tensor, weights: Tensor, scale: float, alpha: float
) -> tuple[Tensor, Tensor]:
    """Derivatives of the log-likelihood at the mean, for the weights (C, d) and for the gain (); see `softmax_update`.

    At the mode of a posterior they are what the prior pulls with.
    """
    p = belief.logits(x, offsets, scale).softmax(dim=1)
    e = F.one_hot(labels, p.shape[1]) - p
    e = _regulated(weights, e, alpha).unsqueeze(1) * e
    return scale * e.mT @ x, (e * offsets).sum()


def _regulated(weights: Tensor, e: Tensor, alpha: float) -> Tensor:
    """The weights (N,) of innovations (N, C), whitened by Boehning's bound as in the observation."""
    return weights * torch.exp(-alpha * math.sqrt(2) * e.norm(dim=1))


def _mode(
    prior: SoftmaxBelief,
    start: SoftmaxBelief,
    x: Tensor,
    offsets: Tensor,
    labels: Tensor,
    weights: Tensor,
    scale: float,
    iterations: int,
    tolerance: float,
) -> SoftmaxBelief:
    """The prior with mean and gain at the mode of the posterior."""
    d, C = x.shape[1], offsets.shape[1]
    targets = F.one_hot(labels, C).to(x.dtype)
    w = weights.unsqueeze(1)
    # Upper bounds of the curvature for both, doubled because they move at the same time.
    bound = scale**2 * x.mT @ (w * x) + prior.curvature.max() * prior.gram
    bound = bound + prior.strength * torch.eye(d, dtype=x.dtype, device=x.device)
    P = torch.cholesky_inverse(cholesky(bound, "the precision of the class weights"))
    centred = offsets - offsets.mean(dim=1, keepdim=True)
    gain_bound = (w * centred.square()).sum() + prior.gain_precision
    least = tolerance * float(weights.sum())

    Z, gain = start.mean, start.gain
    ahead_Z, ahead_gain, t = Z, gain, 1.0
    for _ in range(iterations):
        p = (ahead_gain * offsets + scale * x @ ahead_Z.mT).softmax(dim=1)
        e = w * (targets - p)
        away = ahead_Z - prior.mean
        pull = prior.strength * away + prior.curvature.unsqueeze(1) * (away @ prior.gram)
        gradient = scale * e.mT @ x - pull
        gain_gradient = (e * offsets).sum() - prior.gain_precision * (ahead_gain - prior.gain)
        step = gradient @ P
        gain_step = gain_gradient / gain_bound
        next_Z, next_gain = ahead_Z + step, ahead_gain + gain_step
        numbers = torch.stack(
            [
                (gradient * step).sum() + gain_gradient * gain_step,
                (gradient * (next_Z - Z)).sum() + gain_gradient * (next_gain - gain),
            ]
        ).tolist()
        if not all(map(math.isfinite, numbers)):
            raise NumericalError("the weights of the classes are not finite; check the features and the logit scale")
        expected, along = numbers
        t = t if along > 0 else 1.0
        following = (1 + math.sqrt(1 + 4 * t * t)) / 2
        momentum = (t - 1) / following
        ahead_Z, ahead_gain = next_Z + momentum * (next_Z - Z), next_gain + momentum * (next_gain - gain)
        Z, gain, t = next_Z, next_gain, following
        if expected <= least:
            break
    return replace(prior, mean=Z, gain=gain)


def _posterior(
    prior: SoftmaxBelief, mode: SoftmaxBelief, x: Tensor, offsets: Tensor, p: Tensor, weights: Tensor, scale: float
) -> SoftmaxBelief:
    """Mean and gain of the mode, with the information of the images at it: each class by its own mean curvature."""
    w = weights.unsqueeze(1)
    gram = scale**2 * x.mT @ (w * x)
    tiny = torch.finfo(x.dtype).tiny  # all weights, or all features, may be zero
    size = w * x.square().sum(dim=1, keepdim=True)
    curvature = (size * p * (1 - p)).sum(dim=0) / size.sum().clamp_min(tiny)
    seen, new = prior.gram.trace(), gram.trace()
    # so that no class's trace is lost or invented
    total = (prior.curvature * seen + curvature * new) / (seen + new).clamp_min(tiny)
    spread = (p * offsets.square()).sum(dim=1) - (p * offsets).sum(dim=1).square()
    return replace(
        mode,
        gram=prior.gram + gram,
        curvature=total,
        gain_precision=prior.gain_precision + (weights * spread).sum(),
    )

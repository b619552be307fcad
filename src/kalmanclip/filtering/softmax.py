"""Softmax regression as an iterated Kalman filter: all images at once, linearised at the mode of the posterior.

The model: C classes, features ``x`` (d,), offsets ``o`` (C,) that are given (a zero-shot classifier's logits), and

    logits = gain o + scale Z x,        gain ~ N(1, 1 / gain_precision),        Z_c ~ N(Z0_c, Lambda_c^-1).

Filtering the same images several times would count them several times. The iterated filter updates the *prior* instead,
each time linearised at the last mean. Its fixed point is the mode of the posterior, whatever curvature the update
assumes. Repeated updates converge too slowly: where the model is certain, the true curvature is far below any bound. So
the mode is found directly, by L-BFGS in coordinates in which the update of a uniform model (all classes equally
probable) has unit covariance.

Features and offsets are read where they lie, some images at a time: no copy of them is made, and what is computed of
each image and class is never there for all images at once.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from kalmanclip.errors import NumericalError
from kalmanclip.filtering.linalg import cholesky, solve_lower

_ROUNDS = 200  # of five steps each, at most

_NUMBERS = 2**22  # logits, or features, that are computed at a time, for the memory


@dataclass(frozen=True, eq=False)
class SoftmaxBelief:
    """A Gaussian belief over the class weights ``Z`` (C, d) and the gain.

    The classes are independent and class c has the precision ``Lambda_c = strength I + curvature_c gram``: the sum of
    ``x x^T`` over all images, weighted by the mean ``p (1 - p)`` of the class (0 before any image).

    Attributes:
        mean: mean of ``Z`` (C, d).
        strength: precision of the prior, a number.
        gram: (d, d).
        curvature: (C,), not negative.
        gain: mean of the gain ().
        gain_precision: precision of the gain ().
    """

    mean: Tensor
    strength: float
    gram: Tensor
    curvature: Tensor
    gain: Tensor
    gain_precision: Tensor

    @classmethod
    def prior(cls, classes: int, like: Tensor, strength: float, gain_std: float) -> SoftmaxBelief:
        """Return the belief before any image: zero weights, a gain of one; ``like`` (..., d) gives dtype and device."""
        d = like.shape[-1]
        gain_precision = like.new_tensor(1 / gain_std**2)
        zero = like.new_zeros
        return cls(zero(classes, d), strength, zero(d, d), zero(classes), like.new_ones(()), gain_precision)

    def logits(self, x: Tensor, offsets: Tensor, scale: float) -> Tensor:
        """Return logits (N, C) at the mean, of features (N, d) with offsets (N, C)."""
        return self.gain * offsets + scale * x @ self.mean.mT

    def variance(self, x: Tensor, offsets: Tensor, scale: float) -> Tensor:
        """Return the variance (N, C) of the logits, without the part common to all classes (no effect on softmax)."""
        precision, Q = self._spectrum
        weights = scale**2 * (x.double() @ Q).square() @ precision.reciprocal().mT
        centred = (offsets - offsets.mean(dim=1, keepdim=True)).double()
        total: Tensor = weights + centred.square() / self.gain_precision.double()
        return total.to(x)

    def joint(self, x: Tensor, offsets: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return what makes up the joint covariance of the logits of N images: features, variances, shared.

        That of class c is ``features diag(variances_c) features^T + shared_c shared_c^T`` (N, N); its diagonal is
        `variance`. Features (N, d), variances (C, d), shared (N, C).
        """
        precision, Q = self._spectrum
        centred = (offsets - offsets.mean(dim=1, keepdim=True)).double()
        parts = scale * x.double() @ Q, precision.reciprocal(), centred / self.gain_precision.double().sqrt()
        features, variances, shared = (part.to(x) for part in parts)
        return features, variances, shared

    def sample(self, temperature: float = 1.0, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Draw a gain () and class weights (C, d), with ``temperature`` times the covariance.

        A ``generator`` lives on the CPU: the same draws on every device.
        """
        precision, Q = self._spectrum
        noise = torch.randn(self.mean.numel() + 1, generator=generator, dtype=torch.float64).to(Q.device)
        away = math.sqrt(temperature) * (noise[1:].view_as(precision) / precision.sqrt()) @ Q.mT
        gain = self.gain.double() + math.sqrt(temperature) * noise[0] / self.gain_precision.double().sqrt()
        return gain.to(self.mean), self.mean + away.to(self.mean)

    @cached_property
    def _spectrum(self) -> tuple[Tensor, Tensor]:
        """Return eigenvalues (C, d) of the precisions, and the eigenvectors (d, d) that they share."""
        values, Q = torch.linalg.eigh(self.gram.double())
        return self.strength + self.curvature.double().unsqueeze(1) * values.clamp_min(0), Q

    def select_classes(self, rows: list[int | None]) -> SoftmaxBelief:
        """Return the belief about other classes: row c is old class ``rows[c]``, or a new one if None.

        A new class has zero weights and the mean curvature of the others: no image so far belonged to it, which is as
        informative about it as about them. Without curvature a few images of it would claim the direction common to all
        images, and draw images of the other classes to it.
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
    tolerance: float = 1e-5,
    start: SoftmaxBelief | None = None,
) -> SoftmaxBelief:
    """Return the belief after N weighted observations.

    Args:
        prior: the belief before.
        x: features (N, d).
        offsets: (N, C).
        labels: (N,).
        weights: (N,), how many observations each counts for.
        scale: of the logits.
        alpha: the paper's regulation: an observation counts ``exp(-alpha d_M)`` times, with ``d_M`` the Mahalanobis
            distance of its innovation at the mode, so that outlying images weigh less. Solved by re-weighting.
        tolerance: the search for the mode ends when five of its steps gain less, in nats per unit of weight.
        start: initial guess of the search; affects only its time.

    Raises:
        NumericalError: the numbers broke down.
    """
    belief = start or prior
    regulated = weights
    for _ in range(3 if alpha else 1):  # the weights hardly move after the second time
        belief = _mode(prior, belief, x, offsets, labels, regulated, scale, tolerance)
        if alpha:
            batches = _batches(x, offsets, labels, weights)
            regulated = torch.cat(
                [_regulated(w, _innovations(belief, x_b, o, y, scale), alpha) for x_b, o, y, w in batches]
            )
    return _posterior(prior, belief, x, offsets, regulated, scale)


def softmax_gradient(
    belief: SoftmaxBelief, x: Tensor, offsets: Tensor, labels: Tensor, weights: Tensor, scale: float, alpha: float
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the log-likelihood at the mean: weights (C, d) and gain (); see `softmax_update`.

    At the mode of a posterior it is minus the gradient of the log-prior.
    """
    slope, gain_slope = torch.zeros_like(belief.mean), torch.zeros_like(belief.gain)
    for x_b, o, y, w in _batches(x, offsets, labels, weights):
        e = _innovations(belief, x_b, o, y, scale)
        e *= _regulated(w, e, alpha).unsqueeze(1)
        slope += scale * e.mT @ x_b
        gain_slope += (e * o).sum()
    return slope, gain_slope


def _batches(*columns: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield some images at a time, of columns of which the first are features (N, d) and offsets (N, C)."""
    rows = max(1, _NUMBERS // max(columns[0].shape[1], columns[1].shape[1]))
    yield from zip(*(torch.split(column, rows) for column in columns), strict=True)


def _innovations(belief: SoftmaxBelief, x: Tensor, offsets: Tensor, labels: Tensor, scale: float) -> Tensor:
    """Return what was seen less what was expected, (N, C): 1 for the label, less the probabilities."""
    e = belief.logits(x, offsets, scale).softmax(dim=1).neg_()
    e[torch.arange(len(x), device=x.device), labels] += 1
    return e


def _regulated(weights: Tensor, e: Tensor, alpha: float) -> Tensor:
    """Return the regulated weights (N,) of innovations (N, C), whitened by Boehning's bound as in the observation."""
    return weights * torch.exp(-alpha * math.sqrt(2) * e.norm(dim=1))


def _mode(
    prior: SoftmaxBelief,
    start: SoftmaxBelief,
    x: Tensor,
    offsets: Tensor,
    labels: Tensor,
    weights: Tensor,
    scale: float,
    tolerance: float,
) -> SoftmaxBelief:
    """Return the prior with mean and gain moved to the mode of the posterior.

    The unknowns are ``U`` and ``u`` with ``Z = Z0 + U L^-1`` and ``gain = gain_0 + u / l``, where ``L L^T`` and ``l^2``
    are the precisions after an update of a model in which all classes are equally probable.
    """
    C, d = prior.mean.shape
    uniform = (1 - 1 / C) / C  # p (1 - p) of equal probabilities
    shift = offsets.mean(dim=1, keepdim=True)  # of all classes: it changes no probability
    gram, spread = torch.zeros_like(prior.gram), torch.zeros_like(prior.gain)
    for x_b, o, s, w in _batches(x, offsets, shift, weights.unsqueeze(1)):
        gram += scale**2 * x_b.mT @ (w * x_b)
        spread += (w * (o - s).square()).sum()
    precision = uniform * gram + prior.curvature.mean() * prior.gram
    precision = precision + prior.strength * torch.eye(d, dtype=x.dtype, device=x.device)
    L = cholesky(precision, "the precision of the class weights")
    L_inv = solve_lower(L, torch.eye(d, dtype=x.dtype, device=x.device))
    l_inv = (uniform * spread + prior.gain_precision).rsqrt()

    U = ((start.mean - prior.mean) @ L).requires_grad_()
    u = ((start.gain - prior.gain) / l_inv).requires_grad_()

    @torch.no_grad()
    def negative_log_posterior() -> float:
        A, away = U @ L_inv, l_inv * u
        Z, gain = prior.mean + A, float(prior.gain + away)
        slope, gain_slope = torch.zeros_like(Z), torch.zeros_like(away)
        # in single precision the last steps would be lost in rounding
        loss = torch.zeros((), dtype=torch.float64, device=x.device)
        for x_b, o, s, y, w in _batches(x, offsets, shift, labels, weights):
            centred, rows = o - s, torch.arange(len(x_b), device=x.device)
            log_p = torch.addmm(centred, x_b, Z.mT, beta=gain, alpha=scale).log_softmax(dim=1)
            loss -= (w * log_p[rows, y]).sum(dtype=torch.float64)
            e = log_p.exp_()
            e[rows, y] -= 1
            e *= w.unsqueeze(1)
            slope.addmm_(e.mT, x_b)
            gain_slope += torch.dot(e.flatten(), centred.flatten())
        pull = prior.strength * A + prior.curvature.unsqueeze(1) * (A @ prior.gram)
        U.grad = (scale * slope + pull) @ L_inv.mT
        u.grad = l_inv * (gain_slope + prior.gain_precision * away)
        value = float(loss + (A * pull).sum(dtype=torch.float64) / 2 + prior.gain_precision * away.double() ** 2 / 2)
        if not math.isfinite(value):
            raise NumericalError("the weights of the classes are not finite; check the features and the logit scale")
        return value

    solver = _LBFGS(
        [U, u], max_iter=5, history_size=10, tolerance_grad=0, tolerance_change=0, line_search_fn="strong_wolfe"
    )
    least, before = tolerance * float(weights.sum()), math.inf
    for _ in range(_ROUNDS):
        value = float(solver.step(negative_log_posterior))  # type: ignore[no-untyped-call]  # before its five steps
        if before - value <= least:
            break
        before = value
    U, u = U.detach(), u.detach()
    return replace(prior, mean=prior.mean + U @ L_inv, gain=prior.gain + l_inv * u)


class _LBFGS(torch.optim.LBFGS):
    """L-BFGS that does not import torch's compiler to keep it away: that would take longer than most searches."""

    add_param_group = inspect.unwrap(torch.optim.LBFGS.add_param_group)


def _posterior(
    prior: SoftmaxBelief, mode: SoftmaxBelief, x: Tensor, offsets: Tensor, weights: Tensor, scale: float
) -> SoftmaxBelief:
    """Return the mode with the precision of the images added: each class by its own mean curvature."""
    gram, curvature = torch.zeros_like(prior.gram), torch.zeros_like(prior.curvature)
    sizes, gain_precision = torch.zeros_like(prior.gain), torch.zeros_like(prior.gain)
    for x_b, o, w in _batches(x, offsets, weights.unsqueeze(1)):
        p = mode.logits(x_b, o, scale).softmax(dim=1)
        gram += scale**2 * x_b.mT @ (w * x_b)
        size = w * x_b.square().sum(dim=1, keepdim=True)
        curvature += (size * p * (1 - p)).sum(dim=0)
        sizes += size.sum()
        spread = (p * o.square()).sum(dim=1) - (p * o).sum(dim=1).square()
        gain_precision += (w.squeeze(1) * spread).sum()
    tiny = torch.finfo(x.dtype).tiny  # all weights, or all features, may be zero
    seen, new = prior.gram.trace(), gram.trace()
    # weighted so that the trace of every class's precision is exact
    total = (prior.curvature * seen + curvature / sizes.clamp_min(tiny) * new) / (seen + new).clamp_min(tiny)
    return replace(
        mode,
        gram=prior.gram + gram,
        curvature=total,
        gain_precision=prior.gain_precision + gain_precision,
    )

"""Targets that are no Gaussian numbers: class labels, yes or no, counts. For any `torch.nn.Module`.

The exponential family tells the noise: with natural parameters ``z`` (the outputs of the module), ``y_hat = E[T(y)|z]``
and ``R = Cov[T(y)|z]``, and the derivative of the one with respect to ``z`` is the other. Everything is observed in
coordinates in which the noise is the identity, with ``L L^T = R`` and ``H = L^T J``: then ``H^T H = J^T R J`` is the
Fisher information and ``H^T (y - y_hat)`` the gradient of the log-likelihood, also where ``R`` is singular.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kalmanclip.errors import ConfigError
from kalmanclip.filtering.beliefs.base import Belief
from kalmanclip.filtering.module import linearize_module
from kalmanclip.filtering.observation import Observation

SAMPLES = 256
"""Draws of the parameters for one predictive log-likelihood, half of them mirror images of the others."""

_LEAST = 1e-20  # of a variance that is divided by: the products that count are finite


def whiten_labels(p: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the categorical distribution in coordinates of unit covariance.

    With ``L = diag(sqrt p) - p sqrt(p)^T``, for which ``L L^T = diag(p) - p p^T``, the innovation
    ``(target - p) / sqrt(p)`` has ``L innovation = target - p``.

    Args:
        p: class probabilities (b, K).
        target: one-hot (b, K).

    Returns:
        Targets (b, K), predictions (b, K) and ``L^T`` (b, K, K).
    """
    root = p.clamp_min(_LEAST).sqrt()  # 1 / root stays finite; root times it cancels in the gradient
    return target / root, p / root, root.diag_embed() - root.unsqueeze(2) * p.unsqueeze(1)


def bound_labels(p: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same with Boehning's bound on the covariance, ``V V^T = (I - 1 1^T / K) / 2``, as ``V`` (K, K)."""
    root, K = math.sqrt(2.0), p.shape[1]
    V = (torch.eye(K, dtype=p.dtype, device=p.device) - 1 / K) / root
    return root * target, root * p, V


class ModuleLikelihood(ABC):
    """The targets of a batch given a module's outputs: what `KalmanFilter.step` observes.

    Called with parameters mu (n,), it gives the `Observation` there.

    Args:
        module: maps a batch (b, ...) to natural parameters ``z``; see `observe_module`.
        x: inputs (b, ...).
        y: targets, one for each example.
    """

    def __init__(self, module: nn.Module, x: Tensor, y: Tensor) -> None:
        if y.ndim != 1 or len(y) != len(x):
            raise ConfigError(f"give one target per example, ({len(x)},), not targets of shape {tuple(y.shape)}")
        self.y = y
        self._linearized = linearize_module(module, x)

    def __call__(self, mu: Tensor) -> Observation:
        """Return the observation linearised at mu (n,)."""
        z, J = self._outputs(mu)
        y, y_hat, LT = self.whitened(z)
        H = (LT @ J).flatten(0, 1)
        return Observation(y.flatten(), y_hat.flatten(), H, torch.eye(len(H), dtype=H.dtype, device=H.device))

    def log_likelihood(self, belief: Belief, samples: int = SAMPLES) -> float:
        """Return the sum over the batch of ``log p(y | x)``, averaged over a belief that is linearised at its mean.

        The draws are the same for beliefs of one structure, so that priors can be compared.
        """
        z, J = self._outputs(belief.mean)
        generator = torch.Generator(belief.mean.device).manual_seed(0)
        away = belief.sample((samples + 1) // 2, generator) - belief.mean
        moved = torch.einsum("bkn,sn->sbk", J, away)
        draws = torch.cat([z + moved, z - moved])
        return float((self.log_density(draws).logsumexp(dim=0) - math.log(len(draws))).sum())

    @abstractmethod
    def whitened(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return targets (b, k), predictions (b, k) and ``L^T`` (b, k, K) at natural parameters z (b, K)."""

    @abstractmethod
    def log_density(self, z: Tensor) -> Tensor:
        """Return ``log p(y | z)`` (samples, b) at natural parameters (samples, b, K)."""

    def _outputs(self, mu: Tensor) -> tuple[Tensor, Tensor]:
        z, J = self._linearized(mu)
        return (z[:, None], J[:, None]) if z.ndim == 1 else (z, J)


class _Labels(ModuleLikelihood):
    def __init__(self, module: nn.Module, x: Tensor, y: Tensor, bounded: bool) -> None:
        super().__init__(module, x, y)
        if y.is_floating_point() or bool((y < 0).any()):
            raise ConfigError("labels are whole numbers from 0; give the numbers of the classes")
        self._whiten = bound_labels if bounded else whiten_labels

    def whitened(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        K = z.shape[1]
        if int(self.y.max()) >= K:
            raise ConfigError(f"the label {int(self.y.max())} needs more outputs than the module's {K}")
        return self._whiten(z.softmax(dim=1), F.one_hot(self.y.long(), K).to(z))

    def log_density(self, z: Tensor) -> Tensor:
        y = self.y.long().expand(len(z), -1).unsqueeze(2)
        return z.log_softmax(dim=2).gather(2, y).squeeze(2)


class _OneOutput(ModuleLikelihood):
    """A likelihood of one natural parameter per example."""

    def whitened(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if z.shape[1] != 1:
            raise ConfigError(f"the module must have one output per example, not {z.shape[1]}")
        mean, variance = self.moments(z)
        root = variance.clamp_min(_LEAST).sqrt()
        return self.y[:, None].to(z) / root, mean / root, root[:, :, None]

    @abstractmethod
    def moments(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of a target (b, 1)."""


class _Binary(_OneOutput):
    def moments(self, z: Tensor) -> tuple[Tensor, Tensor]:
        p = z.sigmoid()
        return p, p * (-z).sigmoid()

    def log_density(self, z: Tensor) -> Tensor:
        return torch.where(self.y > 0, F.logsigmoid(z[:, :, 0]), F.logsigmoid(-z[:, :, 0]))


class _Counts(_OneOutput):
    def moments(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return z.exp(), z.exp()

    def log_density(self, z: Tensor) -> Tensor:
        y = self.y.to(z)
        return y * z[:, :, 0] - z[:, :, 0].exp() - torch.lgamma(y + 1)


def observe_labels(module: nn.Module, x: Tensor, labels: Tensor, bounded: bool = False) -> ModuleLikelihood:
    """Observe class labels, for `KalmanFilter.step`; the module's outputs are logits (b, K).

    Args:
        module: as in `observe_module`.
        x: inputs (b, ...).
        labels: whole numbers (b,), in 0..K-1.
        bounded: with Boehning's bound on the curvature instead of the curvature itself: shorter steps where the module
            is sure and wrong.
    """
    return _Labels(module, x, labels, bounded)


def observe_binary(module: nn.Module, x: Tensor, y: Tensor) -> ModuleLikelihood:
    """Observe what is so or not so; the module's one output is the log-odds.

    Args:
        module: as in `observe_module`, with outputs (b,) or (b, 1).
        x: inputs (b, ...).
        y: zeros and ones (b,), or truth values.
    """
    if not bool(((y == 0) | (y == 1)).all()):
        raise ConfigError("binary targets are 0 and 1, or truth values")
    return _Binary(module, x, y)


def observe_counts(module: nn.Module, x: Tensor, counts: Tensor) -> ModuleLikelihood:
    """Observe counts of a Poisson distribution; the module's one output is the logarithm of the rate.

    Args:
        module: as in `observe_module`, with outputs (b,) or (b, 1).
        x: inputs (b, ...).
        counts: (b,), not negative.
    """
    if not bool((counts >= 0).all()):
        raise ConfigError("counts must not be negative")
    return _Counts(module, x, counts)

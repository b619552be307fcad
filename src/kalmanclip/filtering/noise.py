"""The observation noise R: a moving average over the innovations (the paper, "Robustness to OOD")."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kalmanclip.errors import ConfigError
from kalmanclip.filtering.linalg import mahalanobis

STRUCTURES = ("full", "exchangeable")

# The least variance, relative to the mean one, of an exchangeable R in the direction of the batch mean when it is
# carried over to a larger batch: no Mahalanobis distance is then more than ten times too large.
LEAST_COMMON_VARIANCE = 1e-2


@dataclass(frozen=True)
class NoiseConfig:
    """Options of the estimate of the observation noise.

    Attributes:
        beta: forgetting factor of the moving average, in [0, 1].
        method: the current estimate, 1: `e e^T`, 2: `e e^T + H Sigma H^T` (Algorithm 1).
        initial: epsilon in `R_0 = epsilon I`. `None` measures it: the mean squared innovation of the first
            batch.
        structure: "full" has one covariance per pair of positions in the batch (the paper). "exchangeable" has one
            variance and one covariance common to all, since positions in a batch mean nothing; the filter then does
            not depend on the order within a batch.
    """

    beta: float = 0.98
    method: int = 2
    initial: float | None = None
    structure: str = "full"

    def __post_init__(self) -> None:
        if not 0 <= self.beta <= 1:
            raise ConfigError(f"beta must be between 0 and 1, not {self.beta}")
        if self.method not in (1, 2):
            raise ConfigError(f"the noise method must be 1 or 2, not {self.method}")
        if self.initial is not None and not (self.initial > 0 and math.isfinite(self.initial)):
            raise ConfigError(f"the initial observation noise must be positive and finite, not {self.initial}")
        if self.structure not in STRUCTURES:
            raise ConfigError(f"unknown noise structure {self.structure!r}; choose one of {', '.join(STRUCTURES)}")


class Noise(ABC):
    """Interface of the observation noise to a filter step. e is the innovation (m,)."""

    @abstractmethod
    def previous(self, e: Tensor) -> Tensor:
        """Return R_{k-1} (m, m) for a batch of the size of e."""

    @abstractmethod
    def estimate(self, e: Tensor, HSH: Tensor, lam: float | Tensor) -> Tensor:
        """Return R_k (m, m), changing nothing; HSH is `H Sigma H^T` (m, m) and lam the regulation."""

    @abstractmethod
    def accept(self, R_k: Tensor, ok: Tensor | None = None) -> None:
        """Make R_k (m, m), as `estimate` returned it, the noise of the next step.

        Where `holds` is true, this changes the tensors of the state in place, unless ``ok``, a 0-d boolean, is false.
        """

    def holds(self, m: int) -> bool:
        """Return whether the state already covers a batch of m targets, so that `accept` changes it in place."""
        return True

    def distance(self, e: Tensor) -> Tensor:
        """Return the Mahalanobis distance d_M of e under R_{k-1}: a scalar tensor."""
        return mahalanobis(e, self.previous(e))


class GivenNoise(Noise):
    """The noise R (m, m) that a likelihood brings along: nothing to estimate, no state."""

    def __init__(self, R: Tensor) -> None:
        self.R = R

    def previous(self, e: Tensor) -> Tensor:
        """Return R (m, m)."""
        return self.R

    def estimate(self, e: Tensor, HSH: Tensor, lam: float | Tensor) -> Tensor:
        """Return R (m, m)."""
        return self.R

    def accept(self, R_k: Tensor, ok: Tensor | None = None) -> None:
        """Do nothing."""


class ObservationNoise(Noise):
    """The paper's moving average `R_k = beta R_{k-1} + lam (1 - beta) Rhat_k`.

    Attributes:
        config: the options.
        memory: R in the structure of the options, `None` before the first accepted batch.
    """

    def __init__(self, config: NoiseConfig | None = None) -> None:
        self.config = config or NoiseConfig()
        self.memory: _Full | _Exchangeable | None = None

    @property
    def R(self) -> Tensor | None:
        """A copy of the noise (M, M) for the largest batch seen so far; `None` before the first."""
        return None if self.memory is None else self.memory.block(self.memory.size).clone()

    def previous(self, e: Tensor) -> Tensor:
        """Return R_{k-1} (m, m); before the first accepted batch, R_0."""
        if self.memory is not None:
            return self.memory.block(e.shape[0])
        epsilon = e.square().mean() if self.config.initial is None else self.config.initial
        return epsilon * torch.eye(e.shape[0], dtype=e.dtype, device=e.device)

    def estimate(self, e: Tensor, HSH: Tensor, lam: float | Tensor) -> Tensor:
        """Return `R_k = beta R_{k-1} + lam (1 - beta) Rhat_k` (m, m)."""
        beta = self.config.beta
        R_hat = torch.outer(e, e) if self.config.method == 1 else torch.addr(HSH, e, e)
        R_k = beta * self.previous(e) + lam * (1 - beta) * R_hat
        return _MEMORY[self.config.structure].project(R_k)

    def accept(self, R_k: Tensor, ok: Tensor | None = None) -> None:
        """Make R_k (m, m) the noise of the next step."""
        if self.memory is None:
            self.memory = _MEMORY[self.config.structure].of(R_k)
        else:
            self.memory.absorb(R_k, self.config.beta, ok)

    def holds(self, m: int) -> bool:
        """Return whether the state covers a batch of m targets: never before the first accepted batch."""
        return self.memory is not None and self.memory.holds(m)

    def tensors(self) -> list[Tensor]:
        """Return the tensors that `accept` changes; none before the first accepted batch."""
        state = {} if self.memory is None else self.memory.state_dict()
        return [tensor for name, tensor in state.items() if name != "size"]

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of the state as named tensors; empty before the first accepted batch."""
        if self.memory is None:
            return {}
        state = self.memory.state_dict()
        return {name: t.clone(memory_format=torch.contiguous_format) for name, t in state.items()}

    @classmethod
    def from_state(cls, config: NoiseConfig, state: Mapping[str, Tensor]) -> "ObservationNoise":
        """Rebuild the noise from its options and the tensors of its `state_dict`."""
        noise = cls(config)
        if state:
            try:
                noise.memory = _MEMORY[config.structure].from_state(state)
            except KeyError as error:
                raise ConfigError(f"the state of {config.structure!r} noise lacks {error}") from None
        return noise


class _Full:
    """R by position in the batch, as large as the largest batch so far."""

    def __init__(self, R: Tensor) -> None:
        self.R = R

    @classmethod
    def of(cls, R_k: Tensor) -> "_Full":
        return cls(R_k.clone())  # the state changes in place, and R_k is the caller's

    @staticmethod
    def project(R: Tensor) -> Tensor:
        return R

    @property
    def size(self) -> int:
        return self.R.shape[0]

    def block(self, m: int) -> Tensor:
        """Return R (m, m). Positions beyond the largest batch so far are independent, with the mean variance."""
        if m == self.size:
            return self.R
        if m < self.size:
            return self.R[:m, :m]
        grown = torch.eye(m, dtype=self.R.dtype, device=self.R.device) * self.R.diagonal().mean()
        grown[: self.size, : self.size] = self.R
        return grown

    def holds(self, m: int) -> bool:
        return m <= self.size

    def absorb(self, R_k: Tensor, beta: float, ok: Tensor | None) -> None:
        """Set the leading block to R_k.

        A short batch leaves the block of the later positions unchanged. The cross blocks cannot stay as they are, or R
        could lose its definiteness where the leading block has shrunk; they are scaled by sqrt(beta). With D =
        diag(sqrt(beta), ..., 1, ...) the result is then D R D plus the new estimate in the leading block, a sum of
        positive semi-definite matrices.
        """
        m = R_k.shape[0]
        if m > self.size:
            self.R = R_k.clone()
            return
        if m < self.size:
            R = self.R.clone()
            R[:m, m:] *= beta**0.5
            R[m:, :m] *= beta**0.5
            R[:m, :m] = R_k
            R_k = R
        _replace(self.R, R_k, ok)

    def state_dict(self) -> dict[str, Tensor]:
        return {"R": self.R}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> "_Full":
        return cls(state["R"].clone())


class _Exchangeable:
    """One variance a and one covariance b, for every position and every pair: valid for all batch sizes."""

    def __init__(self, a: Tensor, b: Tensor, size: int) -> None:
        self.a, self.b, self.size = a, b, size

    @classmethod
    def of(cls, R_k: Tensor) -> "_Exchangeable":
        return cls(*_average(R_k), R_k.shape[0])

    @staticmethod
    def project(R: Tensor) -> Tensor:
        return _exchangeable(*_average(R), R.shape[0])

    def block(self, m: int) -> Tensor:
        """Return R (m, m). A negative b measured on small batches is raised until R is positive definite."""
        b = self.b
        if m > 1:
            b = torch.maximum(b, -(1 - LEAST_COMMON_VARIANCE) * self.a / (m - 1))
        return _exchangeable(self.a, b, m)

    def holds(self, m: int) -> bool:
        return m <= self.size  # the size is part of the state, and no tensor

    def absorb(self, R_k: Tensor, beta: float, ok: Tensor | None) -> None:
        """Set a and b to the averages of R_k. A batch of one has no covariance: the correlation b / a stays."""
        a, b = _average(R_k)
        if R_k.shape[0] == 1:
            b = self.b / self.a * a  # in this order: |b / a| is at most 1, while b * a overflows where a is large
        _replace(self.a, a, ok)
        _replace(self.b, b, ok)
        self.size = max(self.size, R_k.shape[0])

    def state_dict(self) -> dict[str, Tensor]:
        return {"a": self.a, "b": self.b, "size": torch.tensor(self.size)}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> "_Exchangeable":
        return cls(state["a"].clone(), state["b"].clone(), int(state["size"]))


def _replace(old: Tensor, new: Tensor, ok: Tensor | None) -> None:
    """Overwrite a tensor of the state, unless `ok`, a 0-d boolean, is false."""
    if ok is None:
        old.copy_(new)
    else:
        torch.where(ok, new, old, out=old)


def _average(R: Tensor) -> tuple[Tensor, Tensor]:
    """Return the means of the diagonal and of the rest of R (m, m): its projection on exchangeable matrices.

    This is the average of R over all permutations of the batch, so it is positive semi-definite as R is.
    """
    m = R.shape[0]
    a = R.diagonal().mean()
    if m == 1:
        return a, torch.zeros_like(a)
    return a, (R.sum() - R.diagonal().sum()) / (m * (m - 1))


def _exchangeable(a: Tensor, b: Tensor, m: int) -> Tensor:
    """Return the matrix (m, m) with a on the diagonal and b elsewhere."""
    identity = torch.eye(m, dtype=a.dtype, device=a.device)
    return (a - b) * identity + b


_MEMORY: dict[str, type[_Full | _Exchangeable]] = {"full": _Full, "exchangeable": _Exchangeable}

"""The interface of a Gaussian belief over the parameters, whatever the structure of its covariance.

A structure is one subclass in one file of this folder. It registers itself under a name::

    class Diagonal(Belief, kind="diagonal"): ...

and can then be made by that name (`make_belief`) and restored from saved tensors (`restore_belief`).
"""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from kalmanclip.errors import ConfigError
from kalmanclip.plugins import Plugins, subclass_of

DENSE_LIMIT = 2 * 2**30
"""Bytes that dense blocks of a covariance may take: more is almost certainly a mistake."""

_KINDS: dict[str, type["Belief"]] = {}


class Belief(ABC):
    """A Gaussian `N(mu, Sigma)` over n parameters.

    The constructor of a structure takes the tensors that make up its state, which `tensors` names; `prior` builds them
    from a variance. The mean is updated in place and never replaced, so it may be memory that a model reads its
    parameters from.

    Attributes:
        mean: mu (n,), float32 or float64. Everything is computed in its dtype and on its device.
    """

    kind: ClassVar[str]
    tensors: ClassVar[tuple[str, ...]]  # the state: attributes, and in this order the arguments of the constructor
    mean: Tensor

    def __init_subclass__(cls, kind: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if kind is not None:  # None: another implementation of the structure that it derives from
            cls.kind = kind
            _KINDS[kind] = cls

    def __init__(self, mean: Tensor) -> None:
        if mean.ndim != 1 or mean.dtype not in (torch.float32, torch.float64):
            raise ConfigError(
                f"the mean must be a float32 or float64 vector, not {mean.dtype} of shape {tuple(mean.shape)}"
            )
        self.mean = mean.detach()

    @classmethod
    @abstractmethod
    def prior(cls, mean: Tensor, variance: float | Tensor, *args: Any, **options: Any) -> "Belief":
        """Make the belief with this mean (n,) and a diagonal Sigma of this variance (a number or (n,))."""

    @abstractmethod
    def inflate(self, q: float) -> None:
        """Add process noise: `Sigma += q I`, q >= 0."""

    def forget(self, share: float, mean: Tensor, variance: Tensor) -> None:
        """Go back to a prior by a share of the way, in natural parameters.

        ``Sigma^-1 <- (1 - share) Sigma^-1 + share Sigma_0^-1``, and ``Sigma^-1 mu`` likewise.

        Args:
            share: in [0, 1]; 1 forgets everything.
            mean: that of the prior, mu_0 (n,).
            variance: the diagonal of its covariance Sigma_0 (n,).
        """
        raise ConfigError(f"a {self.kind!r} belief cannot forget towards a prior; use a diagonal one")

    @abstractmethod
    def times(self, H: Tensor) -> Tensor:
        """Return `H Sigma` (m, n) for H (m, n)."""

    @abstractmethod
    def update_covariance(self, K: Tensor, H: Tensor, HS: Tensor, R: Tensor, lam: float | Tensor) -> None:
        """Update the covariance after an observation.

        With lam = 1 this is the structure's projection of `Sigma - K H Sigma`, that is of
        `(Sigma^-1 + H^T R^-1 H)^-1`. The state is replaced only once the new one is known to be finite.

        Args:
            K: Kalman gain `Sigma H^T S^-1` (n, m).
            H: Jacobian (m, n).
            HS: `H Sigma` (m, n), as `times` returned it.
            R: observation noise (m, m), so that `S = H Sigma H^T + R`.
            lam: regulation in [0, 1]. Structures that hold a covariance scale its decrement `K H Sigma`,
                those that hold a precision its increment `H^T R^-1 H`. The two agree at 0 and 1.

        Raises:
            NumericalError: the new state is not finite; the old one is untouched.
        """

    @abstractmethod
    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw parameter vectors (count, n). A `generator` must live on the device of the mean."""

    @abstractmethod
    def marginal_variance(self) -> Tensor:
        """Return the diagonal of Sigma (n,)."""

    def _state(self) -> dict[str, Tensor]:
        """Return the tensors that make up the state, by name, as `from_state` takes them."""
        return {name: getattr(self, name) for name in self.tensors}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> "Belief":
        """Rebuild the belief from `state_dict`. The given tensors become the state; they are not copied."""
        return cls(*(state[name] for name in cls.tensors))

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of the whole state as named tensors, contiguous as file formats want them."""
        return {name: t.clone(memory_format=torch.contiguous_format) for name, t in self._state().items()}

    def project(self, H: Tensor) -> Tensor:
        """Return `H Sigma H^T` (m, m) for H (m, n)."""
        return self.times(H) @ H.mT

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum of x over all processes that share the parameters: x itself, unless the belief is sharded."""
        return x

    def norm(self, K: Tensor) -> Tensor:
        """Return the Frobenius norm of a gain K (n, m): a scalar tensor."""
        norm: Tensor = torch.linalg.vector_norm(K)
        return norm

    def update_mean(self, delta: Tensor) -> None:
        """Add a change (n,) to the mean."""
        self.mean.add_(delta)

    def variance(self, J: Tensor) -> Tensor:
        """Return the variances `diag(J Sigma J^T)` (m,) of linear functions J (m, n); no m x m matrix is formed."""
        return (self.times(J) * J).sum(1)

    def _noise(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Return standard normal numbers (count, n) like the mean."""
        size = (count, self.mean.shape[0])
        return torch.randn(size, generator=generator, dtype=self.mean.dtype, device=self.mean.device)


def prior_variance(mean: Tensor, variance: float | Tensor) -> Tensor:
    """Expand a prior variance (a positive number or positive (n,)) to a new vector (n,) like `mean`."""
    given = torch.as_tensor(variance, dtype=mean.dtype, device=mean.device).detach()
    if given.ndim and given.shape != mean.shape:
        raise ConfigError(f"the variance must be a number or of shape {tuple(mean.shape)}, not {tuple(given.shape)}")
    if not (torch.isfinite(given) & (given > 0)).all():
        raise ConfigError("the prior variance must be positive and finite")
    return given.expand_as(mean).clone()


def check_memory(sizes: Sequence[int], mean: Tensor) -> None:
    """Raise `ConfigError` if dense blocks of these sizes would take more than `DENSE_LIMIT` bytes."""
    needed = sum(size**2 for size in sizes) * mean.element_size()
    if needed > DENSE_LIMIT:
        raise ConfigError(
            f"a covariance with dense blocks of up to {max(sizes)} parameters takes {needed / 2**30:.1f} GiB, "
            "and several times that while it is updated; use a diagonal or low_rank belief, or fewer parameters"
        )


def check_inflation(q: float) -> None:
    """Raise `ConfigError` unless q is a finite number >= 0."""
    if not (q >= 0 and math.isfinite(q)):
        raise ConfigError(f"the process noise q must be finite and not negative, not {q}")


PLUGINS = Plugins("kalmanclip.structures", "covariance structure", subclass_of(Belief))
"""Structures of other packages."""


def belief_structure(kind: str) -> type[Belief]:
    """Return the class of that name, of a plug-in or of ``module:Class``, or raise `ConfigError` with the names."""
    found: type[Belief] = PLUGINS.get(kind, dict(sorted(_KINDS.items())))
    return found


def make_belief(kind: str, mean: Tensor, variance: float | Tensor, **options: Any) -> Belief:
    """Make a belief by the name of its structure.

    Args:
        kind: name of the structure, such as "diagonal" (option `update`), "block" (`groups`), "low_rank" (`rank`),
            "kronecker" (`rows`) or "dense".
        mean: mu_0 (n,), updated in place.
        variance: the diagonal of Sigma_0: a number or (n,).
        **options: of the `prior` of that structure.

    Raises:
        ConfigError: there is no such structure, or an option is missing, unknown or has a bad value.
    """
    structure = belief_structure(kind)
    try:
        inspect.signature(structure.prior).bind(mean, variance, **options)
    except TypeError as error:
        raise ConfigError(f"cannot make a {kind!r} belief: {error}") from None
    return structure.prior(mean, variance, **options)


def restore_belief(kind: str, state: Mapping[str, Tensor]) -> Belief:
    """Rebuild a belief from the name of its structure and the tensors of its `state_dict`."""
    structure = belief_structure(kind)
    try:
        return structure.from_state(state)
    except KeyError as error:
        raise ConfigError(f"the state of a {kind!r} belief lacks the tensor {error}") from None

"""Every covariance structure next to the dense algebra that it must agree with.

A new structure needs one more entry in `STRUCTURES`; `Structure` describes its fields.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kalmanclip.filtering import Belief, BlockDiagonal, Dense, Diagonal, Kronecker, LowRankPlusDiagonal


@dataclass(frozen=True)
class Structure:
    """A structure under test.

    Attributes:
        name: the registered kind, and after a hyphen a variant.
        make: makes one with an arbitrary state, from a mean (n,) and a generator.
        covariance: returns its covariance, written out (n, n).
        posterior: returns the covariance it should have after an observation, from dense (Sigma, H, R, lam).
        options: of `make_belief`, for n parameters.
        prior_variance: a variance (n,) that its prior can represent.
        least_noise: how precise observations may be in float32, against a prior of about 1.
    """

    name: str
    make: Callable[[Tensor, torch.Generator], Belief]
    covariance: Callable[[Belief], Tensor]
    posterior: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    options: Callable[[int], dict[str, Any]] = lambda n: {}
    prior_variance: Callable[[int], Tensor] = lambda n: torch.linspace(0.1, 1.0, n)
    least_noise: float = 1e-9

    @property
    def kind(self) -> str:
        return self.name.partition("-")[0]

    def __str__(self) -> str:
        return self.name


def normal(*size: int, generator: torch.Generator) -> Tensor:
    return torch.randn(*size, generator=generator, dtype=torch.float64)


def positive_definite(size: int, generator: torch.Generator) -> Tensor:
    root = normal(size, size, generator=generator)
    return root @ root.mT / size + 0.1 * torch.eye(size, dtype=torch.float64)


def groups_of(n: int) -> list[int]:
    """Blocks of 1, 2, 3, 1, 2, 3, ... parameters."""
    groups: list[int] = []
    while sum(groups) < n:
        groups.append(min(1 + len(groups) % 3, n - sum(groups)))
    return groups


def rows_of(n: int) -> int:
    """The least number of rows > 1 that n parameters can be cut into: n itself where n is prime."""
    return next((rows for rows in range(2, n + 1) if n % rows == 0), 1)


def decremented(Sigma: Tensor, H: Tensor, R: Tensor, lam: float) -> Tensor:
    return Sigma - lam * Sigma @ H.mT @ torch.linalg.inv(H @ Sigma @ H.mT + R) @ H @ Sigma


def informed(Sigma: Tensor, H: Tensor, R: Tensor, lam: float) -> Tensor:
    return torch.linalg.inv(torch.linalg.inv(Sigma) + lam * H.mT @ torch.linalg.inv(R) @ H)


def blocks(matrix: Tensor) -> Tensor:
    mask = torch.block_diag(*[torch.ones(size, size) for size in groups_of(matrix.shape[0])])
    return matrix * mask.to(matrix)


def shared_rows(precision: Tensor) -> Tensor:
    """I (x) P, with P^-1 the average of the diagonal blocks of a precision."""
    n, rows = precision.shape[0], rows_of(precision.shape[0])
    average = sum(block.chunk(rows, dim=1)[c] for c, block in enumerate(precision.chunk(rows))) / rows
    assert average.shape == (n // rows, n // rows)
    return torch.block_diag(*[torch.linalg.inv(average)] * rows)


def _diagonal(update: str) -> Callable[[Tensor, torch.Generator], Belief]:
    def make(mean: Tensor, generator: torch.Generator) -> Belief:
        s = torch.rand(len(mean), generator=generator, dtype=torch.float64) + 0.1
        return Diagonal(mean, s, update)

    return make


def _block(mean: Tensor, generator: torch.Generator) -> Belief:
    roots = [torch.linalg.cholesky(positive_definite(size, generator)) for size in groups_of(len(mean))]
    return BlockDiagonal(mean, roots)


def _kronecker(mean: Tensor, generator: torch.Generator) -> Belief:
    return Kronecker(mean, torch.linalg.cholesky(positive_definite(len(mean) // rows_of(len(mean)), generator)))


def _low_rank(mean: Tensor, generator: torch.Generator) -> Belief:
    n = len(mean)
    d = torch.rand(n, generator=generator, dtype=torch.float64) + 0.5
    return LowRankPlusDiagonal(mean, d, normal(n, n, generator=generator))  # of full rank, so that nothing is truncated


def _precision_of(belief: Belief) -> Tensor:
    return torch.diag(belief.d.double()) + belief.W.double() @ belief.W.double().mT


STRUCTURES = [
    Structure(
        "dense",
        lambda mean, g: Dense(mean, positive_definite(len(mean), g)),
        lambda belief: belief.covariance.clone(),
        decremented,
        least_noise=1e-5,
    ),
    Structure(
        "block",
        _block,
        lambda belief: torch.block_diag(*[L @ L.mT for L in belief.factors]),
        lambda *args: blocks(decremented(*args)),
        options=lambda n: {"groups": groups_of(n)},
    ),
    Structure(
        "low_rank",
        _low_rank,
        lambda belief: torch.linalg.inv(_precision_of(belief)),
        informed,
        options=lambda n: {"rank": 2},
    ),
    Structure(
        "kronecker",
        _kronecker,
        lambda belief: torch.block_diag(*[belief.factor @ belief.factor.mT] * belief.rows),
        lambda *args: shared_rows(torch.linalg.inv(informed(*args))),
        options=lambda n: {"rows": rows_of(n)},
        prior_variance=lambda n: torch.linspace(0.1, 1.0, n // rows_of(n)).repeat(rows_of(n)),
    ),
    Structure(
        "diagonal-covariance",
        _diagonal("covariance"),
        lambda belief: torch.diag(belief.s),
        lambda *args: torch.diag(decremented(*args).diagonal()),
    ),
    Structure(
        "diagonal-precision",
        _diagonal("precision"),
        lambda belief: torch.diag(belief.s),
        lambda *args: torch.diag(1 / torch.linalg.inv(informed(*args)).diagonal()),
        options=lambda n: {"update": "precision"},
    ),
]


def cast(belief: Belief, like: Tensor) -> Belief:
    """The same belief in the dtype and on the device of another tensor, through its state."""
    state = {k: v.to(like) if v.is_floating_point() else v for k, v in belief.state_dict().items()}
    return type(belief).from_state(state)

"""Independent parameters, shared out over ranks: each holds, and updates, its own part of them.

The filter of a sharded belief takes the same steps on every rank, with all m rows of H but only n / P of its columns:

1. every rank linearises the model for its share of the batch: m / P rows of H, all n columns;
2. one all-to-all turns rows into columns (`Sharded.observing`);
3. `H Sigma H^T` is a sum over the columns, so the ranks' parts of it are added up (m x m);
4. everything else of size m x m is computed by every rank, from the same bits;
5. mean and variances are updated column by column, and the new means gathered, since the model needs them all.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kalmanclip.errors import ConfigError, NumericalError
from kalmanclip.filtering.belief import prior_variance
from kalmanclip.filtering.diagonal import UPDATES, Diagonal
from kalmanclip.filtering.observation import Observation
from kalmanclip.filtering.ranks import Ranks, packed

ALIGNED = 16
"""Columns of a rank begin at multiples of this: memory is read in lines, not in numbers."""


class Sharded(Diagonal):
    """The part of a `Diagonal` belief that lies on this rank. It is no kind of its own, and is stored whole.

    Whatever `Diagonal` says of n parameters is here about the n_r of this rank. All ranks must call its methods
    together; when one of them raises `RankError`, the state is that of no step and must be thrown away.

    Args:
        whole: all means (n,), the same on every rank. They stay the memory that a model reads its parameters from, and
            every step brings all of them up to date.
        s: the variances (n_r,) of this rank's parameters.
        update: "covariance" or "precision".
        ranks: who shares; None: all processes of `torch.distributed`.

    Attributes:
        mean: this rank's part (n_r,) of ``whole``, not a copy.
    """

    def __init__(self, whole: Tensor, s: Tensor, update: str = "covariance", ranks: Ranks | None = None) -> None:
        self.ranks = ranks or Ranks()
        self.whole = whole.detach()
        self.widths = widths(self.ranks, len(whole))
        super().__init__(self.whole[self.ranks.mine(self.widths)], s, update)

    @classmethod
    def of(cls, belief: Diagonal, ranks: Ranks | None = None) -> "Sharded":
        """This rank's part of a belief that every rank has; its mean stays the memory of all means."""
        return cls._part(belief.mean, belief.s, belief.update, ranks)

    @classmethod
    def prior(
        cls, mean: Tensor, variance: float | Tensor, update: str = "covariance", ranks: Ranks | None = None
    ) -> "Sharded":
        """Make the belief from the mean (n,) and the variance (a number or (n,)) of all parameters."""
        ranks = ranks or Ranks()
        mine = ranks.mine(widths(ranks, len(mean)))
        part = mean.detach()[mine]
        if isinstance(variance, Tensor) and variance.ndim:
            variance = variance[mine]
        return cls(mean, prior_variance(part, variance), update, ranks)

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], ranks: Ranks | None = None) -> "Sharded":
        """Rebuild this rank's part from the `state_dict` of a whole or a sharded belief, of however many ranks."""
        return cls._part(state["mean"], state["s"], UPDATES[int(state["update"])], ranks)

    @classmethod
    def _part(cls, mean: Tensor, s: Tensor, update: str, ranks: Ranks | None) -> "Sharded":
        ranks = ranks or Ranks()
        return cls(mean, s[ranks.mine(widths(ranks, len(mean)))].clone(), update, ranks)

    def gather(self) -> Diagonal:
        """The whole belief, on every rank."""
        return Diagonal(self.whole, self.ranks.gathered(self.s, self.widths, "state"), self.update)

    def _state(self) -> dict[str, Tensor]:
        return self.gather()._state()

    def observing(
        self, observe: Callable[[Tensor], Observation | None], shares: Sequence[int]
    ) -> Callable[[Tensor], Observation]:
        """What `KalmanFilter.step` is to be given, from what this rank sees of its share of the batch.

        The rows of H come in the order of the ranks. A covariance R that an observation brings is about the rank's own
        targets; those of different ranks are independent.

        Args:
            observe: called with all means (n,); returns the observation of this rank's examples, None without any.
            shares: how many examples each rank has, not all 0. All must have the same number of targets.

        Returns:
            A function that gives all targets and this rank's columns of H.
        """

        def all_rows(_: Tensor) -> Observation:
            # no name for what this rank has seen: its rows of H are let go as soon as they are packed
            return self._exchanged(observe(self.whole) if shares[self.ranks.rank] else None, shares)

        return all_rows

    def _form(self, mine: Observation | None, shares: Sequence[int]) -> tuple[list[int], bool]:
        """How many targets each rank has, and whether they bring R."""
        form = (0, 0) if mine is None else (len(mine.y) // shares[self.ranks.rank], int(mine.R is not None))
        if not all(shares):  # who has nothing knows neither
            told = torch.tensor([form], device=self.mean.device)
            form = tuple(self.ranks.gathered(told, [1] * self.ranks.size, "form").amax(0).tolist())
        return [form[0] * share for share in shares], bool(form[1])

    def _exchanged(self, mine: Observation | None, shares: Sequence[int]) -> Observation:
        if mine is not None:
            mine = mine.matching(self.whole)
        rows, brings_R = self._form(mine, shares)
        ranks, most = self.ranks, max(rows)
        # y, y_hat and R of a rank are one line each, and go together
        lines = self.mean.new_zeros(rows[ranks.rank], 2 + most * brings_R)
        if mine is not None:
            lines[:, 0], lines[:, 1] = mine.y, mine.y_hat
            if mine.R is not None:
                lines[:, 2 : 2 + len(mine.R)] = mine.R
        sent = lines.new_empty(0) if mine is None else packed(mine.H, self.widths)
        del mine
        every = ranks.gathered(lines, rows, "targets")
        R = None
        if brings_R:
            R = every.new_zeros(len(every), len(every))
            for end, m in zip(itertools.accumulate(rows), rows, strict=True):
                R[end - m : end, end - m : end] = every[end - m : end, 2 : 2 + m]
        H = ranks.columns(sent, rows, self.widths)
        return Observation(every[:, 0].contiguous(), every[:, 1].contiguous(), H, R)

    def summed(self, x: Tensor) -> Tensor:
        """The sum of all ranks' x: what a sum over all n parameters is."""
        return self.ranks.summed(x)

    def norm(self, K: Tensor) -> Tensor:
        """Frobenius norm of the whole gain, of which K (n_r, m) is this rank's part."""
        norms = self.ranks.gathered(super().norm(K).view(1), [1] * self.ranks.size, "sums")
        norm: Tensor = torch.linalg.vector_norm(norms)
        return norm

    def project(self, H: Tensor) -> Tensor:
        """Return `H Sigma H^T` (m, m) of all parameters for this rank's columns of H (m, n_r)."""
        return self.summed(super().project(H))

    def variance(self, J: Tensor) -> Tensor:
        """Return `diag(J Sigma J^T)` (m,) of all parameters for this rank's columns of J (m, n_r)."""
        return self.summed(super().variance(J))

    def condition(self, H: Tensor, S_inv: Tensor, e: Tensor, lam: Tensor, R_inv: Tensor | None, ok: Tensor) -> Tensor:
        """Update this rank's means and variances, and learn the others' means; see `Diagonal.condition`."""
        # The inputs of ``ok`` have the same bits everywhere; two kinds of processors may still round differently.
        agreed = self.ranks.all_true(ok)
        ok.copy_(agreed)  # the caller obeys the same decision
        gain = super().condition(H, S_inv, e, lam, R_inv, ok)
        self._publish()
        return self.summed(gain)

    def move(self, step: Tensor) -> None:
        """Add this rank's part of the step (n_r,) to its means, and learn the others' means."""
        super().move(step)
        self._publish()

    def _publish(self) -> None:
        self.whole.copy_(self.ranks.gathered(self.mean, self.widths, "means"))

    def _accept(self, s: Tensor) -> None:
        """Take over the new variances, if they are finite on all ranks."""
        largest = torch.linalg.vector_norm(s, ord=math.inf)  # NaN or infinite if any variance is
        if not self.ranks.all_true(torch.isfinite(largest)):
            raise NumericalError("the updated variance is not finite")
        self.s.copy_(s)


def widths(ranks: Ranks, n: int) -> list[int]:
    """How many of n columns each rank has."""
    if n < ranks.size:
        raise ConfigError(f"{n} parameters cannot be shared by {ranks.size} ranks: start at most {n}")
    return ranks.shares(n, ALIGNED if n >= ALIGNED * ranks.size else 1)


def sharding(belief: Any, ranks: Ranks) -> Sharded:
    """This rank's part of a belief; `ConfigError` if it is of a structure that cannot be shared."""
    if not isinstance(belief, Diagonal):
        raise ConfigError(
            f"a {belief.kind!r} belief cannot be shared by several ranks, its parameters are not independent: use a "
            "diagonal one, or a single process"
        )
    return Sharded.of(belief, ranks)

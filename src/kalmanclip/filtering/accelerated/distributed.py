"""A diagonal belief sharded over several processes: each holds, and updates, its own part of the parameters.

`Ranks` is a thin layer over `torch.distributed` (gloo on CPUs, NCCL on GPUs). It adds shares of different sizes, sums
with the same bits on every rank, and one error, `RankError`, for a rank that dies or hangs. The filter of a
`ShardedDiagonal` takes the same steps on every rank, with all m rows of H but only n / P of its columns:

1. every rank linearises the model for its share of the batch: m / P rows of H, all n columns;
2. one all-to-all turns rows into columns (`ShardedDiagonal.observe_distributed`);
3. `H Sigma H^T` is a sum over the columns, so the ranks' parts of it are added up (m x m);
4. everything else of size m x m is computed by every rank, from the same bits;
5. mean and variances are updated column by column, and the new means gathered, since the model needs them all.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from kalmanclip.errors import ConfigError, NumericalError, RankError
from kalmanclip.filtering.beliefs.base import Belief
from kalmanclip.filtering.beliefs.diagonal import Diagonal
from kalmanclip.filtering.observation import Observation

TIMEOUT = 600.0
"""Seconds to wait for another rank before it counts as dead, unless KALMANCLIP_RANK_TIMEOUT says otherwise."""

ALIGNED = 16
"""Columns of a rank begin at multiples of this: memory is read in lines, not in numbers."""


class Ranks:
    """The processes of a group. All of them call every method together and in the same order.

    Args:
        group: of `torch.distributed`; None: all processes.

    Attributes:
        rank: number of this process, from 0.
        size: number of processes P.
        sent: bytes that this rank has sent, by the name of the exchange. Of a gather, what a ring passes on: P - 1
            times its largest share.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise ConfigError("there are no ranks yet: call torch.distributed.init_process_group, or use join_ranks()")
        self._group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self._host = dist.get_backend(group) != "nccl"  # tensors travel through the CPU's memory
        self.sent: dict[str, int] = {}

    def shares(self, count: int, unit: int = 1) -> list[int]:
        """Return P sizes of contiguous shares of ``count`` items, as equal as multiples of ``unit`` can be."""
        units = -(-count // unit)
        sizes = [units // self.size + (rank < units % self.size) for rank in range(self.size)]
        ends = [min(unit * sum(sizes[: rank + 1]), count) for rank in range(self.size)]
        return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]

    def own_slice(self, sizes: Sequence[int]) -> slice:
        """Return the slice of this rank's share, if the shares have these sizes."""
        begin = sum(sizes[: self.rank])
        return slice(begin, begin + sizes[self.rank])

    def all_gather(self, rows: Tensor, counts: Sequence[int], what: str = "rows") -> Tensor:
        """Return all ranks' rows (sum of counts, ...), in the order of the ranks.

        Args:
            rows: this rank's rows (``counts[rank]``, ...).
            counts: number of rows of each rank.
            what: name of the exchange, for `sent` and error messages.
        """
        most = max(counts)
        padded = rows if len(rows) == most else torch.cat([rows, rows.new_zeros(most - len(rows), *rows.shape[1:])])
        local = self._transportable(padded.contiguous())
        # bytes are bytes: not every backend knows every dtype
        data = local.view(-1).view(torch.uint8)
        all_data = data.new_empty(self.size * data.numel())
        with self._rank_errors(what):
            dist.all_gather_into_tensor(all_data, data, group=self._group)
        self._count(what, (self.size - 1) * data.numel())
        every = all_data.view(rows.dtype).view(self.size, *padded.shape).to(rows.device)
        if all(count == most for count in counts):
            return every.flatten(0, 1)
        return torch.cat([part[:count] for part, count in zip(every, counts, strict=True)])

    def all_reduce(self, x: Tensor, what: str = "sums") -> Tensor:
        """Return the sum of all ranks' x (...), with the same bits on every rank.

        Whether the all-reduce of a library gives all ranks the same bits depends on the algorithm it happens to choose.
        Ranks that round differently would in the end decide differently, and wait for each other forever. So every rank
        gathers all addends, which are small (m x m), and adds them up in the same order.
        """
        return self.all_gather(x.unsqueeze(0), [1] * self.size, what).sum(0)

    def all_true(self, x: Tensor) -> Tensor:
        """Return whether x, a 0-d boolean, is true on all ranks: a 0-d boolean, without waiting for the device."""
        return self.all_gather(x.view(1), [1] * self.size, "decisions").all()

    def all_to_all(self, packed: Tensor, rows: Sequence[int], widths: Sequence[int]) -> Tensor:
        """Send this rank's rows of a matrix and return its columns of it.

        Args:
            packed: this rank's rows (``rows[rank]``, n), as `_pack` orders them.
            rows: number of rows of each rank; m in all.
            widths: number of columns each rank gets; n in all.

        Returns:
            All rows, rank after rank, of this rank's columns: (m, ``widths[rank]``).
        """
        own, width = rows[self.rank], widths[self.rank]
        out = self._transportable(packed)
        received = out.new_empty(sum(rows) * width)
        with self._rank_errors("columns"):
            # of gloo's exchanges of this kind, only the "single" one exists in all versions
            dist.all_to_all_single(
                received, out, [m * width for m in rows], [own * w for w in widths], group=self._group
            )
        self._count("columns", own * (sum(widths) - width) * packed.element_size())
        return received.view(sum(rows), width).to(packed.device)

    def all_gather_text(self, text: str) -> list[str]:
        """Return the texts of all ranks, in their order. It waits for all of them, so not for every step."""
        texts = [""] * self.size
        with self._rank_errors("texts"):
            dist.all_gather_object(texts, text, group=self._group)
        return texts

    def _transportable(self, tensor: Tensor) -> Tensor:
        return tensor.cpu() if self._host else tensor

    def _count(self, what: str, size: int) -> None:
        self.sent[what] = self.sent.get(what, 0) + size

    @contextmanager
    def _rank_errors(self, what: str) -> Iterator[None]:
        """Turn what a backend raises about its peers into `RankError`."""
        try:
            yield
        except RuntimeError as error:  # gloo has no error of its own, and those of torch.distributed derive from it
            reason = str(error).strip().splitlines()
            raise RankError(
                f"Rank {self.rank} of {self.size} lost another one while they exchanged {what}: it died, hangs, or "
                f"stopped with an error of its own ({reason[0] if reason else type(error).__name__}). What was saved "
                "before is complete: start again with the same command, and --resume if a pass was finished."
            ) from error


def device_of_rank(device: str | None = None) -> str:
    """Return the device of this rank: its own GPU if there are any, unless another kind is asked for.

    Where a machine has fewer GPUs than ranks, ranks share them, and communicate through the CPU.
    """
    count = torch.cuda.device_count()
    if device is None:
        device = "cuda" if count else "cpu"
    if device != "cuda" or not count:
        return device
    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % count}"


@contextmanager
def join_ranks(device: str = "cpu", timeout: float | None = None) -> Iterator[Ranks]:
    """Join the ranks that ``torchrun`` has started; the process group ends with the context.

    Args:
        device: of this rank, from `device_of_rank`.
        timeout: seconds after which a rank that does not answer counts as dead; None: KALMANCLIP_RANK_TIMEOUT, or
            `TIMEOUT`.

    Raises:
        ConfigError: the timeout is not a positive number.
        RankError: the ranks do not find each other, or one is lost later.
    """
    on_this_machine = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    nccl = device.startswith("cuda") and on_this_machine <= torch.cuda.device_count()
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    try:
        wait = timedelta(seconds=_seconds(timeout))
        dist.init_process_group("nccl" if nccl else "gloo", timeout=wait, **_rendezvous(wait))
    except (RuntimeError, ValueError) as error:
        raise RankError(
            f"The ranks did not come together: {str(error).strip()}. Start all of them with torchrun, with one address."
        ) from error
    try:
        yield Ranks()
    finally:
        dist.destroy_process_group()


def _rendezvous(wait: timedelta) -> dict[str, Any]:
    """Return the rendezvous store to use under ``torchrun``, if it is not torch's default.

    ``torchrun`` keeps one store of addresses through all restarts, and torch may find those of ranks that are gone. So
    every restart gets a prefix of its own in it.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(*address, size, is_master=False, timeout=wait)
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return {"store": dist.PrefixStore(f"kalmanclip/{start}", store), "rank": rank, "world_size": size}


def _seconds(timeout: float | None) -> float:
    given = os.environ.get("KALMANCLIP_RANK_TIMEOUT", TIMEOUT) if timeout is None else timeout
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e8:
        raise ConfigError(f"KALMANCLIP_RANK_TIMEOUT must be a number of seconds greater than 0, not {given!r}")
    return seconds


class ShardedDiagonal(Diagonal):
    """This rank's part of a `Diagonal` belief: n_r of the n parameters. Its `state_dict` is that of the whole belief.

    All ranks must call its methods together; when one of them raises `RankError`, the state is undefined and must be
    discarded.

    Args:
        whole: all means (n,), the same on every rank; the memory that a model reads its parameters from, brought up to
            date by every step.
        s: the variances (n_r,) of this rank's parameters.
        update: "covariance" or "precision".
        ranks: processes that share the belief; None: all processes of `torch.distributed`.

    Attributes:
        mean: this rank's part (n_r,) of ``whole``, not a copy.
    """

    def __init__(self, whole: Tensor, s: Tensor, update: str = "covariance", ranks: Ranks | None = None) -> None:
        self.ranks = ranks or Ranks()
        self.whole = whole.detach()
        self.widths = _widths(self.ranks, len(whole))
        super().__init__(self.whole[self.ranks.own_slice(self.widths)], s, update)

    @classmethod
    def prior(
        cls, mean: Tensor, variance: float | Tensor, update: str = "covariance", ranks: Ranks | None = None
    ) -> ShardedDiagonal:
        """Make the belief from the mean (n,) and the variance (a number or (n,)) of all parameters."""
        return shard(Diagonal.prior(mean, variance, update), ranks)

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], ranks: Ranks | None = None) -> ShardedDiagonal:
        """Rebuild this rank's part from the `state_dict` of a whole or a sharded belief, of however many ranks."""
        return shard(Diagonal.from_state(state), ranks)

    def gather(self) -> Diagonal:
        """Return the whole belief, on every rank."""
        return Diagonal(self.whole, self.ranks.all_gather(self.s, self.widths, "state"), self.update)

    def _state(self) -> dict[str, Tensor]:
        return self.gather()._state()

    def observe_distributed(
        self, observe: Callable[[Tensor], Observation | None], shares: Sequence[int]
    ) -> Callable[[Tensor], Observation]:
        """Return what `KalmanFilter.step` takes, made from the observation of this rank's share of the batch.

        The rows of H come in the order of the ranks. A covariance R that an observation brings covers the rank's own
        targets; those of different ranks are independent.

        Args:
            observe: called with all means (n,); returns the observation of this rank's examples, None without any.
            shares: number of examples of each rank, not all 0. All must have the same number of targets.

        Returns:
            A function that returns all targets and this rank's columns of H.
        """

        def all_rows(_: Tensor) -> Observation:
            # not bound to a name, so that this rank's rows of H are freed as soon as they are packed
            return self._exchanged(observe(self.whole) if shares[self.ranks.rank] else None, shares)

        return all_rows

    def _form(self, mine: Observation | None, shares: Sequence[int]) -> tuple[list[int], bool]:
        """Return the number of targets of each rank, and whether they bring R."""
        form = (0, 0) if mine is None else (len(mine.y) // shares[self.ranks.rank], int(mine.R is not None))
        if not all(shares):  # a rank without examples knows neither
            own = torch.tensor([form], device=self.mean.device)
            form = tuple(self.ranks.all_gather(own, [1] * self.ranks.size, "form").amax(0).tolist())
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
        sent = lines.new_empty(0) if mine is None else _pack(mine.H, self.widths)
        del mine
        every = ranks.all_gather(lines, rows, "targets")
        R = None
        if brings_R:
            parts = torch.split(every, rows)
            R = torch.block_diag(*(part[:, 2 : 2 + len(part)] for part in parts))  # type: ignore[no-untyped-call]
        H = ranks.all_to_all(sent, rows, self.widths)
        return Observation(every[:, 0].contiguous(), every[:, 1].contiguous(), H, R)

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum of all ranks' x."""
        return self.ranks.all_reduce(x)

    def norm(self, K: Tensor) -> Tensor:
        """Return the Frobenius norm of the whole gain, of which K (n_r, m) is this rank's part."""
        norms = self.ranks.all_gather(super().norm(K).view(1), [1] * self.ranks.size, "sums")
        norm: Tensor = torch.linalg.vector_norm(norms)
        return norm

    def project(self, H: Tensor) -> Tensor:
        """Return `H Sigma H^T` (m, m) of all parameters for this rank's columns of H (m, n_r)."""
        return self.all_reduce(super().project(H))

    def variance(self, J: Tensor) -> Tensor:
        """Return `diag(J Sigma J^T)` (m,) of all parameters for this rank's columns of J (m, n_r)."""
        return self.all_reduce(super().variance(J))

    def condition(self, H: Tensor, S_inv: Tensor, e: Tensor, lam: Tensor, R_inv: Tensor | None, ok: Tensor) -> Tensor:
        """Update this rank's means and variances, and gather the others' means; see `Diagonal.condition`."""
        # The inputs of ``ok`` have the same bits everywhere; two kinds of processors may still round differently.
        agreed = self.ranks.all_true(ok)
        ok.copy_(agreed)  # the caller obeys the same decision
        gain = super().condition(H, S_inv, e, lam, R_inv, ok)
        self._publish()
        return self.all_reduce(gain)

    def update_mean(self, delta: Tensor) -> None:
        """Add this rank's part of the change (n_r,) to its means, and gather the others' means."""
        super().update_mean(delta)
        self._publish()

    def _publish(self) -> None:
        self.whole.copy_(self.ranks.all_gather(self.mean, self.widths, "means"))

    def _accept(self, s: Tensor) -> None:
        """Take over the new variances, if they are finite on all ranks."""
        largest = torch.linalg.vector_norm(s, ord=math.inf)  # NaN or infinite if any variance is
        if not self.ranks.all_true(torch.isfinite(largest)):
            raise NumericalError("the updated variance is not finite")
        self.s.copy_(s)


def _widths(ranks: Ranks, n: int) -> list[int]:
    """Return how many of n columns each rank has."""
    if n < ranks.size:
        raise ConfigError(f"{n} parameters cannot be shared by {ranks.size} ranks: start at most {n}")
    return ranks.shares(n, ALIGNED if n >= ALIGNED * ranks.size else 1)


def shard(belief: Belief, ranks: Ranks | None = None) -> ShardedDiagonal:
    """Return this rank's part of a belief that every rank has; its mean stays the memory of all means.

    Raises:
        ConfigError: the structure cannot be sharded.
    """
    if not isinstance(belief, Diagonal):
        raise ConfigError(
            f"a {belief.kind!r} belief cannot be sharded over several ranks, its parameters are not independent: use a "
            "diagonal one, or a single process"
        )
    ranks = ranks or Ranks()
    own = ranks.own_slice(_widths(ranks, len(belief.mean)))
    return ShardedDiagonal(belief.mean, belief.s[own].clone(), belief.update, ranks)


def _pack(H: Tensor, widths: Sequence[int]) -> Tensor:
    """Return rows (m, n) as one vector in which what `Ranks.all_to_all` sends to one rank is contiguous."""
    if len(H) <= 1:
        return H.flatten()
    vector = H.new_empty(H.numel())
    targets = torch.split(vector, [len(H) * width for width in widths])
    for part, target in zip(torch.split(H, list(widths), dim=1), targets, strict=True):
        target.view(part.shape).copy_(part)
    return vector

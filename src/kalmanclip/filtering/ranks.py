"""Several processes that filter together: who they are, and the few things they tell one another.

A thin layer over `torch.distributed` (gloo on CPUs, NCCL on GPUs). It adds three things: shares of different sizes,
sums with the same bits on every rank, and one error, `RankError`, for whatever happens when a rank dies or hangs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from kalmanclip.errors import ConfigError, RankError

TIMEOUT = 600.0
"""Seconds to wait for another rank before it counts as dead, unless KALMANCLIP_RANK_TIMEOUT says otherwise."""


class Ranks:
    """The processes of a group, all of which call every method together and in the same order.

    Args:
        group: of `torch.distributed`; None: all processes.

    Attributes:
        rank: which of them this is, from 0.
        size: P, how many there are.
        sent: bytes that this rank has handed to others, by the name of the exchange. Of a gather, what a ring passes
            on: P - 1 times its largest share.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise ConfigError("there are no ranks yet: call torch.distributed.init_process_group, or use joined()")
        self._group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self._host = dist.get_backend(group) != "nccl"  # tensors travel through the CPU's memory
        self.sent: dict[str, int] = {}

    def shares(self, count: int, unit: int = 1) -> list[int]:
        """Sizes (P of them) of contiguous shares of ``count`` things, as equal as multiples of ``unit`` can be."""
        units = -(-count // unit)
        sizes = [units // self.size + (rank < units % self.size) for rank in range(self.size)]
        ends = [min(unit * sum(sizes[: rank + 1]), count) for rank in range(self.size)]
        return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]

    def mine(self, sizes: Sequence[int]) -> slice:
        """Where this rank's share lies, if the shares have these sizes."""
        begin = sum(sizes[: self.rank])
        return slice(begin, begin + sizes[self.rank])

    def gathered(self, rows: Tensor, counts: Sequence[int], what: str = "rows") -> Tensor:
        """All ranks' rows, one rank's after the other's: (sum of counts, ...), with the same bits on every rank.

        Args:
            rows: this rank's, ``counts[rank]`` of them: (m, ...).
            counts: how many each rank has.
            what: a name for the exchange.
        """
        most = max(counts)
        padded = rows if len(rows) == most else torch.cat([rows, rows.new_zeros(most - len(rows), *rows.shape[1:])])
        here = self._at_hand(padded.contiguous())
        # bytes are bytes: not every backend knows every dtype
        words = here.view(-1).view(torch.uint8)
        all_words = words.new_empty(self.size * words.numel())
        with self._noticing(what):
            dist.all_gather_into_tensor(all_words, words, group=self._group)
        self._count(what, (self.size - 1) * words.numel())
        every = all_words.view(rows.dtype).view(self.size, *padded.shape).to(rows.device)
        if all(count == most for count in counts):
            return every.flatten(0, 1)
        return torch.cat([part[:count] for part, count in zip(every, counts, strict=True)])

    def summed(self, x: Tensor, what: str = "sums") -> Tensor:
        """The sum of every rank's x (...), with the same bits on every rank.

        Whether an all-reduce gives all ranks the same bits depends on the algorithm that a library happens to choose.
        Ranks that round differently would sooner or later decide differently, and wait for each other forever. So every
        rank has all addends and adds them up in the same order. They are small: m x m.
        """
        return self.gathered(x.unsqueeze(0), [1] * self.size, what).sum(0)

    def all_true(self, x: Tensor) -> Tensor:
        """Whether x, a 0-d boolean, is true on all ranks: a 0-d boolean, without waiting for the device."""
        return self.gathered(x.view(1), [1] * self.size, "decisions").all()

    def columns(self, packed: Tensor, rows: Sequence[int], widths: Sequence[int]) -> Tensor:
        """Rows become columns: every rank gives its rows of a matrix and gets its columns of it, in one all-to-all.

        Args:
            packed: this rank's rows (``rows[rank]``, n), as `packed` has them.
            rows: how many each rank has; m in all.
            widths: how many columns each rank gets; n in all.

        Returns:
            All rows, rank after rank, of this rank's columns: (m, ``widths[rank]``).
        """
        own, width = rows[self.rank], widths[self.rank]
        out = self._at_hand(packed)
        received = out.new_empty(sum(rows) * width)
        with self._noticing("columns"):
            # of gloo's exchanges of this kind, only the "single" one exists in all versions
            dist.all_to_all_single(
                received, out, [m * width for m in rows], [own * w for w in widths], group=self._group
            )
        self._count("columns", own * (sum(widths) - width) * packed.element_size())
        return received.view(sum(rows), width).to(packed.device)

    def told(self, text: str) -> list[str]:
        """What every rank says, in the order of the ranks. It waits for the others: not for every step."""
        words = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8) if text else torch.empty(0).byte()
        words = words.to("cpu" if self._host else "cuda")
        lengths = self.gathered(torch.tensor([len(words)], device=words.device), [1] * self.size, "words").tolist()
        if not any(lengths):
            return [""] * self.size
        every = self.gathered(words, lengths, "words")
        return [bytes(part.tolist()).decode() for part in torch.split(every, lengths)]

    def _at_hand(self, tensor: Tensor) -> Tensor:
        return tensor.cpu() if self._host else tensor

    def _count(self, what: str, size: int) -> None:
        self.sent[what] = self.sent.get(what, 0) + size

    @contextmanager
    def _noticing(self, what: str) -> Iterator[None]:
        """Turns what a backend raises about its peers into `RankError`."""
        try:
            yield
        except RuntimeError as error:  # gloo has no error of its own, and those of torch.distributed derive from it
            reason = str(error).strip().splitlines()
            raise RankError(
                f"Rank {self.rank} of {self.size} lost another one while they exchanged {what}: it died, hangs, or "
                f"stopped with an error of its own ({reason[0] if reason else type(error).__name__}). What was saved "
                "before is complete: start again with the same command, and --resume if a pass was finished."
            ) from error


def packed(H: Tensor, widths: Sequence[int]) -> Tensor:
    """Rows (m, n) in one vector, as `Ranks.columns` sends them: what goes to one rank lies together."""
    if len(H) <= 1:  # it does so already
        return H.flatten()
    vector = H.new_empty(H.numel())
    places = torch.split(vector, [len(H) * width for width in widths])
    for part, place in zip(torch.split(H, list(widths), dim=1), places, strict=True):
        place.view(part.shape).copy_(part)
    return vector


def local_size() -> int:
    """How many ranks share this machine."""
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def device_of_rank(device: str | None = None) -> str:
    """The device of this rank: its own GPU if there are any, unless another kind is asked for.

    Where a machine has fewer GPUs than ranks, ranks share them, and talk through the CPU.
    """
    count = torch.cuda.device_count()
    if device is None:
        device = "cuda" if count else "cpu"
    if device != "cuda" or not count:
        return device
    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % count}"


@contextmanager
def joined(device: str = "cpu", timeout: float | None = None) -> Iterator[Ranks]:
    """The ranks that ``torchrun`` has started, this process among them; the group ends with the context.

    Args:
        device: this rank's, as `device_of_rank` says.
        timeout: seconds after which a rank that does not answer counts as dead; None: KALMANCLIP_RANK_TIMEOUT, or
            `TIMEOUT`.

    Raises:
        ConfigError: the timeout is none.
        RankError: the ranks do not come together, or one is lost later.
    """
    nccl = device.startswith("cuda") and local_size() <= torch.cuda.device_count()
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    try:
        wait = timedelta(seconds=_seconds(timeout))
        dist.init_process_group("nccl" if nccl else "gloo", timeout=wait, **_meeting(wait))
    except (RuntimeError, ValueError) as error:
        raise RankError(
            f"The ranks did not come together: {str(error).strip()}. Start all of them with torchrun, with one address."
        ) from error
    try:
        yield Ranks()
    finally:
        dist.destroy_process_group()


def _meeting(wait: timedelta) -> dict[str, Any]:
    """Where the ranks find each other, if not where torch would have it.

    ``torchrun`` keeps one store of addresses through all restarts, and torch may find those of ranks that are gone. So
    every restart has a place of its own in it.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(*place, size, is_master=False, timeout=wait)
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

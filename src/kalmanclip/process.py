"""The process and its machine: how threads wait for each other, what becomes of freed memory, how much is free.

- A step of the filter is thousands of small products, and between any two the threads meet. Threads that spin while
  they wait are there at once: half the time of a step on an idle machine. On a busy one they keep the processor from
  those they wait for, and a step takes several times as long. Threads that sleep are never fast and never slow. Torch
  reads the choice when it is imported.
- Activations are large and short-lived. The C library gives each back to the system and asks for it again, and every
  page comes back empty, at the price of a fault: up to a third of the time of a forward pass.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")

UNKNOWN_BYTES = 8 << 30
"""Taken for free where the system does not say."""

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")  # in a container: what this one may use, by version 2 of control groups
_LOAD = Path("/proc/loadavg")
_CHOSEN = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}  # by the user, or by us in time
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt


def prepare_process() -> None:
    """Prepare the process of a command, before it imports torch."""
    choose_waiting()
    keep_freed_memory()


def choose_waiting(load: Path = _LOAD) -> None:
    """Let threads sleep unless this process has the machine to itself; leave alone what the user has chosen."""
    if not _CHOSEN & set(os.environ) and not _alone(load):
        sleep_while_waiting()


def before_torch() -> None:
    """Choose how threads wait where torch is not imported yet; later the choice comes too late."""
    if "torch" not in sys.modules:
        choose_waiting()


def shares_processors(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a function use no more threads of torch than there are idle processors, where threads spin.

    For Python, where torch may have been imported before anything could be chosen.
    """

    @functools.wraps(function)
    def shared(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        import torch

        before = torch.get_num_threads()
        now = before if _CHOSEN & set(os.environ) else min(before, idle_processors())
        if now == before:
            return function(*args, **kwargs)
        torch.set_num_threads(now)
        try:
            return function(*args, **kwargs)
        finally:
            torch.set_num_threads(before)

    return shared


def idle_processors(load: Path = _LOAD) -> int:
    """Return how many processors nobody else wants now, this thread's own among them; all where nobody knows."""
    processors = os.cpu_count() or 1
    with suppress(AttributeError):  # macOS and Windows have no such thing
        processors = len(os.sched_getaffinity(0))
    running = _running(load)
    return processors if running is None else max(1, processors - max(0, running - 1))


def sleep_while_waiting() -> None:
    """Let threads sleep while they wait, as suits a process that is one of several."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _alone(load: Path) -> bool:
    """Return whether nothing else wants to run now, by a line such as ``0.20 0.18 0.12 1/80 11206``."""
    running = _running(load)
    return running is not None and running <= 1


def _running(load: Path) -> int | None:
    try:
        return int(load.read_text().split()[3].partition("/")[0])
    except (OSError, IndexError, ValueError):
        return None


def keep_freed_memory() -> bool:
    """Keep freed memory of up to a gibibyte a piece for the next allocation; return whether the C library can."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # only glibc has it; Windows has no library of that name at all
        return False
    kept = mallopt(_MMAP_THRESHOLD, 1 << 30) or mallopt(_MMAP_THRESHOLD, 32 << 20)  # the most that older ones allow
    return bool(mallopt(_TRIM_THRESHOLD, (1 << 31) - 1) and kept)


_workers = 1


def share_with(workers: int) -> None:
    """Note that this process is one of so many on this computer, each of which keeps what it can."""
    global _workers
    _workers = max(1, workers)


def _sharing() -> int:
    """Return how many processes of one job there are on this computer; ``torchrun`` says so itself."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(_workers, int(ranks) if ranks.isdigit() else 1)


def free_bytes(device: torch.device | None = None) -> int:
    """Return the bytes that are free now; where several processes share the work, this one's share of them.

    Args:
        device: where; None, and everything that is not a CUDA device: in the computer's memory.
    """
    if device is not None and device.type == "cuda":
        import torch

        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch's own, between tensors
        processes = -(-_sharing() // max(1, torch.cuda.device_count()))
        return torch.cuda.mem_get_info(device)[0] // processes + idle
    computer, container = _free_in_computer(), _free_in_container()
    return (computer if container is None else min(computer, container)) // _sharing()


def _free_in_computer() -> int:
    with suppress(OSError, ValueError, IndexError):
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    with suppress(OSError, ValueError, AttributeError):  # Windows has no sysconf; on macOS half of all is a guess
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return UNKNOWN_BYTES


def _free_in_container() -> int | None:
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        pairs = (line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        files = {name: int(value) for name, value in pairs}.get("inactive_file", 0)  # given back when needed
    except (OSError, ValueError):  # no limit ("max"), or no such thing
        return None
    return max(limit - used + files, 0)

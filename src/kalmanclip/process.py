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
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

UNKNOWN_BYTES = 8 << 30
"""Taken for free where the system does not say."""

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")  # in a container: what this one may use, by version 2 of control groups
_LOAD = Path("/proc/loadavg")
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt


def prepare_process() -> None:
    """Prepare the process of a command, before it imports torch."""
    choose_waiting()
    keep_freed_memory()


def choose_waiting(load: Path = _LOAD) -> None:
    """Let threads sleep unless this process has the machine to itself; leave alone what the user has chosen."""
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ) and not _alone(load):
        sleep_while_waiting()


def sleep_while_waiting() -> None:
    """Let threads sleep while they wait, as suits a process that is one of several."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _alone(load: Path) -> bool:
    """Return whether nothing else wants to run now, by a line such as ``0.20 0.18 0.12 1/80 11206``."""
    try:
        running = int(load.read_text().split()[3].partition("/")[0])
    except (OSError, IndexError, ValueError):
        return False
    return running <= 1


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

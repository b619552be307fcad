"""How much memory is free, on this computer or on a GPU: what may be kept rather than computed again depends on it."""

from __future__ import annotations

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


_workers = 1


def share_with(workers: int) -> None:
    """Tells this process that it is one of so many on this computer, each of which keeps what it can."""
    global _workers
    _workers = max(1, workers)


def _sharing() -> int:
    """How many processes of one job there are on this computer; ``torchrun`` says so itself."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(_workers, int(ranks) if ranks.isdigit() else 1)


def free_bytes(device: torch.device | None = None) -> int:
    """Bytes that are free now; where several processes share the work, this one's share of them.

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
    with suppress(
        OSError, ValueError, AttributeError
    ):  # Windows has no sysconf; macOS: all that there is; half of it is a guess
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

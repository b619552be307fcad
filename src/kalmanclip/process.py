"""What torch finds when a command starts: how its threads wait for each other, and what becomes of freed memory.

- A step of the filter is thousands of small products, and between any two the threads meet. Threads that spin while
  they wait are there at once: half the time of a step on an idle machine. On a busy one they keep the processor from
  those they wait for, and a step takes several times as long. Threads that sleep are never fast and never slow. Torch
  reads the choice when it is imported.
- Activations are large and short-lived. The C library gives each back to the system and asks for it again, and every
  page comes back empty, at the price of a fault: up to a third of the time of a forward pass.
"""

import ctypes
import os
from pathlib import Path

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

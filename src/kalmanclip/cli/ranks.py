"""Commands that ``torchrun`` starts several times over: the processes work together, and the first one prints."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from kalmanclip.cli.console import mute
from kalmanclip.errors import ConfigError, RankError

if TYPE_CHECKING:
    from kalmanclip.filtering import Ranks


def several() -> bool:
    """Return whether this process is one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def first() -> bool:
    """Return whether this process prints and writes: the only one, or the first of several."""
    return not several() or os.environ["RANK"] == "0"


def restarted() -> bool:
    """Return whether ``torchrun --max-restarts`` has started the command again, because a process was lost."""
    return several() and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@contextmanager
def working_together(device: str | None) -> Iterator[tuple[Ranks | None, str | None]]:
    """Yield the ranks and the device of this one; without ``torchrun`` None and the device as it was given.

    All ranks but the first show nothing but errors from here on.
    """
    if not several():
        yield None, device
        return
    from kalmanclip.filtering.accelerated.distributed import device_of_rank, join_ranks

    if device is not None and ":" in device:
        raise ConfigError(f"Each rank has a device of its own: give {device.split(':')[0]}, not {device}.")
    if not first():
        mute()
    before = signal.signal(signal.SIGTERM, _stopped)
    try:
        device = device_of_rank(device)
        with join_ranks(device) as ranks:
            yield ranks, device
    finally:
        signal.signal(signal.SIGTERM, before)


def _stopped(number: int, frame: FrameType | None) -> NoReturn:
    raise RankError(
        f"Rank {os.environ['RANK']} was told to stop, as torchrun does when another rank is lost. What was saved "
        "before is complete: start again with the same command, and --resume if a pass was finished."
    )

"""Who does which run, where several processes, perhaps on several computers, work on one store.

A claim is a hidden file beside the results, made by an operation that only one process can win. While its owner lives
it touches the file again and again. A claim is stale when its owner was a process of this computer that is gone, or
when nobody has touched it for `STALE` seconds of the observer's own clock (those of two computers may differ).

Claims save work; they do not guard results. If two processes take over the same stale claim at the same moment, both
do the run and write the same record, each completely.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from kalmanclip.errors import DataError

BEAT = 10.0
"""Seconds between two touches."""
STALE = 120.0
"""Seconds without a touch after which an owner is taken for dead."""


class Claims:
    """The claims of this process in one folder; as a context manager it gives all of them back at the end.

    Args:
        folder: that of the store.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._held: set[Path] = set()
        self._seen: dict[Path, tuple[int, float]] = {}  # when others' claims were touched, and when that was noticed
        self._lock, self._end = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._beat, name="claims", daemon=True)

    def __enter__(self) -> Claims:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        for path in list(self._held):
            self._remove(path)

    def path(self, address: str) -> Path:
        """The file of a claim."""
        return self.folder / f".{address}.claim"

    def take(self, address: str) -> bool:
        """Claims a run; False if another living process has it."""
        path = self.path(address)
        if self._create(path):
            return True
        if not self._is_stale(path):
            return False
        with suppress(OSError):
            path.unlink()
        return self._create(path)

    def give_back(self, address: str) -> None:
        """Ends a claim of this process."""
        self._remove(self.path(address))

    def _create(self, path: Path) -> bool:
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:
            return False
        except OSError as error:
            raise DataError(f"Cannot write to {path.parent}: {error.strerror}. Choose another folder.") from error
        with os.fdopen(descriptor, "w") as stream:
            json.dump({"computer": _computer(), "process": os.getpid()}, stream)
        with self._lock:
            self._held.add(path)
        self._seen.pop(path, None)
        return True

    def _remove(self, path: Path) -> None:
        with self._lock:
            self._held.discard(path)
        with suppress(OSError):
            path.unlink()

    def _is_stale(self, path: Path) -> bool:
        try:
            touched = path.stat().st_mtime_ns
            owner = json.loads(path.read_text())
        except OSError:
            return False  # given back just now: the next look will tell
        except ValueError:
            owner = {}  # being written, or by a process that died while it wrote
        if owner.get("computer") == _computer() and not _is_alive(owner.get("process")):
            return True
        now = time.monotonic()
        if self._seen.get(path, (None, 0.0))[0] != touched:
            self._seen[path] = touched, now
        return now - self._seen[path][1] > STALE

    def _beat(self) -> None:
        while not self._end.wait(BEAT):
            with self._lock:
                held = list(self._held)
            for path in held:
                with suppress(OSError):
                    os.utime(path)


def _computer() -> str:
    """What tells this computer, since it was started, from others; containers count as computers."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def _is_alive(process: object) -> bool:
    if not isinstance(process, int) or os.name == "nt":  # there, signal 0 would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True

"""Locks on runs, so that each run of a store is done by one of several processes, perhaps on several computers."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from kalmanclip.errors import DataError


class Locks:
    """The locks that this process holds in one folder; a context manager that releases all of them at the end.

    A lock is a hidden file that the operating system unlocks when its process ends, be it by ``kill -9``. Locks save
    work; they do not guard results: two processes that do the same run write the same record, each completely.

    Args:
        folder: that of the store.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._held: dict[str, FileLock] = {}

    def __enter__(self) -> Locks:
        for path in list(self.folder.glob(".*.lock")):  # what killed processes left behind
            if self.acquire(address := path.stem.removeprefix(".")):
                self.release(address)
        return self

    def __exit__(self, *error: object) -> None:
        for address in list(self._held):
            self.release(address)

    def acquire(self, address: str) -> bool:
        """Lock a run; return False if somebody has it.

        Raises:
            DataError: the folder is not there or cannot be written to.
        """
        lock = FileLock(self._path(address))
        try:
            self.folder.stat()  # FileLock would make the folder
            lock.acquire(blocking=False)
        except Timeout:
            return False
        except OSError as error:
            raise DataError(f"Cannot write to {self.folder}: {error.strerror}. Choose another folder.") from error
        self._held[address] = lock
        return True

    def release(self, address: str) -> None:
        """Unlock a run that this process has locked."""
        with suppress(OSError):
            self._path(address).unlink()  # while it is locked, so never the file of another's lock
        self._held.pop(address).release()

    def _path(self, address: str) -> Path:
        return self.folder / f".{address}.lock"

"""Worker processes: each does one run after the other, and may die at any moment.

`multiprocessing` with a pipe for each worker, rather than `concurrent.futures` or joblib's loky: with these a worker
that is killed while it sends its result blocks the driver forever (nobody closes the pipe), and one whose driver is
killed lives on. A worker does one run at a time, so it is always known which run a dead worker was doing.

`ray_workers` has the same two classes for a Ray cluster.
"""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch

from kalmanclip.errors import KalmanClipError
from kalmanclip.experiments.run_one import run_one
from kalmanclip.experiments.sources import Source
from kalmanclip.experiments.spec import Run
from kalmanclip.process import keep_freed_memory, share_with, sleep_while_waiting

Arguments = tuple[Run, Source, str, str | None, str | None]
"""Those of `run_one`: run, source, device, cache, model."""


class WorkerDied(KalmanClipError):
    """A worker is gone, and with it the run it was doing."""


class LocalWorker:
    """A process on this computer, which ends when this one does.

    It gives one result when it is ready (None), and one for every run that is submitted to it.
    """

    def __init__(self, threads: int) -> None:
        sleep_while_waiting()
        # spawn: a forked child of a process that has used threads or a GPU may hang
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, threads), name="kalmanclip worker")
        self.process.start()
        other.close()  # only the worker has it now, so it is closed when the worker dies

    def submit(self, arguments: Arguments) -> None:
        """Start a run; the result before must have been taken."""
        with suppress(ConnectionError):  # it died just now: `result` will say so
            self.connection.send(arguments)

    def result(self) -> dict[str, Any] | None:
        """Return the result that `LocalPool.wait` has announced, or raise `WorkerDied`."""
        try:
            result: dict[str, Any] | None = self.connection.recv()
            return result
        except (EOFError, OSError) as error:
            self.process.join()
            code = self.process.exitcode or 0
            raise WorkerDied(f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}") from error

    def kill(self) -> None:
        """End it at once, whatever it does; it may be dead already."""
        self.process.kill()
        self.process.join()
        self.connection.close()


class LocalPool:
    """Workers on this computer; where ``threads`` is None, those of torch are divided among them."""

    advice = "perhaps for lack of memory: try fewer --workers"
    """What may help when workers die."""

    def __init__(self, workers: int, threads: int | None = None) -> None:
        self.workers = workers
        self.threads = threads or max(1, torch.get_num_threads() // workers)

    def __enter__(self) -> LocalPool:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def size(self) -> int:
        """Return how many workers there may be now."""
        return self.workers

    def start(self) -> LocalWorker:
        """Start a worker, without waiting until it is ready."""
        return LocalWorker(self.threads)

    def wait(self, workers: Sequence[LocalWorker], seconds: float) -> list[LocalWorker]:
        """Return the workers that have a result or died, as soon as there are any, or none after ``seconds``."""
        ready = multiprocessing.connection.wait([worker.connection for worker in workers], seconds)
        return [worker for worker in workers if worker.connection in ready]


def prepare_worker(threads: int) -> None:
    """Make this process a worker: quiet, with so many threads, leaving Ctrl-C to its driver."""
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    keep_freed_memory()
    share_with((os.cpu_count() or 1) // max(1, threads))
    logging.getLogger().setLevel(logging.ERROR)
    warnings.simplefilter("ignore")


def _serve(connection: Connection, threads: int) -> None:
    """Do runs until the driver ends."""
    threading.Thread(target=_exit_with_driver, daemon=True).start()
    prepare_worker(threads)
    with suppress(EOFError, OSError):  # the driver is gone
        connection.send(None)
        while True:
            connection.send(run_one(*connection.recv()))


def _exit_with_driver() -> None:
    """End this process, also in the middle of a run, when the one that started it ends, however that does."""
    driver = multiprocessing.parent_process()
    assert driver is not None
    driver.join()
    os._exit(1)  # nothing is lost: the driver saves results

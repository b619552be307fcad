"""Workers: processes that do one run after the other, and may die at any moment.

A pool hires workers and says which of them have something to say. There is one for this computer (here) and one for
Ray clusters (`ray_pool`); `runner` gives them the runs, and a run whose worker dies to another one. A worker does one
run at a time, so it is always known whose worker died.
"""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.connection
import os
import queue
import signal
import threading
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeVar

import torch

from kalmanclip.errors import KalmanClipError
from kalmanclip.experiments.execute import execute
from kalmanclip.experiments.sources import Source
from kalmanclip.experiments.spec import Run
from kalmanclip.memory import share_with
from kalmanclip.process import keep_freed_memory, sleep_while_waiting

Arguments = tuple[Run, Source, str, str | None, str | None]
"""What `execute` is called with: run, source, device, cache, model."""


class WorkerDied(KalmanClipError):
    """A worker is gone, and with it whatever it was doing."""


class Worker(Protocol):
    """A process. It speaks once when it is ready, and once at the end of every run that it was given."""

    def give(self, arguments: Arguments) -> None:
        """Lets it do a run; it must have spoken since the last one."""

    def answer(self) -> dict[str, Any] | None:
        """What it said: the record of its run, None if it is merely ready. To be called when `Pool.wait` names it.

        Raises:
            WorkerDied: it is gone.
        """

    def end(self) -> None:
        """Ends it at once, whatever it does. A dead one may be ended, too."""


AnyWorker = TypeVar("AnyWorker", bound=Worker)


class Pool(Protocol[AnyWorker]):
    """Where workers come from; a context manager."""

    advice: str
    """What may help when its workers die."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *error: object) -> None: ...

    def size(self) -> int:
        """How many workers have room now."""

    def hire(self) -> AnyWorker:
        """A new worker; it is not ready yet."""

    def wait(self, workers: Sequence[AnyWorker], seconds: float) -> Iterable[AnyWorker]:
        """Those that have spoken or died, as soon as there are any, or none after some seconds."""


class LocalWorker:
    """A process of this computer.

    Args:
        threads: of torch.
    """

    def __init__(self, threads: int) -> None:
        sleep_while_waiting()
        # spawn: a forked child of a process that has used threads or a GPU may hang
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other, threads), name="kalmanclip worker")
        self.process.start()
        other.close()  # so that the worker's end is closed when the worker is gone

    def give(self, arguments: Arguments) -> None:
        """Lets it do a run."""
        with suppress(ConnectionError):  # it died just now: `answer` will say so
            self.connection.send(arguments)

    def answer(self) -> dict[str, Any] | None:
        """What it said."""
        try:
            answer: dict[str, Any] | None = self.connection.recv()
            return answer
        except (EOFError, OSError) as error:
            self.process.join()
            code = self.process.exitcode or 0
            cause = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise WorkerDied(cause) from error

    def end(self) -> None:
        """Ends it at once."""
        self.process.kill()
        self.process.join()
        self.connection.close()


class LocalPool:
    """Processes of this computer.

    Args:
        workers: how many.
        threads: of torch, in each of them; None: as many as here, divided among them.
    """

    advice = "perhaps for lack of memory: try fewer --workers"

    def __init__(self, workers: int, threads: int | None = None) -> None:
        self.workers = workers
        self.threads = threads or max(1, torch.get_num_threads() // workers)

    def __enter__(self) -> LocalPool:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def size(self) -> int:
        """How many workers have room."""
        return self.workers

    def hire(self) -> LocalWorker:
        """A new worker."""
        return LocalWorker(self.threads)

    def wait(self, workers: Sequence[LocalWorker], seconds: float) -> list[LocalWorker]:
        """Those that have spoken or died."""
        ready = multiprocessing.connection.wait([worker.connection for worker in workers], seconds)
        return [worker for worker in workers if worker.connection in ready]


def prepare(threads: int) -> None:
    """Makes this process a worker: it leaves Ctrl-C to whoever hired it, and is quiet."""
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    keep_freed_memory()
    share_with((os.cpu_count() or 1) // max(1, threads))
    logging.getLogger().setLevel(logging.ERROR)
    warnings.simplefilter("ignore")


def _work(connection: Connection, threads: int) -> None:
    """The life of a worker of this computer."""
    orders: queue.SimpleQueue[Arguments] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, orders), daemon=True).start()
    prepare(threads)
    connection.send(None)
    while True:
        connection.send(execute(*orders.get()))


def _listen(connection: Connection, orders: queue.SimpleQueue[Arguments]) -> None:
    """Takes orders also during a run: however the parent ends, kill -9 included, the connection then ends, too."""
    try:
        while True:
            orders.put(connection.recv())
    finally:
        os._exit(1)  # nothing is lost: results are the parent's business

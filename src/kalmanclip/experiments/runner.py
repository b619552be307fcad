"""Doing the runs that are not done yet, here or in a pool of processes; each result is kept as soon as it is there."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection

import torch

from kalmanclip.errors import ConfigError, KalmanClipError
from kalmanclip.experiments.claims import Claims
from kalmanclip.experiments.execute import execute
from kalmanclip.experiments.run import Run
from kalmanclip.experiments.sources import Source
from kalmanclip.experiments.store import Record, Store
from kalmanclip.methods import Progress, silent

PAUSE = 1.0
"""Seconds between two looks at what other processes do."""


def run_all(
    runs: Sequence[Run],
    sources: Sequence[Source],
    store: Store,
    device: str = "cpu",
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
    cache: str | os.PathLike[str] | None = None,
    retry: bool = False,
    waiting: Callable[[int], None] = lambda count: None,
    model: str | None = None,
    within: Progress = silent,
) -> list[Record]:
    """Returns the records of all runs, in their order, doing those that the store does not have.

    Other processes may do the same, or other, runs with the same store at the same time: every run is done by one of
    them, and each waits for what the others still do.

    Args:
        runs: what to do.
        sources: the data sets they name.
        store: where results are kept.
        device: where the backbones lie.
        workers: processes, each with its own backbone; 1 does the runs in this process.
        progress: called with the numbers of runs that are done and of all.
        cache: a folder for products of the frozen backbone, which runs, workers and later calls share (see
            `kalmanclip.encoders.cache_folder`); None: they are computed in every run.
        retry: whether runs that failed earlier are tried again.
        waiting: called again and again with the number of runs that other processes do while nothing else is left.
        model: how the runs' backbone is spelled here, where that is not its name (see `models.model_name`).
        within: called as ``within(stage, done, total)`` during a run, if there is one worker.

    Raises:
        KalmanClipError: a worker died. A run that merely fails is a record like any other.
    """
    if workers < 1:
        raise ConfigError(f"workers must be at least 1, not {workers}.")
    with Claims(store.folder) as claims:
        jobs = _Jobs(runs, store, claims, retry)
        progress(len(jobs.records), jobs.total)
        by_name = {source.name: source for source in sources}
        folder = None if cache is None else os.fspath(cache)

        def arguments(run: Run) -> tuple[Run, Source, str, str | None, str | None]:
            return run, by_name[run.data], device, folder, model

        workers = min(workers, len(jobs.open))
        done = _in_pool(jobs, arguments, workers, waiting) if workers > 1 else _here(jobs, arguments, waiting, within)
        try:
            for _ in done:
                progress(len(jobs.records), jobs.total)
        finally:
            done.close()  # ends the workers now, whatever stopped us
    return [_named(jobs.records[run.address], run) for run in runs]


def _named(record: Record, run: Run) -> Record:
    """A record with the names of this plan, whoever made it and whatever they called it."""
    return record | {"label": run.label, "run": record["run"] | {"data": run.data}}


class _Jobs:
    """Which runs have records, and which are still open.

    Args:
        runs: all of them.
        store: where results are kept.
        claims: of this process.
        retry: whether old failures are open.
    """

    def __init__(self, runs: Sequence[Run], store: Store, claims: Claims, retry: bool) -> None:
        self.store, self.claims = store, claims
        self.open: dict[str, Run] = {}
        for run in runs:
            self.open.setdefault(run.address, run)  # two labels may stand for the same run
        self.total = len(self.open)
        self.records: dict[str, Record] = {}
        found = {address: store.record(run) for address, run in self.open.items()}
        self._old_failures = {a: r for a, r in found.items() if retry and r is not None and r["status"] == "failed"}
        for address, record in found.items():
            self._take_over(address, record)

    def next(self) -> Run | None:
        """Claims the first run that nobody does; None if others do all that is left. Learns what others finished."""
        for address, run in list(self.open.items()):
            if self._take_over(address, self.store.record(run)) or not self.claims.take(address):
                continue
            if self._take_over(address, self.store.record(run)):  # finished between the look and the claim
                self.claims.give_back(address)
                continue
            del self.open[address]
            return run
        return None

    def save(self, run: Run, record: Record) -> None:
        """Keeps the result of a run that `next` gave out."""
        self.store.save(run, record)
        self.records[run.address] = record
        self.claims.give_back(run.address)

    def _take_over(self, address: str, record: Record | None) -> bool:
        if record is None or record == self._old_failures.get(address):
            return False
        self.records[address] = record
        del self.open[address]
        return True


Arguments = Callable[[Run], tuple[Run, Source, str, str | None, str | None]]
"""What `execute` is called with."""


def _here(
    jobs: _Jobs, arguments: Arguments, waiting: Callable[[int], None], within: Progress
) -> Generator[None, None, None]:
    while jobs.open:
        run = jobs.next()
        if run is not None:
            jobs.save(run, execute(*arguments(run), within))
        elif jobs.open:
            waiting(len(jobs.open))
            time.sleep(PAUSE)
        yield


def _in_pool(
    jobs: _Jobs, arguments: Arguments, workers: int, waiting: Callable[[int], None]
) -> Generator[None, None, None]:
    # spawn: a forked child of a process that has used threads or a GPU may hang
    context = multiprocessing.get_context("spawn")
    # The workers wait for the end of this pipe. However this process ends, kill -9 included, its end is closed then.
    reader, writer = context.Pipe(duplex=False)
    threads = max(1, torch.get_num_threads() // workers)
    pool = ProcessPoolExecutor(workers, context, _start_worker, (reader, threads))
    futures: dict[Future[Record], Run] = {}
    try:
        while jobs.open or futures:
            # no more than the workers do now: what is claimed others cannot do
            while len(futures) < workers and (run := jobs.next()) is not None:
                futures[pool.submit(execute, *arguments(run))] = run
            if futures:
                for future in wait(futures, return_when=FIRST_COMPLETED).done:
                    jobs.save(futures.pop(future), future.result())
            elif jobs.open:
                waiting(len(jobs.open))
                time.sleep(PAUSE)
            yield
        pool.shutdown()
    except BrokenProcessPool as error:
        raise KalmanClipError(
            "A worker process died, perhaps for lack of memory. Finished runs are kept: the same command goes on with "
            "the others; give it fewer workers."
        ) from error
    finally:
        writer.close()
        reader.close()
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker(pipe: Connection, threads: int) -> None:
    """Prepares a worker: it ends with its parent, leaves Ctrl-C to it, and is quiet."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(pipe,), daemon=True).start()
    torch.set_num_threads(threads)
    logging.getLogger().setLevel(logging.ERROR)
    warnings.simplefilter("ignore")


def _end_with(pipe: Connection) -> None:
    try:
        pipe.recv()
    except (EOFError, OSError):
        os._exit(1)  # nothing is lost: results are the parent's business

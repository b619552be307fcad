"""Doing the runs that are not done yet, in this process or by workers; each result is saved as soon as it is there."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import torch

from kalmanclip.errors import ConfigError, KalmanClipError
from kalmanclip.experiments.run_one import failure, run_one
from kalmanclip.experiments.sources import Source
from kalmanclip.experiments.spec import Run
from kalmanclip.experiments.store import Locks, Record, Store
from kalmanclip.experiments.workers import Arguments, LocalPool, LocalWorker, WorkerDied
from kalmanclip.methods import Progress, silent

if TYPE_CHECKING:
    from kalmanclip.experiments.ray_workers import RayPool, RayWorker

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
    attempts: int = 3,
    cpus_per_run: int | None = None,
    gpus_per_run: float = 0.0,
    ray: str | None = None,
) -> list[Record]:
    """Do the runs that the store does not have, and return the records of all runs, in their order.

    Other processes may do the same, or other, runs with the same store at the same time: every run is done by one of
    them, and each waits for what the others still do.

    Args:
        runs: what to do.
        sources: the data sets they name.
        store: where results are saved.
        device: where the backbones lie; on a cluster ``gpus_per_run`` decides.
        workers: processes, each with its own backbone; 1 does the runs in this process. A cluster has as many as fit.
        progress: called with the numbers of runs that are done and of all.
        cache: a folder for products of the frozen backbone, which runs, workers and later calls share (see
            `kalmanclip.encoders.cache_folder`); None: they are computed in every run.
        retry: whether runs that failed earlier are tried again.
        waiting: called again and again with the number of runs that other processes do while nothing else is left.
        model: how the runs' backbone is spelled here, where that is not its name (see `provenance.model_name`).
        within: called as ``within(title, done, total)`` during a run, if it is done in this process; the title says
            which run that is (``str(run)``).
        attempts: how often a run is started whose worker process dies; after that it has failed.
        cpus_per_run: threads of torch in a run; None: all, divided among the workers, or on a cluster one.
        gpus_per_run: on a cluster, the GPUs of a run: whole ones, or a share of one; 0: none.
        ray: the address of a Ray cluster that does the runs; see `ray_workers.RayPool`. None: they are done here.

    Raises:
        ConfigError: a number is too small, or there is no such cluster.
        KalmanClipError: no worker can be started. A run that fails, or ends its worker, is a record like any other.
    """
    for name, number in (("workers", workers), ("attempts", attempts), ("cpus_per_run", cpus_per_run)):
        if number is not None and number < 1:
            raise ConfigError(f"{name} must be at least 1, not {number}.")
    by_name = {source.name: source for source in sources}
    folder = None if cache is None else os.fspath(cache)
    if ray is not None:
        device = "cuda" if gpus_per_run else "cpu"  # the nodes'; Ray shows each worker its own GPU alone

    def arguments(run: Run) -> Arguments:
        return run, by_name[run.source], device, folder, model

    with Locks(store.folder) as locks:
        queue = _Queue(runs, store, locks, retry)
        progress(len(queue.records), queue.total)
        if not queue.open or (ray is None and workers == 1):
            steps = _run_here(queue, arguments, waiting, within, cpus_per_run)
        else:
            pool = _pool(min(workers, len(queue.open)), cpus_per_run, gpus_per_run, ray)
            steps = _run_on_workers(queue, arguments, pool, attempts, waiting)
        with closing(steps):  # ends the workers now, whatever stopped us
            for _ in steps:
                progress(len(queue.records), queue.total)
    return [named(queue.records[run.address], run) for run in runs]


def named(record: Record, run: Run) -> Record:
    """Return a record with the names of this plan, whoever made it and whatever they called it."""
    unnamed = {name: value for name, value in record.items() if name not in ("label", "by_data", "study", "studies")}
    return unnamed | run.names | {"run": record["run"] | {"data": run.data}}


class _Queue:
    """The runs that have records, and those that are still open, with ``retry`` also those that failed earlier."""

    def __init__(self, runs: Sequence[Run], store: Store, locks: Locks, retry: bool) -> None:
        self.store, self.locks = store, locks
        self.open: dict[str, Run] = {}
        for run in runs:
            self.open.setdefault(run.address, run)  # two labels may stand for the same run
        self.total = len(self.open)
        self.records: dict[str, Record] = {}
        self._old_failures: dict[str, Record] = {}
        for run in list(self.open.values()):
            record = store.record(run)
            if retry and record is not None and record["status"] == "failed":
                self._old_failures[run.address] = record
            self._take_over(run, record)

    def next(self) -> Run | None:
        """Lock the first run that nobody does; None if others do all that is left. Notices what others finished."""
        for run in list(self.open.values()):
            if self._take_over(run, self.store.record(run)) or not self.locks.acquire(run.address):
                continue
            if self._take_over(run, self.store.record(run)):  # finished between the look and the lock
                self.locks.release(run.address)
                continue
            del self.open[run.address]
            return run
        return None

    def put_back(self, run: Run) -> None:
        """Open a run again that `next` returned: whoever comes first may do it."""
        self.open[run.address] = run
        self.locks.release(run.address)

    def save(self, run: Run, record: Record) -> None:
        """Save the result of a run that `next` returned."""
        self.store.save(run, record)
        self.records[run.address] = record
        self.locks.release(run.address)

    def _take_over(self, run: Run, record: Record | None) -> bool:
        """Close a run whose record is in the store; False if it is still to be done."""
        if record is None or record == self._old_failures.get(run.address):
            return False
        self.records[run.address] = record
        del self.open[run.address]
        return True


def _run_here(
    queue: _Queue,
    arguments: Callable[[Run], Arguments],
    waiting: Callable[[int], None],
    within: Progress,
    threads: int | None,
) -> Generator[None, None, None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        while queue.open:
            run = queue.next()
            if run is not None:
                queue.save(run, run_one(*arguments(run), _under(str(run), within)))
            elif queue.open:
                waiting(len(queue.open))
                time.sleep(PAUSE)
            yield
    finally:
        torch.set_num_threads(before)


def _under(title: str, within: Progress) -> Progress:
    """Return what tells the progress of a run under its title, whatever stage it is in."""
    return lambda stage, done, total: within(title, done, total)


def _pool(workers: int, cpus: int | None, gpus: float, ray: str | None) -> LocalPool | RayPool:
    if ray is None:
        return LocalPool(workers, cpus)
    from kalmanclip.experiments.ray_workers import RayPool

    return RayPool(ray, cpus or 1, gpus)


def _run_on_workers(
    queue: _Queue,
    arguments: Callable[[Run], Arguments],
    pool: LocalPool | RayPool,
    attempts: int,
    waiting: Callable[[int], None],
) -> Generator[None, None, None]:
    """Do the runs on workers. A run whose worker dies is done again, ``attempts`` times in all."""
    busy: dict[Any, Run | None] = {}  # None: the worker is not ready yet
    idle: list[LocalWorker | RayWorker] = []
    deaths: Counter[str | None] = Counter()  # by the run's address; None: of workers that were not ready
    with pool:
        try:
            while queue.open or any(busy.values()):
                # no run waits for a worker here: what is locked others cannot do
                while idle and (run := queue.next()) is not None:
                    worker = idle.pop()
                    worker.submit(arguments(run))
                    busy[worker] = run
                if idle and queue.open:
                    waiting(len(queue.open))
                while idle and not queue.open:
                    idle.pop().kill()  # others may have use for what it holds
                useful = len(queue.open) - len(idle) - list(busy.values()).count(None)
                for _ in range(min(useful, pool.size() - len(busy) - len(idle))):
                    busy[pool.start()] = None
                if not busy:
                    time.sleep(PAUSE)
                for worker in pool.wait(list(busy), PAUSE) if busy else ():
                    run = busy[worker]
                    try:
                        record = worker.result()
                    except WorkerDied as death:
                        worker.kill()
                        address = None if run is None else run.address
                        deaths[address] += 1
                        reason, last = f"{death}, {pool.advice}", deaths[address] == attempts
                        if run is not None and last:
                            times = "once" if attempts == 1 else f"{attempts} times"
                            reason = f"Its worker process died {times}: {reason} and --retry-failed."
                            queue.save(run, failure(run, arguments(run)[1], reason))
                        elif run is not None:
                            queue.put_back(run)
                        elif last:
                            raise KalmanClipError(f"Worker processes die before they do anything: {reason}.") from death
                    else:
                        idle.append(worker)
                        deaths[None] = 0
                        if run is not None and record is not None:
                            queue.save(run, record)
                    del busy[worker]
                yield
        finally:
            for worker in (*busy, *idle):
                worker.kill()

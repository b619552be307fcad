"""Doing the runs that are not done yet, here or by workers; each result is kept as soon as it is there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch

from kalmanclip.errors import ConfigError
from kalmanclip.experiments.claims import Claims
from kalmanclip.experiments.crew import Crew
from kalmanclip.experiments.execute import execute
from kalmanclip.experiments.pool import Arguments, LocalPool, Pool
from kalmanclip.experiments.sources import Source
from kalmanclip.experiments.spec import Run
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
    attempts: int = 3,
    cpus_per_run: int | None = None,
    gpus_per_run: float = 0.0,
    ray: str | None = None,
) -> list[Record]:
    """Returns the records of all runs, in their order, doing those that the store does not have.

    Other processes may do the same, or other, runs with the same store at the same time: every run is done by one of
    them, and each waits for what the others still do.

    Args:
        runs: what to do.
        sources: the data sets they name.
        store: where results are kept.
        device: where the backbones lie; on a cluster ``gpus_per_run`` decides.
        workers: processes, each with its own backbone; 1 does the runs in this process. On a cluster, its room counts.
        progress: called with the numbers of runs that are done and of all.
        cache: a folder for products of the frozen backbone, which runs, workers and later calls share (see
            `kalmanclip.encoders.cache_folder`); None: they are computed in every run.
        retry: whether runs that failed earlier are tried again.
        waiting: called again and again with the number of runs that other processes do while nothing else is left.
        model: how the runs' backbone is spelled here, where that is not its name (see `models.model_name`).
        within: called as ``within(stage, done, total)`` during a run, if it is done in this process.
        attempts: how often a run is started whose worker process dies; after that it has failed.
        cpus_per_run: threads of torch in a run; None: all, divided among the workers, or on a cluster one.
        gpus_per_run: on a cluster, the GPUs of a run: whole ones, or a share of one; 0: none.
        ray: the address of a Ray cluster that does the runs; see `ray_pool.RayPool`. None: they are done here.

    Raises:
        ConfigError: a number is too small, or there is no such cluster.
        KalmanClipError: no worker can be started. A run that fails, or ends its worker, is a record like any other.
    """
    for name, number in (("workers", workers), ("attempts", attempts), ("cpus_per_run", cpus_per_run)):
        if number is not None and number < 1:
            raise ConfigError(f"{name} must be at least 1, not {number}.")
    with Claims(store.folder) as claims:
        jobs = _Jobs(runs, store, claims, retry)
        progress(len(jobs.records), jobs.total)
        by_name = {source.name: source for source in sources}
        folder = None if cache is None else os.fspath(cache)
        if ray is not None:
            device = "cuda" if gpus_per_run else "cpu"  # the nodes'; Ray shows each worker its own GPU alone

        def arguments(run: Run) -> Arguments:
            return run, by_name[run.data], device, folder, model

        if not jobs.open or (ray is None and workers == 1):
            done = _here(jobs, arguments, waiting, within, cpus_per_run)
        else:
            pool = _pool(min(workers, len(jobs.open)), cpus_per_run, gpus_per_run, ray)
            done = _by_workers(jobs, arguments, pool, attempts, waiting)
        try:
            for _ in done:
                progress(len(jobs.records), jobs.total)
        finally:
            done.close()  # ends the workers now, whatever stopped us
    return [named(jobs.records[run.address], run) for run in runs]


def named(record: Record, run: Run) -> Record:
    """A record with the names of this plan, whoever made it and whatever they called it."""
    unnamed = {name: value for name, value in record.items() if name not in ("label", "by_data", "study", "studies")}
    return unnamed | run.names | {"run": record["run"] | {"data": run.data}}


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


def _here(
    jobs: _Jobs,
    arguments: Callable[[Run], Arguments],
    waiting: Callable[[int], None],
    within: Progress,
    threads: int | None,
) -> Generator[None, None, None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        while jobs.open:
            run = jobs.next()
            if run is not None:
                jobs.save(run, execute(*arguments(run), within))
            elif jobs.open:
                waiting(len(jobs.open))
                time.sleep(PAUSE)
            yield
    finally:
        torch.set_num_threads(before)


def _pool(workers: int, cpus: int | None, gpus: float, ray: str | None) -> Pool[Any]:
    if ray is None:
        return LocalPool(workers, cpus)
    from kalmanclip.experiments.ray_pool import RayPool

    return RayPool(ray, cpus or 1, gpus)


def _by_workers(
    jobs: _Jobs, arguments: Callable[[Run], Arguments], pool: Pool[Any], attempts: int, waiting: Callable[[int], None]
) -> Generator[None, None, None]:
    with pool:
        crew = Crew(pool, attempts)
        try:
            while jobs.open or crew.busy:
                # no more than the workers do now: what is claimed others cannot do
                while crew.has_time and (run := jobs.next()) is not None:
                    crew.give(arguments(run))
                if crew.has_time and jobs.open:
                    waiting(len(jobs.open))
                crew.fit(len(jobs.open))
                for run, record in crew.collect(PAUSE):
                    jobs.save(run, record)
                yield
        finally:
            crew.close()

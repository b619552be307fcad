"""Doing the runs that are not done yet, here or in a pool of processes; each result is kept as soon as it is there."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any

import torch

from kalmanclip.errors import ConfigError, KalmanClipError
from kalmanclip.experiments.execute import execute
from kalmanclip.experiments.run import Run
from kalmanclip.experiments.sources import Source
from kalmanclip.experiments.store import Store

Record = dict[str, Any]


def run_all(
    runs: Sequence[Run],
    sources: Sequence[Source],
    store: Store,
    device: str = "cpu",
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Record]:
    """Returns the records of all runs, in their order, doing those that the store has not finished.

    Args:
        runs: what to do.
        sources: the data sets they name.
        store: where results are kept. Only this process writes to it.
        device: where the backbones lie.
        workers: processes, each with its own backbone; 1 does the runs in this process.
        progress: called with the numbers of runs that are done and of all.

    Raises:
        KalmanClipError: a worker died. A run that merely fails is a record like any other.
    """
    if workers < 1:
        raise ConfigError(f"workers must be at least 1, not {workers}.")
    records = {run.address: record for run in runs if (record := store.finished(run)) is not None}
    progress(len(records), len(runs))
    by_name = {source.name: source for source in sources}
    open_runs = [(run, by_name[run.data]) for run in runs if run.address not in records]
    workers = min(workers, len(open_runs))
    done = _in_pool(open_runs, device, workers) if workers > 1 else _here(open_runs, device)
    try:
        for run, record in done:
            store.save(run, record)
            records[run.address] = record
            progress(len(records), len(runs))
    finally:
        done.close()  # ends the workers now, whatever stopped us
    return [records[run.address] for run in runs]


def _here(runs: Sequence[tuple[Run, Source]], device: str) -> Generator[tuple[Run, Record], None, None]:
    for run, source in runs:
        yield run, execute(run, source, device)


def _in_pool(
    runs: Sequence[tuple[Run, Source]], device: str, workers: int
) -> Generator[tuple[Run, Record], None, None]:
    # spawn: a forked child of a process that has used threads or a GPU may hang
    context = multiprocessing.get_context("spawn")
    # The workers wait for the end of this pipe. However this process ends, kill -9 included, its end is closed then.
    reader, writer = context.Pipe(duplex=False)
    threads = max(1, torch.get_num_threads() // workers)
    pool = ProcessPoolExecutor(workers, context, _start_worker, (reader, threads))
    try:
        futures = {pool.submit(execute, run, source, device): run for run, source in runs}
        for future in as_completed(futures):
            yield futures[future], future.result()
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

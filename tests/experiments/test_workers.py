"""Who does what when workers die: at first without processes, at the end with real ones."""

import multiprocessing.connection
import os
import signal
import subprocess
import sys

import pytest
from tests.processes import PATIENCE

from kalmanclip.errors import KalmanClipError
from kalmanclip.experiments import runner
from kalmanclip.experiments.sources import Source
from kalmanclip.experiments.store import Store
from kalmanclip.experiments.workers import LocalWorker, WorkerDied

PETS = Source("pets", "pets", None, ("a photo of a {}.",), "f" * 64)
READY, DIE = object(), object()


class Worker:
    def __init__(self, fate):
        self.fate, self.said, self.killed = fate, READY if fate != "stillborn" else DIE, False

    def submit(self, arguments):
        assert self.said is None
        assert not self.killed
        self.said = self.fate(arguments[0])

    def result(self):
        said, self.said = self.said, None
        if said is DIE:
            raise WorkerDied("killed by SIGKILL")
        return None if said is READY else said

    def kill(self):
        self.killed = True


class Pool:
    """All of its workers have a result when they are asked."""

    advice = "feed them"

    def __init__(self, size, fate):
        self.workers, self.fate, self.started = size, fate, []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        assert all(worker.killed for worker in self.started)

    def size(self):
        return self.workers

    def start(self):
        self.started.append(Worker(self.fate))
        return self.started[-1]

    def wait(self, workers, seconds):
        assert sum(not worker.killed for worker in self.started) <= self.workers
        return workers


@pytest.fixture
def work(tmp_path, monkeypatch, make_run):
    """Does runs on the workers of a pool; returns their records by seed."""
    saved = {}
    monkeypatch.setattr(Store, "record", lambda store, run: None)
    monkeypatch.setattr(Store, "save", lambda store, run, record: saved.update({run.seed: record}))
    monkeypatch.setattr(runner, "named", lambda record, run: record)

    def work(pool, attempts=3, count=5):
        monkeypatch.setattr(runner, "_pool", lambda *arguments: pool)
        runs = [make_run(seed=seed) for seed in range(1, count + 1)]
        runner.run_all(runs, [PETS], Store(tmp_path), workers=2, attempts=attempts)
        assert list(tmp_path.iterdir()) == []  # no lock is left
        return saved

    return work


def test_every_run_is_done_once(work):
    done = []

    def fate(run):
        done.append(run.seed)
        return {"seed": run.seed}

    pool = Pool(2, fate)
    assert work(pool) == {seed: {"seed": seed} for seed in range(1, 6)}
    assert sorted(done) == [1, 2, 3, 4, 5]
    assert len(pool.started) == 2


def test_no_more_workers_than_runs(work):
    pool = Pool(9, lambda run: {})
    work(pool, count=2)
    assert len(pool.started) == 2


def test_more_workers_when_there_is_more_room(work):
    def fate(run):
        pool.workers = 3  # a node has come
        return {}

    pool = Pool(1, fate)
    work(pool)
    assert len(pool.started) == 3


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_a_run_that_ends_its_workers_fails_and_the_others_do_not(work, make_run, attempts):
    tried = []

    def fate(run):
        tried.append(run.seed)
        return DIE if run.seed == 2 else {"status": "done"}

    found = work(Pool(2, fate), attempts)
    assert {seed: record["status"] for seed, record in found.items()} == {
        seed: "failed" if seed == 2 else "done" for seed in range(1, 6)
    }
    assert [tried.count(seed) for seed in range(1, 6)] == [1, attempts, 1, 1, 1]
    often = "once" if attempts == 1 else f"{attempts} times"
    assert found[2]["reason"] == f"Its worker process died {often}: killed by SIGKILL, feed them and --retry-failed."
    assert found[2]["address"] == make_run(seed=2).address


def test_a_run_whose_worker_dies_once_is_done_by_another(work):
    tried = []

    def fate(run):
        tried.append(run.seed)
        return DIE if tried.count(run.seed) == 1 else {"seed": run.seed}

    assert work(Pool(3, fate), 2) == {seed: {"seed": seed} for seed in range(1, 6)}


def test_workers_that_cannot_even_start_are_an_error(work):
    pool = Pool(2, "stillborn")
    with pytest.raises(KalmanClipError, match="before they do anything: killed by SIGKILL, feed them"):
        work(pool)
    assert len(pool.started) < 6


class DiesWhileItAnswers(Source):
    """A data set whose reader is killed in the middle of sending its record, which is a large one."""

    def read(self):
        connection = multiprocessing.connection.Connection
        send = connection._send

        def send_half(self, content, *others):
            send(self, content[:50_000], *others)
            if len(content) > 50_000:
                os.kill(os.getpid(), signal.SIGKILL)

        connection._send = send_half
        raise RuntimeError("long " * 100_000)


def test_a_worker_may_be_killed_while_it_answers(make_run):
    worker = LocalWorker(1)
    try:
        assert worker.result() is None
        worker.submit((make_run(), DiesWhileItAnswers("x", "x", None, ("a {}.",), ""), "cpu", None, None))
        with pytest.raises(WorkerDied, match="killed by SIGKILL"):
            worker.result()
    finally:
        worker.kill()


START_BUSY_WORKER = """
import sys, time
from kalmanclip.experiments.workers import LocalWorker

class Sleep:
    def __reduce__(self):
        return time.sleep, (3600,)

worker = LocalWorker(1)
worker.result()
worker.submit(Sleep())
print("busy", flush=True)
sys.stdin.read()
"""


def test_workers_end_with_their_driver_also_in_the_middle_of_a_run():
    command = [sys.executable, "-c", START_BUSY_WORKER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout.readline() == "busy\n"
        driver.kill()
        driver.communicate(timeout=PATIENCE)  # returns when the worker, who holds the pipe too, is gone

"""Who does what when workers die: no process is started here."""

import pytest

from kalmanclip.errors import KalmanClipError
from kalmanclip.experiments.crew import Crew
from kalmanclip.experiments.pool import WorkerDied
from kalmanclip.experiments.sources import Source

PETS = Source("pets", "pets", None, ("a photo of a {}.",), "f" * 64)
READY, DIE = object(), object()


class Worker:
    def __init__(self, fate):
        self.fate, self.said, self.ended = fate, READY if fate != "stillborn" else DIE, False

    def give(self, arguments):
        assert self.said is None
        assert not self.ended
        self.said = self.fate(arguments[0])

    def answer(self):
        said, self.said = self.said, None
        if said is DIE:
            raise WorkerDied("killed by SIGKILL")
        return None if said is READY else said

    def end(self):
        self.ended = True


class Pool:
    """All of its workers have spoken when they are asked."""

    advice = "feed them"

    def __init__(self, size, fate):
        self.room, self.fate, self.hired = size, fate, []

    def size(self):
        return self.room

    def hire(self):
        self.hired.append(Worker(self.fate))
        return self.hired[-1]

    def wait(self, workers, seconds):
        assert sum(not worker.ended for worker in self.hired) <= self.room
        return workers


def work(crew, runs, most=50):
    """Does runs as `run_all` does; returns what came of them, by seed."""
    runs, found = list(runs), {}
    for _ in range(most):
        while crew.has_time and runs:
            crew.give((runs.pop(0), PETS, "cpu", None, None))
        crew.fit(len(runs))
        if not (runs or crew.busy):
            return found
        found.update((run.seed, record) for run, record in crew.collect(0.0))
    raise AssertionError("it does not end")


def runs_of(make_run, count=5):
    return [make_run(seed=seed) for seed in range(1, count + 1)]


def test_every_run_is_done_once_and_nobody_is_kept_without_use(make_run):
    done = []

    def fate(run):
        done.append(run.seed)
        return {"seed": run.seed}

    pool = Pool(2, fate)
    found = work(Crew(pool, 3), runs_of(make_run))
    assert found == {seed: {"seed": seed} for seed in range(1, 6)}
    assert sorted(done) == [1, 2, 3, 4, 5]
    assert len(pool.hired) == 2
    assert all(worker.ended for worker in pool.hired)


def test_no_more_workers_than_runs_and_more_when_there_is_more_room(make_run):
    pool = Pool(9, lambda run: {})
    work(Crew(pool, 3), runs_of(make_run, 2))
    assert len(pool.hired) == 2
    pool = Pool(1, lambda run: {})
    crew = Crew(pool, 3)
    crew.fit(5)
    pool.room = 3  # a node has come
    crew.fit(5)
    assert len(pool.hired) == 3


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_a_run_that_ends_its_workers_fails_and_the_others_do_not(make_run, attempts):
    tried = []

    def fate(run):
        tried.append(run.seed)
        return DIE if run.seed == 2 else {"status": "done"}

    found = work(Crew(Pool(2, fate), attempts), runs_of(make_run))
    assert {seed: record["status"] for seed, record in found.items()} == {
        seed: "failed" if seed == 2 else "done" for seed in range(1, 6)
    }
    assert [tried.count(seed) for seed in range(1, 6)] == [1, attempts, 1, 1, 1]
    often = "once" if attempts == 1 else f"{attempts} times"
    assert found[2]["reason"] == (f"Its worker process died {often}: killed by SIGKILL, feed them and --retry-failed.")
    assert found[2]["address"] == make_run(seed=2).address


def test_a_run_whose_worker_dies_once_is_done_by_another(make_run):
    tried = []

    def fate(run):
        tried.append(run.seed)
        return DIE if tried.count(run.seed) == 1 else {"seed": run.seed}

    assert work(Crew(Pool(3, fate), 2), runs_of(make_run)) == {seed: {"seed": seed} for seed in range(1, 6)}


def test_workers_that_cannot_even_start_are_an_error(make_run):
    pool = Pool(2, "stillborn")
    with pytest.raises(KalmanClipError, match="before they do anything: killed by SIGKILL, feed them"):
        work(Crew(pool, 3), runs_of(make_run))
    assert len(pool.hired) < 6

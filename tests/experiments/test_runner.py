"""Which runs are done, by whom, and what others' results and old failures mean; at the end, with real processes."""

import multiprocessing
import os
import random
import signal
import time
from dataclasses import replace

import pytest
import torch

from kalmanclip.errors import ConfigError
from kalmanclip.experiments import runner
from kalmanclip.experiments.sources import Source
from kalmanclip.experiments.store import Locks, Store

PETS = Source("pets", "pets", None, ("a photo of a {}.",), "f" * 64)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


@pytest.fixture
def done(monkeypatch, make_record):
    """The seeds that are run, in order."""
    seeds = []

    def run_one(run, source, device, cache, model, progress):
        assert source is PETS
        seeds.append(run.seed)
        progress("reading", run.seed, 9)
        return make_record(0.5, seed=run.seed)

    monkeypatch.setattr(runner, "run_one", run_one)
    monkeypatch.setattr(runner, "PAUSE", 0.01)
    return seeds


def runs_of(make_run, count=3):
    return [make_run(seed=seed) for seed in range(1, count + 1)]


def test_what_is_stored_is_not_done_again(store, done, make_run, make_record):
    store.save(make_run(seed=2), make_record(0.25, seed=2))
    told = []
    records = runner.run_all(runs_of(make_run), [PETS], store, progress=lambda *now: told.append(now))
    assert done == [1, 3]
    assert [record["metrics"]["accuracy"] for record in records] == [0.5, 0.25, 0.5]
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert len(list(store.folder.iterdir())) == 3  # no lock is left


def test_what_happens_within_a_run_is_told(store, done, make_run):
    told = []
    runner.run_all(runs_of(make_run, 2), [PETS], store, within=lambda *now: told.append(now))
    assert told == [(f"gda on pets, 4 shots, seed {n}", n, 9) for n in (1, 2)]


def test_failures_are_done_again_on_request_only(store, done, make_run, make_record):
    store.save(make_run(seed=1), make_record(None, seed=1))
    (record,) = runner.run_all(runs_of(make_run, 1), [PETS], store)
    assert (record["status"], done) == ("failed", [])
    (record,) = runner.run_all(runs_of(make_run, 1), [PETS], store, retry=True)
    assert (record["status"], done) == ("done", [1])


def test_what_others_do_is_waited_for(store, done, make_run, make_record):
    with Locks(store.folder) as other:
        other.acquire(make_run(seed=1).address)
        waited = []

        def wait(count):
            waited.append(count)
            store.save(make_run(seed=1), make_record(0.75, seed=1))

        records = runner.run_all(runs_of(make_run), [PETS], store, waiting=wait)
    assert (done, waited) == ([2, 3], [1])
    assert records[0]["metrics"]["accuracy"] == 0.75


def test_what_others_give_up_is_done_here(store, done, make_run):
    with Locks(store.folder) as other:
        address = make_run(seed=1).address
        other.acquire(address)
        runner.run_all(runs_of(make_run), [PETS], store, waiting=lambda count: other.release(address))
    assert done == [2, 3, 1]


def test_two_labels_of_one_run_share_it(store, done, make_run):
    records = runner.run_all([make_run(), make_run(label="mine")], [PETS], store)
    assert done == [1]
    assert [record["label"] for record in records] == ["gda", "mine"]


def test_locks_are_released_when_something_stops_us(store, done, make_run, monkeypatch):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run_one", stop)
    with pytest.raises(KeyboardInterrupt):
        runner.run_all(runs_of(make_run), [PETS], store)
    assert list(store.folder.iterdir()) == []


@pytest.mark.parametrize("numbers", [{"workers": 0}, {"attempts": 0}, {"cpus_per_run": 0}])
def test_numbers_that_cannot_work_are_refused(store, done, make_run, numbers):
    with pytest.raises(ConfigError, match=f"{next(iter(numbers))} must be at least 1"):
        runner.run_all(runs_of(make_run), [PETS], store, **numbers)


def test_threads_are_those_that_were_asked_for_and_only_meanwhile(store, make_run, make_record, monkeypatch):
    before, seen = torch.get_num_threads(), []

    def run_one(run, *others):
        seen.append(torch.get_num_threads())
        return make_record(0.5, seed=run.seed)

    monkeypatch.setattr(runner, "run_one", run_one)
    runner.run_all(runs_of(make_run, 1), [PETS], store, cpus_per_run=before + 1)
    assert seen == [before + 1]
    assert torch.get_num_threads() == before


class Deadly(Source):
    """A data set that ends every process that reads it."""

    def read(self):
        os.kill(os.getpid(), signal.SIGKILL)


def test_workers_may_be_killed_at_any_moment(small_plan, undisturbed, comparable, tmp_path):
    sources, runs = small_plan
    deadly = Deadly("deadly", "deadly", None, ("a {}.",), "0" * 64)
    doomed = replace(runs[0], data="deadly", fingerprint=deadly.fingerprint)
    chance, killed = random.Random(), []

    def kill_one(done, total):
        if done and not killed:
            time.sleep(chance.uniform(0, 0.2))
            killed.append(chance.choice(multiprocessing.active_children()).pid)
            os.kill(killed[0], signal.SIGKILL)

    store = Store(tmp_path)
    everything = [doomed, *runs]
    records = runner.run_all(
        everything, [*sources, deadly], store, workers=2, cpus_per_run=1, attempts=2, progress=kill_one
    )
    assert killed
    assert comparable(records[1:]) == undisturbed
    assert records[0]["status"] == "failed"
    assert "died 2 times: killed by SIGKILL" in records[0]["reason"]
    assert comparable(map(store.record, everything)) == comparable(records)
    assert len(list(tmp_path.iterdir())) == len(everything)  # no lock is left
    assert multiprocessing.active_children() == []


def drive(folder, sources, runs):
    runner.run_all(runs, sources, Store(folder), cpus_per_run=1)


def test_the_driver_may_be_killed_at_any_moment(small_plan, undisturbed, comparable, tmp_path):
    sources, runs = small_plan
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kalmanclip.experiments"])  # imported once, for all drivers
    store, chance = Store(tmp_path), random.Random()

    def results():
        return {path: path.read_bytes() for path in tmp_path.glob("[!.]*.json")}

    for _ in range(3):
        before = results()
        if len(before) == len(runs):
            break  # on a busy machine a kill may come late
        driver = context.Process(target=drive, args=(tmp_path, sources, runs))
        driver.start()
        while len(results()) == len(before) and driver.is_alive():
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.1))
        driver.kill()
        driver.join()
        kept = results()
        assert len(before) < len(kept) == len(store.records())  # each of them whole
        assert all(kept[path] == content for path, content in before.items())
    records = runner.run_all(runs, sources, store, cpus_per_run=1)
    assert comparable(records) == undisturbed
    assert all(results()[path] == content for path, content in kept.items())

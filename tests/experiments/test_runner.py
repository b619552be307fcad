"""Which runs are done, by whom, and what others' results and old failures mean. No run is really done here."""

import pytest

from kalmanclip.experiments import runner
from kalmanclip.experiments.claims import Claims
from kalmanclip.experiments.sources import Source
from kalmanclip.experiments.store import Store

PETS = Source("pets", "pets", None, ("a photo of a {}.",), "f" * 64)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


@pytest.fixture
def done(monkeypatch, make_record):
    """The seeds that are executed, in order."""
    seeds = []

    def execute(run, source, device, cache, model, progress):
        assert source is PETS
        seeds.append(run.seed)
        progress("reading", run.seed, 9)
        return make_record(0.5, seed=run.seed)

    monkeypatch.setattr(runner, "execute", execute)
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
    assert len(list(store.folder.iterdir())) == 3  # no claim is left


def test_what_happens_within_a_run_is_told(store, done, make_run):
    told = []
    runner.run_all(runs_of(make_run, 2), [PETS], store, within=lambda *now: told.append(now))
    assert told == [("reading", 1, 9), ("reading", 2, 9)]


def test_failures_are_done_again_on_request_only(store, done, make_run, make_record):
    store.save(make_run(seed=1), make_record(None, seed=1))
    (record,) = runner.run_all(runs_of(make_run, 1), [PETS], store)
    assert (record["status"], done) == ("failed", [])
    (record,) = runner.run_all(runs_of(make_run, 1), [PETS], store, retry=True)
    assert (record["status"], done) == ("done", [1])


def test_what_others_do_is_waited_for(store, done, make_run, make_record):
    with Claims(store.folder) as other:
        other.take(make_run(seed=1).address)
        waited = []

        def wait(count):
            waited.append(count)
            store.save(make_run(seed=1), make_record(0.75, seed=1))

        records = runner.run_all(runs_of(make_run), [PETS], store, waiting=wait)
    assert (done, waited) == ([2, 3], [1])
    assert records[0]["metrics"]["accuracy"] == 0.75


def test_what_others_give_up_is_done_here(store, done, make_run):
    with Claims(store.folder) as other:
        address = make_run(seed=1).address
        other.take(address)
        runner.run_all(runs_of(make_run), [PETS], store, waiting=lambda count: other.give_back(address))
    assert done == [2, 3, 1]


def test_two_labels_of_one_run_share_it(store, done, make_run):
    records = runner.run_all([make_run(), make_run(label="mine")], [PETS], store)
    assert done == [1]
    assert [record["label"] for record in records] == ["gda", "mine"]


def test_claims_are_given_back_when_something_stops_us(store, done, make_run, monkeypatch):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "execute", stop)
    with pytest.raises(KeyboardInterrupt):
        runner.run_all(runs_of(make_run), [PETS], store)
    assert list(store.folder.iterdir()) == []

"""The store gives back what is finished and whole, nothing else."""

import json
import os

import pytest

from kalmanclip.experiments.store import Store, read_jsonl


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def test_what_was_saved_is_finished(store, make_run, make_record):
    assert store.finished(make_run()) is None
    store.save(make_run(), make_record(0.5))
    assert store.finished(make_run()) == make_record(0.5)
    assert [path.name for path in store.folder.iterdir()] == [f"{make_run().address}.json"]


def test_a_failed_run_is_not_finished(store, make_run, make_record):
    store.save(make_run(), make_record(None))
    assert store.finished(make_run()) is None


@pytest.mark.parametrize("part", [0, 1, 40, -3])
def test_a_half_written_file_is_not_finished(store, make_run, make_record, part):
    store.save(make_run(), make_record(0.5))
    path = store.path(make_run())
    path.write_bytes(path.read_bytes()[:part])
    assert store.finished(make_run()) is None


@pytest.mark.parametrize(
    "damage",
    [
        *({"format": 99}, {"metrics": None}, {"metrics": {"accuracy": None}}, {"run": {}}, {"status": "?"}),
        *({"metrics": {"accuracy": 7}}, {"metrics": {"accuracy": 0.5, "nll": "low"}}, {"seconds": {"fit": "long"}}),
        *({"seconds": 3}, {"label": ["x"]}, {"code": "abc"}, {"shifts": {"sketch": 1}}, {"environment": []}),
    ],
    ids=str,
)
def test_a_damaged_record_is_not_finished(store, make_run, make_record, damage):
    store.path(make_run()).write_text(json.dumps(make_record(0.5) | damage))
    assert store.finished(make_run()) is None


RUN_DAMAGE = [{"contamination": [1]}, {"contamination": {"share": "half"}}, {"shots": "4"}, {"seed": True}]


@pytest.mark.parametrize("damage", RUN_DAMAGE, ids=str)
def test_a_damaged_run_in_a_line_is_left_out(tmp_path, make_record, damage):
    good, bad = make_record(0.5), make_record(0.6, seed=2)
    bad["run"] |= damage
    lines = [json.dumps(good).encode(), json.dumps(bad).encode(), b"\xff\xfe", b"[" * 100_000, b"NaN"]
    (tmp_path / "r.jsonl").write_bytes(b"\n".join(lines))
    records, damaged = read_jsonl(tmp_path / "r.jsonl")
    assert [record["run"]["seed"] for record in records] == [1]
    assert damaged == [f"r.jsonl line {number}" for number in (2, 3, 4, 5)]


def test_all_records_are_those_that_are_whole_and_named_by_their_run(store, make_run, make_record):
    store.save(make_run(), make_record(0.5))
    store.save(make_run(shots=1), make_record(None, shots=1))
    store.save(make_run(seed=2), make_record(0.5))  # another run's
    store.path(make_run(seed=3)).write_text("{")
    (store.folder / "results.json").write_text("{}")
    found = store.records()
    assert {record["address"] for record in found} == {make_run().address, make_run(shots=1).address}
    assert store.record(make_run(shots=1))["status"] == "failed"


def test_opening_a_store_removes_what_killed_writers_left(store):
    for name in (".tmp-0a.json", ".tmp-0b.json"):
        (store.folder / name).write_text("{")
    os.utime(store.folder / ".tmp-0a.json", (0, 0))
    Store(store.folder)
    assert [path.name for path in store.folder.iterdir()] == [".tmp-0b.json"]  # its writer may be at work


def test_a_renamed_file_is_not_another_runs_result(store, make_run, make_record):
    store.save(make_run(seed=2), make_record(0.5))  # the record says seed 1
    assert store.finished(make_run(seed=2)) is None

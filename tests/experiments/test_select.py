"""Which runs of a store are meant, and what is said where something is missing."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.experiments.conftest import make_record as record_of

from kalmanclip.errors import DataError
from kalmanclip.experiments.spec import Contamination
from kalmanclip.experiments.store import (
    Selection,
    Store,
    choose,
    find_results,
    label_of,
    read_jsonl,
    share_of,
    slim,
    to_jsonl,
    write_jsonl,
)

RECORDS = [
    record_of(0.5),
    record_of(0.6, seed=2),
    record_of(0.7, shots=1, data="dtd"),
    record_of(None, method="kalman", label="mine"),
    record_of(0.4, model="RN50:openai"),
    record_of(0.3, contamination=Contamination(0.25, seed=1)),
]


def save(folder, *records):
    for record in records:
        (folder / f"{record['address']}.json").write_text(json.dumps(record))


def test_nothing_asked_for_means_everything():
    assert all(Selection().wants(record) for record in RECORDS)


@pytest.mark.parametrize(
    ("selection", "meant"),
    [
        (Selection(data=("dtd",)), [2]),
        (Selection(methods=("mine",)), [3]),
        (Selection(methods=("kalman",)), []),  # its label is what counts
        (Selection(shots=(1, 2)), [2]),
        (Selection(seeds=(2,)), [1]),
        (Selection(models=("RN50:openai",)), [4]),
        (Selection(shares=(0.25,)), [5]),
        (Selection(shares=(0.0,)), [0, 1, 2, 3, 4]),
        (Selection(statuses=("failed",)), [3]),
        (Selection(data=("pets",), seeds=(1,), statuses=("done",), models=("tiny",), shares=(0.0,)), [0]),
    ],
    ids=str,
)
def test_a_run_must_have_one_value_of_every_field(selection, meant):
    assert [i for i, record in enumerate(RECORDS) if selection.wants(record)] == meant


@given(st.sets(st.sampled_from([1, 2, 4, 8])), st.sets(st.sampled_from([1, 2, 4, 8])))
def test_values_of_one_field_are_alternatives(one, other):
    records = [record_of(0.5, shots=k) for k in (1, 2, 4, 8)]

    def meant(shots):
        return {r["run"]["shots"] for r in records if Selection(shots=tuple(shots)).wants(r)}

    if one and other:
        assert meant(one | other) == meant(one) | meant(other) == one | other


def test_results_without_labels_or_contamination():
    old = record_of(0.5)
    del old["label"]
    assert (label_of(old), share_of(old), share_of(RECORDS[5])) == ("gda", 0.0, 0.25)


def test_chosen_runs_are_in_order_and_what_is_unknown_is_named(tmp_path):
    save(tmp_path, *RECORDS)
    chosen = choose(tmp_path, Selection(methods=("gda", "gdda"), seeds=(1, 2), models=("tiny",), shares=(0.0,)))
    assert [(r["run"]["data"], r["run"]["seed"]) for r in chosen.records] == [("dtd", 1), ("pets", 1), ("pets", 2)]
    (said,) = chosen.remarks()
    assert said.endswith("None of the methods (labels) is gdda; there are: gda, mine.")


def test_damaged_files_are_named(tmp_path):
    save(tmp_path, *RECORDS)
    broken, foreign = f"{'0' * 64}.json", f"{'1' * 64}.json"
    (tmp_path / broken).write_text("{")
    (tmp_path / foreign).write_text(json.dumps(RECORDS[0]))  # a whole record under another's name
    (tmp_path / "results.json").write_text("{")  # none of the store's
    chosen = choose(tmp_path, Selection())
    assert len(chosen.records) == len(RECORDS)
    assert chosen.damaged == [broken, foreign]
    (said,) = chosen.remarks()
    assert "2 records are damaged" in said
    assert broken in said


def test_nothing_meant_is_an_error_that_says_what_there_is(tmp_path):
    save(tmp_path, *RECORDS)
    with pytest.raises(DataError, match=r"no such results\. None of the data is pest; there are: dtd, pets"):
        choose(tmp_path, Selection(data=("pest",)))
    with pytest.raises(DataError, match="No run has all of it together"):
        choose(tmp_path, Selection(data=("dtd",), seeds=(2,)))
    assert find_results(tmp_path, Selection(data=("pest",))).records == []


def test_a_file_with_a_line_per_run_is_as_good_as_the_store(tmp_path):
    store, file = tmp_path / "store", tmp_path / "file.jsonl"
    store.mkdir()
    save(store, *RECORDS)
    write_jsonl(file, RECORDS)
    one, other = (choose(path, Selection()) for path in (store, file))
    assert [slim(record) for record in one.records] == [slim(record) for record in other.records]
    assert [record["address"] for record in one.records] == [record["address"] for record in other.records]
    assert to_jsonl(RECORDS[::-1]) == file.read_text()  # sorted
    assert len(file.read_text().splitlines()) == len(RECORDS)
    assert "task" not in file.read_text()


def test_a_run_with_a_line_is_done(tmp_path, make_run):
    write_jsonl(tmp_path / "file.jsonl", RECORDS)
    store = Store(tmp_path / "new", also=[tmp_path / "file.jsonl"])
    assert store.finished(make_run())["metrics"] == slim(RECORDS[0])["metrics"]
    assert store.finished(make_run(seed=99)) is None
    assert store.record(make_run(method="kalman"))["status"] == "failed"


def test_damaged_lines_are_named(tmp_path):
    write_jsonl(tmp_path / "file.jsonl", RECORDS[:2])
    with (tmp_path / "file.jsonl").open("a") as stream:
        stream.write("{\n[]\n")
    assert len(read_jsonl(tmp_path / "file.jsonl")[0]) == 2
    assert choose(tmp_path / "file.jsonl", Selection()).damaged == ["file.jsonl line 3", "file.jsonl line 4"]


def test_no_store_is_an_error(tmp_path):
    with pytest.raises(DataError, match="There is no folder"):
        find_results(tmp_path / "nowhere", Selection())
    (tmp_path / "photo.jpg").write_bytes(b"")
    with pytest.raises(DataError, match=r"holds no results\. Give"):
        find_results(tmp_path, Selection())
    (tmp_path / f"{'0' * 64}.json").write_text("{")
    with pytest.raises(DataError, match="only 1 damaged records"):
        find_results(tmp_path, Selection())


def test_a_folder_that_may_not_be_read_is_an_error(tmp_path, monkeypatch):
    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(DataError, match="cannot be read: Permission denied"):
        find_results(tmp_path, Selection())

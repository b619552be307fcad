"""``kalmanclip results``: list, export, diff."""

import copy
import csv
import json
from functools import partial

import pytest
from tests.cli import invoke
from tests.experiments.conftest import make_record

from kalmanclip.experiments.spec import Contamination, address_of
from kalmanclip.experiments.store import read_jsonl, write_jsonl

RECORDS = [make_record(0.5 + s / 10, method=m, seed=s) for m in ("kalman", "gda") for s in (1, 2)]
RECORDS.append(make_record(None, "no\nmemory", method="coop"))


call = partial(invoke.call, "results")


def save(folder, records):
    folder.mkdir(exist_ok=True)
    for record in records:
        (folder / f"{record['address']}.json").write_text(json.dumps(record))
    return folder


@pytest.fixture
def store(tmp_path):
    return save(tmp_path / "store", RECORDS)


@pytest.fixture
def other(tmp_path, store):
    """The same results in another folder, made by other code in other time."""
    records = copy.deepcopy(RECORDS)
    for record in records:
        record |= {"code": {"version": "1", "source": "t"}, "seconds": {"fit": 50.0, "predict": 1.0}}
    return save(tmp_path / "other", records)


def test_help_shows_examples():
    assert "diff" in call("--help").output
    for command in ("list", "export", "diff"):
        assert f"kalmanclip results {command}" in call(command, "--help").output


def lines_of(output):
    return [line.split() for line in output.splitlines() if line.split()[:1] in (["kalman"], ["gda"], ["coop"])]


def test_list_has_a_line_per_run(store):
    output = call("list", store, "--all").output
    assert lines_of(output) == [
        ["kalman", "pets", "4", "1", "60.0", "%", "0.500", "10.0", "%", "2.0", "done"],
        ["kalman", "pets", "4", "2", "70.0", "%", "0.500", "10.0", "%", "2.0", "done"],
        ["gda", "pets", "4", "1", "60.0", "%", "0.500", "10.0", "%", "2.0", "done"],
        ["gda", "pets", "4", "2", "70.0", "%", "0.500", "10.0", "%", "2.0", "done"],
        ["coop", "pets", "4", "1", "-", "-", "-", "-", "failed:", "no", "memory"],
    ]
    assert "5 runs, 4 done, 1 failed. Backbones: tiny. Code: 0 (s)." in output
    few = call("list", store).output
    assert lines_of(few)[0] == ["kalman", "pets", "4", "1", "60.0", "%", "0.500", "done"]
    assert lines_of(few)[-1] == ["coop", "pets", "4", "1", "-", "-", "failed"]
    assert "1 failed (--all says why)" in few


def test_list_shows_what_differs_between_runs(store):
    mixed = make_record(0.5, model="RN50:openai", contamination=Contamination(0.5, seed=1))
    save(store, [mixed | {"code": {"version": "1", "source": "0123456789"}}])
    output = call("list", store, "--methods", "gda", "--seeds", 1).output
    assert ["gda", "pets", "RN50:openai", "50", "%"] in [line[:5] for line in lines_of(output)]
    assert ["gda", "pets", "tiny", "0", "%"] in [line[:5] for line in lines_of(output)]
    assert "Backbones: RN50:openai: 1 runs, tiny: 1 runs. Code: 1 (01234567): 1 runs, 0 (s): 1 runs." in output


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["--methods", "kalman,coop"], 3),
        (["--methods", "kalman", "--methods", "gda", "--seeds", "2"], 2),
        (["--status", "failed"], 1),
        (["--data", "pets", "--shots", "4", "--model", "tiny", "--share", "0", "--status", "done"], 4),
    ],
    ids=str,
)
def test_list_as_json_of_some(store, words, count):
    found = json.loads(call("list", store, "--json", *words).stdout)
    assert len(found["runs"]) == count
    for run in found["runs"]:
        (record,) = [record for record in RECORDS if record["address"] == run["address"]]
        assert run["accuracy"] == record.get("metrics", {}).get("accuracy")
        assert (run["reason"] is None) == (run["status"] == "done")


def test_damaged_files_are_named(store):
    (store / f"{'0' * 64}.json").write_text("{")
    assert f"1 records are damaged, or of another version, and left out: {'0' * 64}.json" in call("list", store).stderr
    assert json.loads(call("list", store, "--json").stdout)["damaged"] == [f"{'0' * 64}.json"]
    assert "damaged" in call("export", store).stderr
    assert "damaged" in call("diff", store, store).stderr


DAMAGE = [
    lambda record: record | {"seconds": {"fit": "long"}},
    lambda record: record | {"metrics": {"accuracy": 0.5, "nll": []}},
    lambda record: record | {"code": 7},
    lambda record: record | {"run": record["run"] | {"contamination": "some"}},
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_one_damaged_record_blocks_nothing(store, other, damage):
    damaged = damage(RECORDS[0])
    (store / f"{address_of(damaged['run'])}.json").write_text(json.dumps(damaged))
    left = 5 if damaged["run"] != RECORDS[0]["run"] else 4
    result = call("list", store)
    assert len(lines_of(result.stdout)) == left
    assert "1 records are damaged" in result.stderr
    assert "1 records are damaged" in call("export", store).stderr
    assert "1 records are damaged" in call("diff", store, other, code=0 if left == 5 else 1).stderr
    assert "1 records are damaged" in invoke.call("compare", "--report-only", "-o", store).stderr


def test_export_by_ending(store, tmp_path):
    paths = [tmp_path / f"table{ending}" for ending in (".csv", ".md", ".tex", ".JSONL")]
    output = call("export", store, *(word for path in paths for word in ("-o", path)), "--methods", "kalman,gda").output
    assert all(f"4 runs are in {path}." in output for path in paths)
    with paths[0].open() as stream:
        rows = {row["method"]: row for row in csv.DictReader(stream)}
    assert [float(rows[name]["accuracy_mean"]) for name in ("kalman", "gda")] == pytest.approx([0.65, 0.65])
    assert "| gda | **65.0 ± 7.1** |" in paths[1].read_text(encoding="utf-8")
    assert r"gda & \textbf{65.0 $\pm$ 7.1} \\" in paths[2].read_text(encoding="utf-8")
    runs, _ = read_jsonl(paths[3])
    assert {run["address"] for run in runs} == {record["address"] for record in RECORDS[:4]}
    assert all("task" not in run for run in runs)


def test_export_prints_markdown(store, other):
    result = call("export", store, "--status", "done", "--shots", 4)
    assert result.stdout.startswith("# Comparison with tiny")
    assert "coop" not in result.stdout
    assert "versions" not in result.stderr
    for path in list(other.iterdir())[:1]:
        (store / path.name).write_bytes(path.read_bytes())
    assert "different versions of the code" in call("export", store).stderr


def test_diff_of_the_same(store, other):
    output = call("diff", store, other).output
    assert "5 runs are in both, all with the same results." in output
    assert "not made with the same: code.version (5 runs), code.source (5 runs)." in output
    assert output.rstrip().endswith("The same.")
    found = json.loads(call("diff", store, other, "--json").stdout)
    assert found["same"]
    assert found["common"] == 5
    assert found["different"] == found["replaced"] == found["only_in_a"] == found["only_in_b"] == []


def test_every_command_reads_a_file_with_a_line_per_run(store, tmp_path):
    call("export", store, "-o", tmp_path / "slim.jsonl")
    assert call("list", tmp_path / "slim.jsonl").output == call("list", store).output
    assert call("export", tmp_path / "slim.jsonl").output == call("export", store).output
    assert call("diff", store, tmp_path / "slim.jsonl").output.rstrip().endswith("The same.")
    write_jsonl(tmp_path / "other.jsonl", RECORDS[1:])
    assert "Only in A: 1 runs" in call("diff", tmp_path / "slim.jsonl", tmp_path / "other.jsonl", code=1).output


def test_diff_of_results(store, other):
    record = copy.deepcopy(RECORDS[0])
    record["metrics"] |= {"accuracy": 0.55, "nll": 0.75, "brier": 0.3}
    save(other, [record])
    output = call("diff", store, other, code=1).output
    assert "5 runs are in both, 4 of them with the same results." in output
    rows = lines_of(output)
    assert ["kalman", "2", "1", "-2.50", "+0.1250", "+0.00", "-5.00", "4.0", "53.0"] in rows
    line = "kalman pets 4 1 0 % 60.00 % 55.00 % -5.00 +0.2500 +0.00 brier"
    assert line.split() in rows
    assert output.rstrip().endswith("Different.")
    call("diff", store, other, "--tolerance", 0.3)
    call("diff", store, other, "--methods", "gda,coop")
    found = json.loads(call("diff", store, other, "--json", code=1).stdout)
    assert found["different"][0]["changes"]["accuracy"] == {"a": 0.6, "b": 0.55}
    assert found["rows"][0]["accuracy points"] == "-2.50"


def test_a_small_difference_is_not_shown_as_none(store, other):
    record = copy.deepcopy(RECORDS[0])
    record["metrics"]["nll"] += 1e-9
    save(other, [record])
    assert "+1.0e-09" in call("diff", store, other, code=1).output
    call("diff", store, other, "--tolerance", 1e-8)


def test_diff_of_options_and_absences(store, tmp_path):
    fewer = [r for r in RECORDS if r["run"]["method"] == "gda" and r["run"]["seed"] == 1]
    changed = [make_record(0.9, method="kalman", seed=s, config={"alpha": 9, "alpha_grid": [0.1, 1.0]}) for s in (1, 2)]
    output = call("diff", store, save(tmp_path / "b", [*fewer, *changed]), code=1).output
    rows = lines_of(output)
    assert ["kalman", "2", "+25.00", "+0.0000", "+0.00", "+30.00", "alpha:", "0.1", "→", "9"] in rows
    assert "Only in A: 2 runs" in output
    assert ["gda", "1", "pets", "4", "2", "0", "%"] in rows
    assert "Only in B" not in output
    found = json.loads(call("diff", tmp_path / "b", store, "--json", code=1).stdout)
    assert [run["label"] for run in found["only_in_b"]] == ["gda", "coop"]
    assert found["replaced"][0]["run"] == {"alpha": {"a": 9, "b": 0.1}}


def test_long_lists_are_cut(store, other):
    records = [make_record(0.5, seed=s, method="ape_t") for s in range(30)]
    save(store, records)
    for record in records:
        record["metrics"]["accuracy"] = 0.6
    save(other, records)
    result = call("diff", store, other, code=1)
    assert sum(line.split()[:2] == ["ape_t", "pets"] for line in result.output.splitlines()) == 20
    assert "and 10 more; --json lists all of them" in result.output
    assert len(json.loads(call("diff", store, other, "--json", code=1).stdout)["different"]) == 30


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["list", "nowhere"], 3, "There is no folder"),
        (["list", "{empty}"], 3, "holds no results"),
        (["list", "{store}", "--methods", "kalmann"], 3, "there are: coop, gda, kalman"),
        (["list", "{store}", "--shots", "four"], 2, "whole numbers"),
        (["list", "{store}", "--share", "half"], 2, "takes shares"),
        (["list", "{store}", "--status", "broken"], 2, "done or failed"),
        (["export", "{store}", "-o", "table.xlsx"], 2, "must end in .csv, .md, .tex, .jsonl"),
        (["export", "{store}", "-o", "nowhere/table.csv"], 3, "cannot write nowhere/table.csv"),
        (["diff", "{store}", "{empty}"], 3, "holds no results"),
        (["diff", "{store}", "{store}", "--data", "dtd"], 3, "no such results"),
        (["diff", "{store}", "{store}", "--tolerance", "-1"], 2, "tolerance"),
    ],
    ids=str,
)
def test_mistakes_are_named(store, tmp_path, words, code, says):
    (tmp_path / "empty").mkdir()
    result = call(*(word.format(store=store, empty=tmp_path / "empty") for word in words), code=code)
    assert says in " ".join(result.output.split())

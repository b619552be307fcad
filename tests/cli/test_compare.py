"""``kalmanclip compare``: runs, tables and figures; kills, failures and mistakes."""

import csv
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from functools import partial

import pytest
from tests.cli import invoke
from tests.processes import PATIENCE

from kalmanclip.experiments.aggregate import METRICS
from kalmanclip.experiments.store import read_jsonl

REPORT = {"table.csv", "table.md", "results.jsonl", "figure.png", "figure.svg"}


call = partial(invoke.call, "compare")


def result_files(folder):
    """The runs' own files, by address."""
    return {p.stem: p for p in folder.glob("*.json") if re.fullmatch(r"[0-9a-f]{64}", p.stem)}


def records(folder):
    return {address: json.loads(path.read_text()) for address, path in result_files(folder).items()}


@pytest.fixture(scope="module")
def words(split_shapes, tmp_path_factory):
    """A comparison of twelve short runs, without its output."""
    config = tmp_path_factory.mktemp("config") / "short.json"
    config.write_text(json.dumps({"class_residuals": {"crops": 2}, "gda": {"crops": 2}}))
    methods = ["--methods", "zero_shot,gda,class_residuals"]
    return [
        "--data",
        str(split_shapes),
        *methods,
        "--shots",
        "1,2",
        "--seeds",
        "1,2",
        "--config",
        str(config),
    ]


@pytest.fixture(scope="module")
def undisturbed(words, tmp_path_factory):
    """The results folder of that comparison; tests must not change it."""
    folder = tmp_path_factory.mktemp("undisturbed") / "results"
    call(*words, "-o", folder)
    return folder


def test_every_run_leaves_its_record(undisturbed):
    found = records(undisturbed)
    assert len(found) == 12
    assert {p.name for p in undisturbed.iterdir()} == REPORT | {f"{address}.json" for address in found}
    for address, record in found.items():
        assert record["address"] == address
        assert record["status"] == "done"
        assert set(METRICS) <= set(record["metrics"])
        assert sum(row["images"] for row in record["metrics"]["reliability"]) == record["images"]["test"] == 6
        assert record["images"]["train"] == 3 * record["run"]["shots"] == len(record["task"]["draw"]["train"])
        assert record["images"]["validation"] == 3 * min(record["run"]["shots"], 3 - record["run"]["shots"])
        assert {"python", "packages", "weights"} <= set(record["environment"])
        assert set(record["code"]) == {"version", "source"}
    assert str(undisturbed.parent) not in json.dumps(found)


def test_all_methods_see_the_same_draws(undisturbed):
    draws = {}
    for record in records(undisturbed).values():
        draws.setdefault((record["run"]["shots"], record["run"]["seed"]), []).append(record["task"])
    assert len(draws) == 4
    for same in draws.values():
        assert len(same) == 3
        assert all(task == same[0] for task in same)


def test_the_tables_numbers_are_those_of_the_records(undisturbed):
    cells = {}
    for record in records(undisturbed).values():
        run = record["run"]
        cells.setdefault((run["data"], run["shots"], run["method"]), []).append(record["metrics"])
    with (undisturbed / "table.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {(row["data"], int(row["shots"]), row["method"]) for row in rows} == set(cells)
    markdown = (undisturbed / "table.md").read_text(encoding="utf-8")
    for row in rows:
        metrics = cells[row["data"], int(row["shots"]), row["method"]]
        assert int(row["seeds"]) == len(metrics) == 2
        for metric in METRICS:
            values = [m[metric] for m in metrics]
            if None in values:
                assert row[f"{metric}_mean"] == ""
                continue
            assert float(row[f"{metric}_mean"]) == pytest.approx(statistics.fmean(values))
            assert float(row[f"{metric}_std"]) == pytest.approx(statistics.stdev(values))
        shown = f"{100 * float(row['accuracy_mean']):.1f} ± {100 * float(row['accuracy_std']):.1f}"
        first = next(line for line in markdown.splitlines() if line.startswith(f"| {row['method']} |"))
        assert shown in first
    slim, damaged = read_jsonl(undisturbed / "results.jsonl")
    assert not damaged
    assert {run["address"]: run["metrics"] for run in slim} == {
        address: {name: value for name, value in record["metrics"].items() if name != "reliability"}
        for address, record in records(undisturbed).items()
    }


def test_a_report_needs_the_results_only(undisturbed, tmp_path):
    for path in result_files(undisturbed).values():
        shutil.copy(path, tmp_path)
    call("--report-only", "-o", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in undisturbed.iterdir()}
    with (undisturbed / "table.csv").open() as one, (tmp_path / "table.csv").open() as other:
        assert sorted(one) == sorted(other)
    some = ("--methods", "gda", "--shots", "2", "--data", "split", "--model", "tiny")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    output = call("--report-only", "-o", tmp_path, *some).output
    assert "gda" in output
    assert "10 more runs and stays as it is" in output
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    call("--report-only", "--also", tmp_path, "-o", tmp_path / "some", *some)
    with (tmp_path / "some" / "table.csv").open() as stream:
        assert [(row["method"], row["shots"], row["seeds"]) for row in csv.DictReader(stream)] == [("gda", "2", "2")]
    assert "no such results" in call("--report-only", "-o", tmp_path, "--methods", "coop", code=3).output
    assert "no folder" in call("--report-only", "-o", tmp_path / "nowhere", code=3).output


def test_a_comparison_goes_on_from_a_file_with_a_line_per_run(words, undisturbed, tmp_path):
    file, folder = shutil.copy(undisturbed / "results.jsonl", tmp_path / "earlier.jsonl"), tmp_path / "results"
    result = call(*words, "--also", file, "-o", folder)
    assert "12 of 12 runs are finished already" in result.output
    assert {path.name for path in folder.iterdir()} == REPORT
    for name in ("table.csv", "table.md", "results.jsonl"):
        assert (folder / name).read_text() == (undisturbed / name).read_text()
    call("--report-only", "--also", file, "-o", tmp_path / "drawn", "--methods", "gda,class_residuals")
    assert len(read_jsonl(tmp_path / "drawn" / "results.jsonl")[0]) == 8
    assert "no folder" in call(*words, "--also", tmp_path / "nowhere", "-o", tmp_path / "new", code=3).output


def test_two_processes_share_the_work(words, undisturbed, tmp_path):
    folder = tmp_path / "results"
    command = [sys.executable, "-m", "kalmanclip", "compare", *words, "-o", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + PATIENCE
        while not list(folder.glob(".*.lock")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        result = call(*words, "-o", folder)
        output, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 0, output
    assert "12 of 12 runs are finished already" not in result.output  # both had something to do
    assert_same_results(folder, undisturbed)
    assert {path.name for path in folder.iterdir()} == {path.name for path in undisturbed.iterdir()}


def test_the_figure_is_drawn(undisturbed):
    assert (undisturbed / "figure.png").read_bytes().startswith(b"\x89PNG")
    svg = (undisturbed / "figure.svg").read_text()
    assert "<svg" in svg


def test_finished_runs_are_kept_and_damaged_ones_made_again(words, undisturbed, tmp_path):
    folder = shutil.copytree(undisturbed, tmp_path / "results")
    files = sorted(result_files(folder).values())
    half, emptied, missing = files[:3]
    half.write_bytes(half.read_bytes()[:100])
    emptied.write_bytes(b"")
    missing.unlink()
    before = {path: path.read_bytes() for path in files[3:]}
    result = call(*words, "-o", folder)
    assert "9 of 12 runs are finished already" in result.output
    assert all(path.read_bytes() == content for path, content in before.items())
    assert_same_results(folder, undisturbed)


def test_results_of_different_code_are_pointed_out(words, undisturbed, tmp_path):
    folder = shutil.copytree(undisturbed, tmp_path / "results")
    path = next(iter(result_files(folder).values()))
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"code": {"version": "0", "source": "older"}}))
    assert "different versions of the code" in call(*words, "-o", folder).output


@pytest.mark.slow
def test_a_killed_comparison_goes_on_and_ends_the_same(words, undisturbed, tmp_path):
    folder = tmp_path / "results"
    command = [sys.executable, "-m", "kalmanclip", "compare", *words, "-o", str(folder), "--workers", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + PATIENCE
        while not result_files(folder) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        os.kill(process.pid, signal.SIGKILL)
    output, _ = process.communicate(timeout=PATIENCE)  # returns when the workers, who hold the pipe too, are gone
    assert process.returncode == -signal.SIGKILL, output
    kept = {path: path.read_bytes() for path in result_files(folder).values()}
    assert 0 < len(kept) < 12
    result = call(*words, "-o", folder)
    assert f"{len(kept)} of 12 runs are finished already" in result.output
    assert all(path.read_bytes() == content for path, content in kept.items())
    assert_same_results(folder, undisturbed)


def assert_same_results(folder, expected):
    found, wanted = records(folder), records(expected)
    assert found.keys() == wanted.keys()
    for address, record in found.items():
        for part in ("run", "task", "images", "status"):
            assert record[part] == wanted[address][part]
        for metric in METRICS:
            value, other = record["metrics"][metric], wanted[address]["metrics"][metric]
            if other is None:
                assert value is None
            else:  # the workers have fewer threads, so sums may round differently
                assert value == pytest.approx(other, rel=1e-3, abs=1e-6)


def test_a_failing_run_is_recorded_does_not_stop_others_and_is_tried_again_on_request(split_shapes, tmp_path):
    data, folder = shutil.copytree(split_shapes, tmp_path / "data"), tmp_path / "results"
    bad = data / "train" / "circle" / "0.png"
    good = bad.read_bytes()
    for path in bad.parent.iterdir():  # whichever is drawn
        path.write_bytes(b"not an image")
    words = ["--data", data, "--methods", "gda,zero_shot", "--shots", 1, "--seeds", 1, "-o", folder]
    result = call(*words, code=1)
    by_method = {record["run"]["method"]: record for record in records(folder).values()}
    assert by_method["zero_shot"]["status"] == "done"  # it needs no training images
    assert by_method["gda"]["status"] == "failed"
    assert ".png" in by_method["gda"]["reason"]
    assert "traceback" not in by_method["gda"]
    assert "1 of 2 runs failed" in result.output
    assert " ".join(by_method["gda"]["reason"].split()) in result.output
    assert " ".join(by_method["gda"]["reason"].split()) in (folder / "table.csv").read_text()
    assert "| gda | failed |" in (folder / "table.md").read_text(encoding="utf-8")
    for path in bad.parent.iterdir():
        path.write_bytes(good)
    assert "2 of 2 runs are finished already, 1 of them failed" in call(*words, code=1).output
    assert str(tmp_path) not in "".join(path.read_text() for path in folder.iterdir() if path.suffix != ".png")
    result = call(*words, "--retry-failed")
    assert "1 of 2 runs are finished already" in result.output
    assert all(record["status"] == "done" for record in records(folder).values())


def test_rows_of_ones_own_templates_and_shifts(split_shapes, shapes, tmp_path):
    config = tmp_path / "rows.json"
    config.write_text(json.dumps({"same": {"method": "zero_shot"}, "gda 2": {"method": "gda", "crops": 2}}))
    words = ["--data", f"mine={split_shapes / 'train'}:{split_shapes / 'test'}", "--shift", f"other={shapes}"]
    words += ["--template", "mine=a drawing of a {}.", "--config", config, "--methods", "zero_shot,same,gda 2"]
    call(*words, "--shots", 1, "--seeds", 1, "-o", tmp_path / "results")
    found = list(records(tmp_path / "results").values())
    assert {record["label"] for record in found} == {"zero_shot", "gda 2"}  # two labels, one run
    assert all(record["run"]["templates"] == ["a drawing of a {}."] for record in found)
    assert all(record["images"]["shifts"] == {"other": 15} for record in found)
    table = (tmp_path / "results" / "table.md").read_text(encoding="utf-8")
    assert "mine → other, 1-shot" in table
    assert all(f"| {label} |" in table for label in ("zero_shot", "same", "gda 2"))


def test_an_unexpected_error_is_a_failed_run_with_its_traceback(split_shapes, tmp_path, monkeypatch):
    from kalmanclip.methods import GDA

    def broken(self, task, progress):
        assert task.test is None  # a method cannot choose on what it does not have
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(GDA, "learn", broken)
    result = call("--data", split_shapes, "--methods", "gda", "--shots", 1, "--seeds", 1, "-o", tmp_path, code=1)
    assert "unexpected ZeroDivisionError: oops" in result.output
    (record,) = records(tmp_path).values()
    assert "in broken" in record["traceback"]


def test_where_the_data_lie_is_not_part_of_a_run_but_what_they_are_is(split_shapes, tmp_path):
    from kalmanclip.experiments import find_sources

    moved = shutil.copytree(split_shapes, tmp_path / "split")
    (here,), (there,) = find_sources([str(split_shapes)]), find_sources([str(moved)])
    assert (here.name, here.fingerprint) == (there.name, there.fingerprint)
    next((moved / "test" / "circle").iterdir()).unlink()
    (changed,) = find_sources([str(moved)])
    assert changed.fingerprint != here.fingerprint


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (["--methods", "kalmann"], 2, "did you mean 'kalman'"),
        (["--data", "oxford_pet"], 2, "Did you mean oxford_pets"),
        (["--data", "no/such/folder"], 3, "There is no folder"),
        (["--data", "oxford_pets", "--root", "nowhere"], 3, "was not found"),
        (["--model", "tinny"], 4, "Unknown backbone"),
        (["--shots", "1,two"], 2, "whole numbers"),
        (["--shots", "0"], 2, "at least 1"),
        (["--template", "a photo"], 2, "must contain {}"),
        (["--device", "abacus"], 2, "cannot be used here"),
        (["--config", "missing.json"], 2, "cannot read missing.json"),
        (["--workers", "0"], 2, "workers"),
        (["--contamination", "half"], 2, "takes shares"),
        (["--contamination", "2"], 2, "between 0 and 1"),
        (["--template", "dogs=a {}."], 2, "there are only: split"),
        (["--shift", "nowhere/at/all"], 3, "There is no folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_are_named_before_anything_is_written(split_shapes, tmp_path, change, code, says):
    result = call("--data", split_shapes, "-o", tmp_path / "results", *change, code=code)
    assert says in " ".join(result.output.split())
    assert not (tmp_path / "results").exists()


def test_something_to_compare_on_is_needed(tmp_path):
    assert "at least one data set" in call("-o", tmp_path / "results", code=2).output


def test_a_folder_of_classes_is_not_a_data_set(shapes, tmp_path):
    result = call("--data", shapes, "-o", tmp_path / "results", code=3)
    assert "a folder with train/ and test/" in " ".join(result.output.split())


def test_two_data_sets_of_one_name_are_refused(split_shapes, tmp_path):
    twin = shutil.copytree(split_shapes, tmp_path / "split")
    result = call("--data", split_shapes, "--data", twin, "-o", tmp_path / "results", code=2)
    assert "Two data sets are called 'split'" in result.output

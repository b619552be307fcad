"""``kalmanclip suggest``: a table for people, JSON and CSV for programs."""

import csv
import io
import json

import pytest
from tests.cli.invoke import call

from kalmanclip import KalmanCLIP
from kalmanclip.data import read_folder
from kalmanclip.methods.suggest import ACQUISITIONS


@pytest.fixture(scope="module")
def adapter(tiny, shapes, tmp_path_factory):
    first = read_folder(shapes).subset([0, 5, 10])
    folder = tmp_path_factory.mktemp("adapter") / "shapes.adapter"
    return KalmanCLIP(tiny, prior_std=0.15, options={"crops": 0}).fit(first).save(folder)


def test_what_is_printed_is_what_python_says(adapter, shapes):
    said = json.loads(call("suggest", shapes, adapter, "-n", 4, "--json").stdout)
    clf, files = KalmanCLIP.load(adapter), sorted(shapes.glob("*/*.png"))
    found = clf.suggest(files, 4)
    assert [row["image"] for row in said["suggestions"]] == [str(files[i]) for i in found.positions]
    assert [row["score"] for row in said["suggestions"]] == pytest.approx(found.scores, abs=1e-5)
    best = found.probabilities[found.positions].max(dim=1)
    assert [row["class"] for row in said["suggestions"]] == [clf.class_names_[c] for c in best.indices]
    assert [row["probability"] for row in said["suggestions"]] == pytest.approx(best.values.tolist(), abs=1e-5)
    assert (said["pool"], said["unlabelled"]) == (15, 12)
    assert said["expected_accuracy"] == pytest.approx(found.expected_accuracy, abs=1e-5)
    lines = list(csv.DictReader(io.StringIO(call("suggest", shapes, adapter, "-n", 4, "--csv").stdout)))
    assert [line["image"] for line in lines] == [row["image"] for row in said["suggestions"]]


def test_a_table_for_people(adapter, shapes, monkeypatch):
    monkeypatch.chdir(shapes)
    text = call("suggest", ".", adapter, "-n", 3).stdout
    assert "Of 12 images without a label it expects to tell" in text
    assert "--pool" in text
    table = text.partition("Of 12")[0]
    assert sum(".png" in line for line in table.splitlines()) == 3
    assert max(map(len, table.splitlines())) <= 80


def test_other_ways_and_mistakes(adapter, shapes, tmp_path):
    help_text = " ".join(call("suggest", "--help").stdout.split())
    assert all(by in help_text for by in ACQUISITIONS)
    rows = json.loads(call("suggest", shapes, adapter, "-n", 3, "--by", "random", "--seed", 3, "--json").stdout)
    assert rows["by"] == "random"
    assert "filter, epig" in call("suggest", shapes, adapter, "--by", "best", code=2).stderr
    assert "one of them" in call("suggest", shapes, adapter, "--json", "--csv", code=2).stderr
    assert "nowhere" in call("suggest", tmp_path / "nowhere", adapter, code=3).stderr

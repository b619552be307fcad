"""``kalmanclip check`` and `KalmanCLIP.check_labels`: which pictures lie in the wrong folder."""

import csv
import io
import json
import shutil

import numpy as np
import pytest
import torch
from tests.cli.invoke import call

from kalmanclip import KalmanCLIP
from kalmanclip.data import read_folder
from kalmanclip.errors import ConfigError, DataError
from kalmanclip.prediction import LabelCheck
from kalmanclip.prediction.label_noise import LabelNoise


@pytest.fixture(scope="module")
def mixed(shapes, tmp_path_factory):
    """The shapes, with one circle among the triangles."""
    folder = tmp_path_factory.mktemp("data") / "mixed"
    shutil.copytree(shapes, folder)
    first = min((folder / "circle").iterdir())
    first.rename(folder / "triangle" / "planted.png")
    return folder


@pytest.fixture(scope="module")
def found(mixed):
    """What the command says, of almost all pictures."""
    before = {path: path.read_bytes() for path in mixed.rglob("*.png")}
    answer = json.loads(call("check", mixed, "--json", "--threshold", 0.001).stdout)
    assert {path: path.read_bytes() for path in mixed.rglob("*.png")} == before  # nothing is moved
    assert answer["images"] == len(before)
    return answer


@pytest.fixture
def again(found, mixed, monkeypatch):
    """The same, without judging all pictures again."""
    images = read_folder(mixed)
    wrong = {row["image"]: row["wrong"] for row in found["suspects"]}
    p = torch.tensor([1 - wrong.get(str(path), 0.0) for path in images.sources])
    labels = torch.tensor(images.labels)
    probabilities = torch.zeros(len(p), 3).scatter(1, labels.unsqueeze(1), p.unsqueeze(1))
    noise = LabelNoise(1 - p, found["wrong"], 0.0)
    probabilities[:, 0] += (probabilities.sum(dim=1) < 1) * (1 - p)
    check = LabelCheck.of(images.class_names, labels, probabilities, noise)
    monkeypatch.setattr(KalmanCLIP, "check_labels", lambda *_, **__: check)
    return check


def test_a_picture_in_the_wrong_folder_is_found(found, mixed):
    first, *others = found["suspects"]
    assert (first["image"], first["label"]) == (str(mixed / "triangle" / "planted.png"), "triangle")
    assert first["likely"] == "circle"
    assert 0.5 < first["probability"] <= first["wrong"] <= 1
    assert all(0.001 < row["wrong"] <= 0.5 for row in others)
    assert 0 < found["wrong"] < 0.3


def test_the_table_is_for_people(again, mixed, monkeypatch):
    monkeypatch.setattr("kalmanclip.cli.console._PIPE_WIDTH", 80)
    text = call("check", mixed).stdout
    assert max(map(len, text.splitlines())) <= 80
    (line,) = [line for line in text.splitlines() if "planted.png" in line]
    assert line.split()[:2] == ["triangle/planted.png", "triangle"]
    assert "circle" in line
    assert "One picture is suspect" in text


def test_all_ways_to_print_say_the_same(again, found, mixed):
    (row,) = json.loads(call("check", mixed, "--json").stdout)["suspects"]
    (line,) = csv.DictReader(io.StringIO(call("check", mixed, "--csv").stdout))
    assert line == {name: str(value) for name, value in row.items()}
    assert row["wrong"] == pytest.approx(found["suspects"][0]["wrong"], abs=2e-6)
    rows = json.loads(call("check", mixed, "--json", "--threshold", 0.0011).stdout)["suspects"]
    assert [row["image"] for row in rows] == [str(read_folder(mixed).sources[i]) for i in again.suspects(0.0011)]


def test_checking_leaves_the_estimator_as_it_is(mixed):
    files = sorted(mixed.rglob("*.png"))
    clf = KalmanCLIP(options={"crops": 0}).set_classes(["cat", "dog"])
    method = clf.method_
    check = clf.check_labels(files, [file.parent.name for file in files])
    assert clf.method_ is method
    assert clf.class_names_ == ["cat", "dog"]
    assert check.class_names == ["circle", "square", "triangle"]
    assert files[check.wrong.argmax()].name == "planted.png"
    np.testing.assert_allclose(check.probabilities.sum(axis=1), 1, rtol=1e-5)


def test_what_cannot_be_checked_is_refused(mixed, tmp_path):
    assert "Give one of them" in call("check", mixed, "--json", "--csv", code=ConfigError.exit_code).stderr
    assert "above 0" in call("check", mixed, "--threshold", 1.5, code=ConfigError.exit_code).stderr
    captions = tmp_path / "captions.csv"
    for name in ("a.png", "b.png"):
        shutil.copy(mixed / "triangle" / "planted.png", tmp_path / name)
    captions.write_text("image,caption\na.png,one thing\nb.png,another thing\n")
    assert "no classes" in call("check", captions, code=ConfigError.exit_code).stderr
    with pytest.raises(ConfigError, match="residuals"):
        KalmanCLIP(preset="head").check_labels(mixed)
    with pytest.raises(DataError, match="at least two"):
        KalmanCLIP().check_labels([min(mixed.rglob("*.png"))], ["cat"], class_names=["cat", "dog"])
    with pytest.raises(DataError, match="only one class"):
        KalmanCLIP().check_labels([min(mixed.rglob("*.png"))], ["circle"], class_names=["circle"])


def test_long_lists_are_cut_for_people(again, mixed, monkeypatch):
    row = {"image": "cat.png", "label": "cat", "wrong": 0.9, "likely": "dog", "probability": 0.9}
    monkeypatch.setattr("kalmanclip.cli.check._rows", lambda *_: 50 * [row])
    result = call("check", mixed)
    assert result.stdout.count("cat.png") == 40
    assert "and 10 more" in result.stderr
    assert "50 of 15 pictures are suspect" in result.stdout

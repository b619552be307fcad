"""``kalmanclip evaluate`` on several sets of images, on corrupted ones, and all its numbers."""

import json
import shutil
from functools import partial

import numpy as np
import pytest
from PIL import Image
from tests.cli import invoke

from kalmanclip import KalmanCLIP
from kalmanclip.data import read_folder
from kalmanclip.metrics import (
    BINS,
    brier_score,
    detection_auroc,
    expected_calibration_error,
    failure_auroc,
    negative_log_likelihood,
    top_k_accuracy,
)

call = partial(invoke.call, "evaluate")


@pytest.fixture(scope="module")
def adapter(shapes, tmp_path_factory):
    """Six classes, of which three have images, after one pass."""
    folder = tmp_path_factory.mktemp("adapter") / "shapes.adapter"
    clf = KalmanCLIP().set_classes(["circle", "square", "triangle"])
    clf.fit(shapes)
    clf.set_classes(["circle", "square", "triangle", "dog", "cat", "house"])
    clf.save(folder)
    return folder


@pytest.fixture(scope="module")
def some(shapes, tmp_path_factory):
    """Two of the classes."""
    folder = tmp_path_factory.mktemp("data") / "some"
    for name in ("square", "circle"):
        shutil.copytree(shapes / name, folder / name)
    return folder


def test_one_set_has_all_numbers(adapter, shapes):
    result = json.loads(call(adapter, shapes, "--json").stdout)
    probabilities = KalmanCLIP.load(adapter).predict_proba(sorted(shapes.glob("*/*.png")))
    labels = np.repeat([0, 1, 2], 5)
    right = probabilities.argmax(axis=1) == labels
    assert result["accuracy"] == pytest.approx(right.mean())
    assert result["top5_accuracy"] == pytest.approx(top_k_accuracy(labels, probabilities, 5))
    assert result["nll"] == pytest.approx(negative_log_likelihood(probabilities, labels), rel=1e-4)
    assert result["ece"] == pytest.approx(expected_calibration_error(probabilities, labels), rel=1e-4)
    assert (result["ece_bins"], result["corruption"], result["name"]) == (BINS, None, "shapes")
    expected = failure_auroc(probabilities.max(axis=1), right)
    assert result["failure_auroc"] == (None if np.isnan(expected) else pytest.approx(expected))
    text = call(adapter, shapes).stdout
    assert result["brier"] == pytest.approx(brier_score(probabilities, labels), rel=1e-4)
    assert sum(row["images"] for row in result["reliability"]) == 15
    curve = result["risk_coverage"]
    assert curve["coverage"] == pytest.approx([(i + 1) / 15 for i in range(15)])
    assert curve["risk"][-1] == pytest.approx(1 - result["accuracy"])
    assert result["aurc"] == pytest.approx(np.mean(curve["risk"]))
    for words in ("of 15 images", "zero-shot", "top-5 accuracy", "NLL", "Brier", f"({BINS} bins)", "failure AUROC"):
        assert words in text


def test_unknown_images_are_told_apart(adapter, shapes, noise):
    words = [adapter, shapes, "--unknown", f"{noise},same={shapes}", "--false-alarms", "0.2"]
    result = json.loads(call(*words, "--json").stdout)
    clf = KalmanCLIP.load(adapter)
    known, other = (-clf.ood_score(folder) for folder in (shapes, noise))
    first, second = result["unknown"]
    assert (first["name"], first["images"], second["name"]) == ("noise", 6, "same")
    assert first["auroc"] == pytest.approx(detection_auroc(known, other))
    assert first["auroc"] > 0.9
    assert second["auroc"] == pytest.approx(0.5)
    assert 0 <= first["mcm_auroc"] <= 1
    assert first["flagged"] == pytest.approx(clf.is_ood(noise, 0.2).mean())
    found = clf.is_ood(shapes, 0.2).mean()
    interval = list(clf.ood_calibration(0.2).interval)
    assert result["false_alarms"] == {"asked_for": 0.2, "interval": interval, "found": pytest.approx(found)}
    text = call(*words).stdout
    for part in ("false alarms", "expected", "AUROC", "FPR95", "flagged", "MCM", "noise"):
        assert part in text


def test_three_drawings(adapter, shapes, tmp_path):
    call(adapter, shapes, "--pictures", tmp_path / "new" / "pictures", "-o", tmp_path / "matrix.svg")
    assert {f.name for f in (tmp_path / "new" / "pictures").iterdir()} == {"reliability.png", "risk_coverage.png"}
    assert (tmp_path / "matrix.svg").stat().st_size > 1000
    for file in (tmp_path / "new" / "pictures").iterdir():
        assert min(Image.open(file).size) > 300


def test_several_sets_are_rows_of_one_table(adapter, shapes, some):
    result = json.loads(call(adapter, shapes, f"few={some}", "--json").stdout)
    assert set(result) == {"sets"}
    assert [(row["name"], row["images"]) for row in result["sets"]] == [("shapes", 15), ("few", 10)]
    alone = json.loads(call(adapter, f"few={some}", "--json").stdout)
    assert alone == result["sets"][1]
    text = call(adapter, shapes, f"few={some}").stdout
    assert f"ECE ({BINS} bins)" in text
    assert "few" in text


def test_corruptions_are_measured_beside_the_images_as_they_are(adapter, some):
    pytest.importorskip("imagecorruptions", reason="the extra [corruptions] is not installed")
    words = [adapter, some, "--corruption", "contrast:5,contrast:4", "--corruption", "brightness:1"]
    result = json.loads(call(*words, "--json").stdout)
    rows = result["sets"]
    assert [row["corruption"] for row in rows] == [None, "contrast:5", "contrast:4", "brightness:1"]
    assert len({row["nll"] for row in rows}) == 4
    assert [row["trained_on"] for row in rows] == [10] * 4  # a corrupted picture was seen, too
    (mean,) = result["corruption_means"]
    assert mean["corruptions"] == 3
    assert mean["nll"] == pytest.approx(np.mean([row["nll"] for row in rows[1:]]))
    assert "mean of 3" in call(*words).stdout


def test_all_is_every_corruption_of_imagenet_c():
    pytest.importorskip("imagecorruptions", reason="the extra [corruptions] is not installed")
    from kalmanclip.cli.evaluate import _corruptions
    from kalmanclip.data.corruptions import CORRUPTIONS

    assert _corruptions(["all"]) == [(name, level) for name in CORRUPTIONS for level in range(1, 6)]
    assert _corruptions(["all:2", "fog:2"]) == [(name, 2) for name in CORRUPTIONS]
    assert _corruptions(["fog"]) == [("fog", level) for level in range(1, 6)]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["{some}", "{some}"], 2, "Two sets are called 'some'"),
        (["{some}", "x={some}", "-o", "x.png"], 2, "one set of images"),
        (["{some}", "x={some}", "--pictures", "x"], 2, "one set of images"),
        (["{some}", "--unknown", "no/where"], 3, "no/where"),
        (["{some}", "--unknown", "{some}", "--unknown", "{some}"], 2, "Two folders of unknown images"),
        (["{some}", "--unknown", "{some}", "--false-alarms", "5"], 2, "above 0 and below 1"),
        (["{some}", "--corruption", "rain:3"], 2, "There is no corruption 'rain'"),
        (["{some}", "--corruption", "fog:6"], 2, "from 1 (weak) to 5"),
        (["eurosta"], 2, "Did you mean eurosat"),
        (["no/where"], 3, "There is no folder"),
    ],
)
def test_mistakes_are_named(adapter, some, words, code, says):
    words = [word.replace("{some}", str(some)) for word in words]
    assert says in " ".join(call(adapter, *words, code=code).output.split())


def test_images_of_other_classes_are_refused(adapter, some, tmp_path):
    folder = shutil.copytree(some, tmp_path / "other")
    (folder / "square").rename(folder / "cow")
    assert "'cow' is none of the known classes" in call(adapter, folder, code=3).output


def test_images_that_were_trained_on_are_told_and_left_out(tiny, shapes, tmp_path):
    """Whatever they are called."""
    clf = KalmanCLIP(tiny, options={"crops": 0}).fit(read_folder(shapes).subset([0, 1, 2, 5, 6, 10, 11]))
    clf.save(tmp_path / "a")
    mixed = tmp_path / "mixed"
    for name in ("circle", "square", "triangle"):
        (mixed / name).mkdir(parents=True)
        for number in range(1, 5):
            shutil.copy(shapes / name / f"{number}.png", mixed / name / f"renamed{number}.png")
    found = call(tmp_path / "a", mixed, "--json")
    assert "mixed: 4 of 12 pictures were trained on: the accuracy below is too good" in found.stderr
    whole = json.loads(found.stdout)
    assert (whole["images"], whole["trained_on"]) == (12, 4)
    left = call(tmp_path / "a", mixed, "--json", "--new-only")
    assert "4 of 12 pictures were trained on, and are left out" in left.stderr
    new = json.loads(left.stdout)
    assert (new["images"], new["trained_on"]) == (8, 0)
    for name in ("circle", "square", "triangle"):
        for number in (1, 2) if name == "circle" else (1,):
            (mixed / name / f"renamed{number}.png").unlink()
    again = call(tmp_path / "a", mixed, "--json")
    assert "trained on" not in again.stderr
    assert json.loads(again.stdout) == new
    (circles := tmp_path / "known" / "circle").mkdir(parents=True)
    shutil.copy(shapes / "circle" / "0.png", circles)
    assert (
        "All 1 pictures of known were trained on" in call(tmp_path / "a", circles.parent, "--new-only", code=3).output
    )

"""What the command line says beside classes: unknown images, sets of classes, what the belief leaves open."""

import csv
import inspect
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from tests.cli.invoke import call

from kalmanclip import KalmanCLIP
from kalmanclip.cli.evaluate import evaluate
from kalmanclip.cli.predict import predict
from kalmanclip.data import read_folder
from kalmanclip.errors import AdapterError, ConfigError, DataError
from kalmanclip.prediction import FALSE_ALARMS


@pytest.fixture(scope="module")
def adapter(shapes, tmp_path_factory):
    """Three images of each class to learn from, two to calibrate on."""
    folder = tmp_path_factory.mktemp("adapter") / "shapes.adapter"
    text = call("fit", shapes, "-o", folder, "--calibrate", 2).stdout
    assert "6 further images" in text
    return folder


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "noise.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(file)
    return file


def test_unknown_images_are_marked(adapter, shapes, noise):
    rows = json.loads(call("predict", adapter, shapes, noise, "--json", "--false-alarms", 0.2).stdout)
    clf = KalmanCLIP.load(adapter)
    files = [*sorted(shapes.glob("*/*.png")), noise]
    assert [row["is_ood"] for row in rows] == clf.is_ood(files, 0.2).tolist()
    np.testing.assert_allclose([row["ood_score"] for row in rows], clf.ood_score(files), atol=1e-5)
    assert rows[-1]["is_ood"]
    assert sum(row["is_ood"] for row in rows[:-1]) < 8
    table = call("predict", adapter, noise).stdout
    assert "known?" in table
    assert "unknown" in table


def test_sets_hold_the_first_choice(adapter, shapes):
    rows = json.loads(call("predict", adapter, shapes, "--json", "--sets", 0.8).stdout)
    assert all(row["set"][0] == row["class"] for row in rows)
    assert [row["set"] for row in rows] == KalmanCLIP.load(adapter).predict_sets(shapes, 0.8)
    flat = list(csv.DictReader(io.StringIO(call("predict", adapter, shapes, "--csv", "--sets", 0.8).stdout)))
    assert [line["set"].split(" | ") for line in flat] == [row["set"] for row in rows]
    assert "set" in call("predict", adapter, shapes, "--sets", 0.8).stdout


def test_what_the_belief_leaves_open(adapter, shapes):
    rows = json.loads(call("predict", adapter, shapes, "--json", "--uncertainty").stdout)
    said = KalmanCLIP.load(adapter).predict_full(shapes)
    np.testing.assert_allclose([row["epistemic"] for row in rows], said.epistemic, atol=1e-5)
    np.testing.assert_allclose([row["aleatoric"] for row in rows], said.aleatoric, atol=1e-5)
    table = call("predict", adapter, shapes, "--uncertainty").stdout
    for column in ("epistemic", "aleatoric", "logit std", "lead"):
        assert column in table


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--sets", "0.9"], "at least 9 calibration images; there are 6"),
        (["--sets", "90"], "above 0 and below 1"),
        (["--false-alarms", "0"], "above 0 and below 1"),
    ],
)
def test_what_cannot_be_promised_is_refused(adapter, shapes, words, says):
    assert says in " ".join(call("predict", adapter, shapes, *words, code=2).output.split())


def test_too_few_images_to_hold_out(shapes, tmp_path):
    text = call("fit", shapes, "-o", tmp_path / "a", "--calibrate", 5, code=3).output
    assert "none left to learn from" in " ".join(text.split())


def test_an_adapter_keeps_all_of_it(adapter, shapes, tmp_path):
    clf = KalmanCLIP.load(adapter)
    names, labels = clf.training_images_
    assert len(names) == len(labels) == 9
    assert {name.split("/")[0] for name in names} == {"circle", "square", "triangle"}
    clf.save(tmp_path / "again")
    other = KalmanCLIP.load(tmp_path / "again")
    np.testing.assert_array_equal(other.ood_score(shapes), clf.ood_score(shapes))
    assert other.predict_sets(shapes, 0.8) == clf.predict_sets(shapes, 0.8)
    assert other.ood_threshold(0.1) == clf.ood_threshold(0.1)


def test_a_fitted_classifier_and_its_adapter_say_the_same(shapes, tmp_path, tiny):
    clf = KalmanCLIP(tiny).fit(shapes, calibrate=1)
    clf.save(tmp_path / "a")
    np.testing.assert_array_equal(KalmanCLIP.load(tmp_path / "a", tiny).ood_score(shapes), clf.ood_score(shapes))


def test_learning_on_adds_images_and_takes_the_calibration_away(shapes, tiny):
    images = read_folder(shapes)
    first = images.subset(range(0, 15, 2))
    clf = KalmanCLIP(tiny).fit(first).calibrate(images)
    assert len(clf.calibration_) == 15
    clf.partial_fit(images.subset(range(1, 15, 2)))
    assert len(clf.training_images_[0]) == 15
    with pytest.raises(ConfigError, match="takes a calibration away"):
        clf.predict_sets(shapes)
    clf.calibrate(shapes)
    clf.set_classes(["square", "circle"])
    assert clf.calibration_ is None
    assert sorted(clf.training_images_[1]) == [0] * 5 + [1] * 5


def test_fused_classifiers_know_all_images(shapes, tiny):
    images = read_folder(shapes)
    parts = [KalmanCLIP(tiny).fit(images.subset(range(start, 15, 2))) for start in (0, 1)]
    fused = KalmanCLIP.fuse(parts)
    whole = KalmanCLIP(tiny).fit(images)
    np.testing.assert_allclose(fused.ood_score(shapes), whole.ood_score(shapes), atol=1e-5)


def test_low_rank_parameters_have_no_ood_score(shapes, tiny):
    clf = KalmanCLIP(tiny, preset="head", epochs=1).fit(shapes)
    with pytest.raises(ConfigError, match="class residuals alone"):
        clf.ood_score(shapes)
    assert len(clf.calibrate(shapes).predict_sets(shapes, 0.8)) == 15
    with pytest.raises(DataError, match="at least one image"):
        clf.calibrate(read_folder(shapes).subset([]))


def test_a_damaged_adapter_is_refused(adapter, tmp_path, tiny):
    from kalmanclip.adapter import save_adapter

    clf = KalmanCLIP.load(adapter, tiny)
    clf.method_.ood = replace(clf.method_.ood, labels=clf.method_.ood.labels + 7)
    save_adapter(tmp_path / "a", clf.method_)
    with pytest.raises(AdapterError, match="do not fit its classes"):
        KalmanCLIP.load(tmp_path / "a", tiny)


def test_the_usual_rate_is_written_once():
    for command in (predict, evaluate):
        assert inspect.signature(command).parameters["false_alarms"].default == FALSE_ALARMS


def test_a_calibration_that_was_interrupted_is_made_up_for(adapter, shapes, tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("kalmanclip.methods.ClassResiduals.calibrate", interrupted)
        assert "--resume" in call("fit", shapes, "-o", tmp_path / "a", "--calibrate", 2, code=130).output
    assert KalmanCLIP.load(tmp_path / "a").calibration_ is None
    assert "calibrate was 2, now 1" in call(
        "fit", shapes, "-o", tmp_path / "a", "--resume", "--calibrate", 1, code=2
    ).output.replace("\n", " ")
    call("fit", shapes, "-o", tmp_path / "a", "--resume")
    made, whole = (KalmanCLIP.load(folder).calibration_ for folder in (tmp_path / "a", adapter))
    assert len(made) == len(whole) == 6
    assert "There is nothing to resume" in call("fit", shapes, "-o", tmp_path / "a", "--resume").output

"""What the command line says beside classes: unknown images, sets of classes, what the belief leaves open."""

import csv
import inspect
import io
import json
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from tests.cli.invoke import call

from kalmanclip import KalmanCLIP
from kalmanclip.cli.evaluate import evaluate
from kalmanclip.cli.predict import predict
from kalmanclip.data import read_folder, read_images
from kalmanclip.encoders.features import image_features
from kalmanclip.errors import AdapterError, ConfigError, DataError, RepeatedImagesWarning
from kalmanclip.prediction import FALSE_ALARMS, NONE_OF_THESE


@pytest.fixture(scope="module")
def adapter(shapes, tmp_path_factory):
    """Three images of each class to learn from, two to calibrate on."""
    folder = tmp_path_factory.mktemp("adapter") / "shapes.adapter"
    text = call("fit", shapes, "-o", folder, "--calibrate", 2).stdout
    assert "6 images that were set aside" in text
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


def test_an_unknown_image_has_one_answer(adapter, shapes, noise):
    """Neither a class nor a probability stands beside "none of these", in any form of the output."""
    first = next(iter(sorted(shapes.glob("*/*.png"))))
    (row,) = json.loads(call("predict", adapter, noise, "--json", "--sets", 0.8).stdout)
    assert (row["class"], row["probability"], row["set"]) == (NONE_OF_THESE, None, [])
    names = KalmanCLIP.load(adapter).class_names_
    assert {choice["class"] for choice in row["top"]} < set(names)  # the closest, for programs
    (line,) = csv.DictReader(io.StringIO(call("predict", adapter, noise, "--csv", "--sets", 0.8).stdout))
    assert (line["class"], line["probability"], line["set"], line["class_2"], line["probability_2"]) == (
        NONE_OF_THESE,
        *[""] * 4,
    )
    table = call("predict", adapter, noise, "--sets", 0.8).stdout
    assert NONE_OF_THESE in table
    assert "%" not in table
    assert not [name for name in names if name in table]
    said = KalmanCLIP.load(adapter).predict_full([first, noise], how="mean", false_alarms=0.01)
    assert said.answers.tolist() == [said.labels[0], NONE_OF_THESE]


def test_without_false_alarms_every_image_gets_a_class(adapter, noise):
    (row,) = json.loads(call("predict", adapter, noise, "--json", "--false-alarms", 0).stdout)
    assert row["class"] == row["top"][0]["class"]
    assert row["probability"] == row["top"][0]["probability"]
    assert "is_ood" not in row


def test_sets_hold_the_first_choice(adapter, shapes):
    rows = json.loads(call("predict", adapter, shapes, "--json", "--sets", 0.8, "--false-alarms", 0).stdout)
    assert all(row["set"][0] == row["class"] for row in rows)
    assert [row["set"] for row in rows] == KalmanCLIP.load(adapter).predict_sets(shapes, 0.8)
    flat = list(
        csv.DictReader(
            io.StringIO(call("predict", adapter, shapes, "--csv", "--sets", 0.8, "--false-alarms", 0).stdout)
        )
    )
    assert [line["set"].split(" | ") for line in flat] == [row["set"] for row in rows]
    assert "set" in call("predict", adapter, shapes, "--sets", 0.8, "--false-alarms", 0).stdout


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
        (["--false-alarms", "5"], "above 0 and below 1"),
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
    assert clf.expected_accuracy_ is None  # it was about less
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
    assert parts[1].were_learned(images).tolist() == [False, True] * 7 + [False]
    assert fused.were_learned(images).all()
    whole = KalmanCLIP(tiny).fit(images)
    np.testing.assert_allclose(fused.ood_score(shapes), whole.ood_score(shapes), atol=1e-5)


@pytest.mark.parametrize("preset", ["head", "paper"])
def test_every_preset_tells_unknown_images_by_frozen_features(shapes, noise, tiny, tmp_path, preset):
    """What was learned does not matter to the score, nor whether it went through a file."""
    short = {"epochs": 1, "seed": 0}
    clf = KalmanCLIP(tiny, preset=preset, **short).fit(shapes)
    plain = KalmanCLIP(tiny).fit(shapes)
    images = [*sorted(shapes.glob("*/*.png")), noise]
    np.testing.assert_allclose(clf.ood_score(images), plain.ood_score(images), atol=1e-3)
    assert clf.is_ood([noise], 0.2).tolist() == [True]
    clf.save(tmp_path / "a")
    again = KalmanCLIP.load(tmp_path / "a", tiny)
    np.testing.assert_array_equal(again.ood_score(images), clf.ood_score(images))
    assert again.ood_calibration(0.2) == clf.ood_calibration(0.2)


def test_adapters_of_older_versions_are_read(shapes, tiny, tmp_path):
    """Those of the default preset keep no scores of held-out images, those of the others no training images."""
    from kalmanclip.adapter import save_adapter

    clf = KalmanCLIP(tiny, preset="head", epochs=1).fit(shapes)
    clf.method_.ood = None
    save_adapter(tmp_path / "a", clf.method_)
    old = KalmanCLIP.load(tmp_path / "a", tiny)
    with pytest.raises(ConfigError, match=r"older versions .* Fit again"):
        old.ood_score(shapes)
    assert old.predict_full(shapes).is_ood is None
    old.partial_fit(shapes)
    assert old.training_images_ is None  # the images before are not known, and would look strange
    assert len(old.calibrate(shapes).predict_sets(shapes, 0.8)) == 15
    with pytest.raises(DataError, match="at least one image"):
        old.calibrate(read_folder(shapes).subset([]))


def test_images_held_out_make_the_threshold_exact(adapter, shapes, tiny, tmp_path):
    clf = KalmanCLIP.load(adapter, tiny)
    assert clf.ood_calibration(0.2).calibrated
    assert not clf.ood_calibration(0.1).calibrated  # six images are too few for that
    clf.save(tmp_path / "a")
    assert KalmanCLIP.load(tmp_path / "a", tiny).ood_calibration(0.2) == clf.ood_calibration(0.2)
    scores = clf.method_.ood.calibration
    assert clf.ood_threshold(0.2) == scores.double().max()
    clf.partial_fit(read_folder(shapes).subset([0]))
    assert not clf.ood_calibration(0.2).calibrated
    clf.calibrate(shapes)
    np.testing.assert_allclose(clf.method_.ood.calibration, clf.ood_score(shapes))


def test_without_false_alarms_there_is_no_score(adapter, shapes, tiny):
    found = KalmanCLIP.load(adapter, tiny).predict_full(shapes, false_alarms=None)
    assert (found.ood_score, found.is_ood, found.neighbors) == (None, None, None)
    assert found.answers.tolist() == found.labels.tolist()


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
    assert KalmanCLIP.load(tmp_path / "a").calibration_.in_turn  # not what was asked for yet
    assert "calibrate was 2, now 1" in call(
        "fit", shapes, "-o", tmp_path / "a", "--resume", "--calibrate", 1, code=2
    ).output.replace("\n", " ")
    call("fit", shapes, "-o", tmp_path / "a", "--resume")
    made, whole = (KalmanCLIP.load(folder).calibration_ for folder in (tmp_path / "a", adapter))
    assert len(made) == len(whole) == 6
    assert "There is nothing to resume" in call("fit", shapes, "-o", tmp_path / "a", "--resume").output


# --- each image held out once


@pytest.fixture(scope="module")
def whole(shapes, tmp_path_factory):
    """All images to learn from, and what the fit printed."""
    folder = tmp_path_factory.mktemp("adapter") / "whole.adapter"
    return folder, call("fit", shapes, "-o", folder, "--crops", 2).stdout


def test_without_images_set_aside_each_is_held_out_once(whole, shapes, tmp_path):
    folder, text = whole
    clf = KalmanCLIP.load(folder)
    assert (len(clf.calibration_), clf.calibration_.in_turn) == (15, True)
    learned = 1 - clf.predict_proba(shapes)[np.arange(15), np.repeat([0, 1, 2], 5)]
    assert clf.calibration_.scores.mean() > learned.mean()  # of images that were learned from
    assert clf.expected_accuracy_.images == 15
    right = round(100 * clf.expected_accuracy_.accuracy)
    low, high = (round(100 * end) for end in clf.expected_accuracy_.interval())
    for said in (text, call("info", folder).stdout):
        assert f"about {right} of 100 new pictures like these should be right" in said
        assert f"(between {low} and {high}; by 15 images, each held out once)" in said
        assert "calibrated on 15 images, each held out once" in said
    rows = json.loads(call("predict", folder, shapes, "--json", "--sets", 0.9, "--false-alarms", 0).stdout)
    assert [row["set"] for row in rows] == clf.predict_sets(shapes, 0.9)
    _is_what_the_folds_say(clf, shapes, rows)
    clf.save(tmp_path / "again")
    again = KalmanCLIP.load(tmp_path / "again", clf.backbone_)
    assert again.expected_accuracy_ == clf.expected_accuracy_
    assert again.calibration_.in_turn
    assert again.predict_sets(shapes, 0.9) == clf.predict_sets(shapes, 0.9)
    assert again.were_learned(shapes).all()


def _is_what_the_folds_say(clf, images, rows):
    """Each set, from the embeddings and the classifiers of the folds."""
    method = clf.method_
    f = image_features(method.encoder, read_images(images)).double().numpy()
    logits = method.backbone.logit_scale * np.einsum("nd,kcd->knc", f, method.fold_weights.double().numpy())
    new = 1 - np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    own, folds = clf.calibration_.scores, clf.calibration_.folds
    assert len(new) == len(set(folds)) == 4
    for i, row in enumerate(rows):
        better = (own[:, None] < new[folds, i] - 1e-6).sum(axis=0)
        assert set(row["set"]) == {name for name, b in zip(clf.class_names_, better, strict=True) if b < 15} | {
            row["class"]
        }


def test_a_damaged_calibration_is_refused(whole, tmp_path, tiny):
    clf = KalmanCLIP.load(whole[0], tiny)
    for number, weights in enumerate([clf.method_.fold_weights[:1], clf.method_.fold_weights[:, :2]]):
        clf.method_.fold_weights = weights
        clf.save(tmp_path / str(number))
        with pytest.raises(AdapterError, match="held out in turn is incomplete"):
            KalmanCLIP.load(tmp_path / str(number), tiny)


def test_with_one_image_of_each_class_nothing_is_expected(shapes, tmp_path):
    text = call("fit", shapes, "-o", tmp_path / "a", "--shots", 1, "--crops", 0).stdout
    assert "of 100" not in text
    assert "sets of classes" not in text
    assert "not calibrated" in call("info", tmp_path / "a").stdout


@pytest.mark.parametrize("preset", [None, "head"])
def test_images_that_are_learned_twice_are_told(shapes, tiny, preset, tmp_path):
    images = read_folder(shapes)
    options = {"crops": 0} if preset is None else {"batch_size": 8}
    clf = KalmanCLIP(tiny, preset=preset, epochs=None if preset is None else 1, options=options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clf.fit(images.subset(range(0, 15, 2)))
        clf.fit(images.subset(range(0, 15, 2)))  # from scratch: nothing is known any more
        clf.partial_fit(images.subset([1, 3]))
    shutil.copy(images.sources[4], tmp_path / "copy.png")
    with pytest.warns(RepeatedImagesWarning, match=r"1 of 2 images .*count twice"):
        clf.partial_fit([tmp_path / "copy.png", images.sources[5]], ["circle", "square"])
    clf.save(tmp_path / "a")
    with pytest.warns(RepeatedImagesWarning, match="1 of 1"):
        KalmanCLIP.load(tmp_path / "a", tiny).partial_fit([images.sources[5]], ["square"])

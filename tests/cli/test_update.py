"""``kalmanclip update`` and ``kalmanclip calibrate``, against the estimator in Python."""

import json

import numpy as np
import pytest
from PIL import Image, ImageDraw
from tests.cli.invoke import call

from kalmanclip import KalmanCLIP

COLORS = {"circle": "red", "square": "blue", "triangle": "green"}


def draw(folder, names, numbers):
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in numbers:
            image = Image.new("RGB", (32, 32), (9 * number, 0, 0))
            ImageDraw.Draw(image).rectangle((4, 4 + number, 20, 24), COLORS[name])
            image.save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module", params=["default", "head"])
def place(request, tmp_path_factory):
    """Two classes, learned; more images of one of them, and a third class; tests must not change them."""
    folder = tmp_path_factory.mktemp("update")
    old, _ = draw(folder / "old", ["circle", "square"], range(3)), draw(folder / "more", ["circle", "triangle"], (4, 5))
    options = {"default": {"crops": 2}, "head": {"preset": "head", "epochs": 1}}[request.param]
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    call("fit", old, "-o", folder / "old.adapter", *words)
    return folder


def test_update_is_partial_fit(place, tmp_path):
    before = {path.name: path.read_bytes() for path in (place / "old.adapter").iterdir()}
    text = call("update", place / "old.adapter", place / "more", "-o", tmp_path / "new.adapter", "--epochs", 2).stdout
    assert "triangle" in text
    assert {path.name: path.read_bytes() for path in (place / "old.adapter").iterdir()} == before
    files = sorted(place.glob("*/*/*.png"))
    expected = KalmanCLIP.load(place / "old.adapter").partial_fit(place / "more", epochs=2)
    found = KalmanCLIP.load(tmp_path / "new.adapter")
    assert found.class_names_ == expected.class_names_ == list(COLORS)
    np.testing.assert_array_equal(found.predict_proba(files), expected.predict_proba(files))
    assert "already holds an adapter" in call(
        "update", place / "old.adapter", place / "more", "-o", tmp_path / "new.adapter", code=5
    ).stderr.replace("\n", " ")


def test_calibrate_and_update_replace_the_adapter(place, tmp_path):
    adapter = tmp_path / "my.adapter"
    KalmanCLIP.load(place / "old.adapter").save(adapter, {})
    held = draw(tmp_path / "held", ["circle", "square"], range(6, 9))
    assert "85.7 %" in call("calibrate", adapter, held).stdout  # six images
    (row,) = json.loads(call("predict", adapter, held / "circle" / "6.png", "--json", "--sets", 0.8).stdout)
    assert row["set"][:1] == [row["class"]] or row["probability"] is None
    result = call("update", adapter, place / "more")
    assert KalmanCLIP.load(adapter).class_names_ == list(COLORS)
    assert ("no longer calibrated" in result.stderr) == (KalmanCLIP.load(adapter).calibration_ is None)


def test_images_that_were_learned_from_are_noticed(place, tmp_path):
    adapter = place / "old.adapter"
    assert "6 of 6 images were learned from" in call("calibrate", adapter, place / "old", code=3).stderr
    assert "6 of 6 images were learned before" in call("update", adapter, place / "old", "-o", tmp_path / "new").stderr


def test_what_cannot_go_on_is_refused(place, tmp_path):
    adapter = tmp_path / "my.adapter"
    clf = KalmanCLIP.load(place / "old.adapter")
    clf.save(adapter, {"epochs": 3, "epochs_done": 1})
    assert "interrupted" in call("update", adapter, place / "more", code=5).stderr
    clf.save(adapter, {"captions": True})
    assert "Captions" in call("update", adapter, place / "more", code=2).stderr
    assert "does not exist" in call("calibrate", place / "old.adapter", tmp_path / "nowhere", code=3).stderr

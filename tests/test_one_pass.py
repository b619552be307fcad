"""Whatever is asked about images, each is decoded and encoded once."""

from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.cli.invoke import call

from kalmanclip import KalmanCLIP
from kalmanclip.app.images import Gallery, read_upload
from kalmanclip.app.service import AdapterService
from kalmanclip.encoders import DualEncoder


@pytest.fixture(scope="module")
def fitted(tiny, shapes):
    clf = KalmanCLIP(tiny, prior_std=0.15, options={"crops": 0})
    return clf.fit(shapes, calibrate=3)


@pytest.fixture(scope="module")
def adapter(fitted, tmp_path_factory):
    return fitted.save(tmp_path_factory.mktemp("adapter") / "shapes.adapter")


@contextmanager
def counted(monkeypatch):
    """Counts how often each file is opened, and how many images pass through the frozen tower."""
    opened, encoded = Counter(), Counter()
    open_file, build = Path.open, DualEncoder.__init__

    def counting_open(path, *args, **kwargs):
        opened.update([str(path)] if path.suffix == ".png" else [])
        return open_file(path, *args, **kwargs)

    def counting_build(self, *args, **kwargs):
        build(self, *args, **kwargs)
        prefix = self.image.prefix

        def counting_prefix(pixels):
            encoded["images"] += len(pixels)
            return prefix(pixels)

        self.image.prefix = counting_prefix

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", counting_open)
        patched.setattr(DualEncoder, "__init__", counting_build)
        yield opened, encoded


def files(*folders):
    return {str(path): 1 for folder in folders for path in folder.rglob("*.png")}


def test_predict_with_everything(adapter, shapes, noise, monkeypatch):
    with counted(monkeypatch) as (opened, encoded):
        call("predict", adapter, shapes, noise, "--uncertainty", "--sets", 0.8, "--false-alarms", 0.1)
    assert opened == files(shapes, noise)
    assert encoded["images"] == 21


def test_evaluate_with_unknown_images(adapter, shapes, noise, monkeypatch):
    monkeypatch.setattr("kalmanclip.data.images._file_hashes", {})  # the fit has read these files
    with counted(monkeypatch) as (opened, encoded):
        call("evaluate", adapter, shapes, "--unknown", noise)
    # what has labels is also hashed: was it trained on?
    assert opened == files(noise) | dict.fromkeys(files(shapes), 2)
    assert encoded["images"] == 21


def test_a_look_at_the_page(adapter, tiny, shapes, monkeypatch):
    path = shapes / "circle" / "0.png"
    with counted(monkeypatch) as (opened, encoded):
        service = AdapterService(KalmanCLIP.load(adapter, tiny), adapter, Gallery())
        said = service.look(read_upload(path))
    assert said.neighbours
    assert said.unknown is not None
    assert opened == {str(path): 1}
    assert encoded["images"] == 1


def test_the_views_of_a_prediction_agree_with_it(fitted, shapes):
    full = fitted.predict_full(shapes, how="mean", coverage=0.8, false_alarms=0.1, zero_shot=True, neighbors=2)
    np.testing.assert_array_equal(fitted.predict_proba(shapes), full.at_mean)
    np.testing.assert_array_equal(fitted.predict(shapes), full.labels)
    np.testing.assert_array_equal(fitted.ood_score(shapes), full.ood_score)
    np.testing.assert_array_equal(fitted.is_ood(shapes, 0.1), full.is_ood)
    assert fitted.predict_sets(shapes, 0.8) == full.sets
    assert full.neighbors.position.shape == (15, 2)
    untouched = KalmanCLIP(fitted.backbone_).set_classes(fitted.class_names_)
    np.testing.assert_allclose(untouched.predict_proba(shapes), full.zero_shot.softmax(dim=1), atol=1e-5)

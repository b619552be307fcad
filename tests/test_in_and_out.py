"""The estimator among other libraries: their images in, embeddings in and out, frames, HTML, plots, progress."""

import inspect
import io
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torchvision.datasets import ImageFolder

import kalmanclip
from kalmanclip import KalmanCLIP, plots, progress
from kalmanclip.data import LabelledImages, read_folder
from kalmanclip.encoders import precomputed
from kalmanclip.errors import ConfigError, DataError, ImageError
from kalmanclip.prediction import NONE_OF_THESE

QUICK = {"prior_std": 0.15, "options": {"crops": 0}}
NAMES = ["circle", "square", "triangle"]


@pytest.fixture(scope="module")
def fitted(tiny, shapes):
    return KalmanCLIP(tiny, **QUICK).fit(shapes)


@pytest.fixture(scope="module")
def embedded(fitted, shapes):
    """Embeddings of all images, and their classes."""
    images = read_folder(shapes)
    return fitted.embed(images), [images.class_names[label] for label in images.labels]


def test_it_learns_and_measures_on_what_others_hold_images_in(tiny, fitted, shapes):
    given = ImageFolder(shapes)
    expected = fitted.predict_proba(shapes)
    clf = KalmanCLIP(tiny, **QUICK).fit(given)
    np.testing.assert_array_equal(clf.predict_proba(given), expected)
    assert clf.classes_.tolist() == NAMES
    frame = pd.DataFrame({"image": [path for path, _ in given.samples], "label": [NAMES[t] for t in given.targets]})
    assert clf.score(frame[::4]) == 1.0
    again = KalmanCLIP(tiny, **QUICK).partial_fit(frame)
    np.testing.assert_array_equal(again.class_weights(), clf.class_weights())


def test_labels_count_in_their_own_names_wherever_images_come_from(fitted, shapes):
    images = read_folder(shapes)
    other = LabelledImages(images.sources, [2 - label for label in images.labels], images.class_names[::-1])
    assert fitted.score(other) == 1.0


def test_embeddings_stand_for_images(tiny, fitted, shapes, embedded, tmp_path):
    f, y = embedded
    assert f.shape == (15, tiny.width)
    np.testing.assert_allclose(np.linalg.norm(f, axis=1), 1.0, atol=1e-6)
    np.testing.assert_array_equal(KalmanCLIP(tiny).embed(shapes), f)  # before any fit
    clf = KalmanCLIP(tiny, **QUICK).fit(7.0 * f, y)  # of any length
    expected = fitted.predict_full(shapes, neighbors=2)
    found = clf.predict_full(torch.tensor(f), neighbors=2)
    for name in ("probabilities", "epistemic", "std", "ood_score"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-4)
    np.testing.assert_array_equal(found.neighbors.position[:, 0], np.arange(15))
    np.testing.assert_allclose(
        KalmanCLIP.load(clf.save(tmp_path / "a"), tiny).predict_proba(f), found.at_mean, atol=1e-6
    )
    np.testing.assert_allclose(fitted.predict_proba(f), expected.at_mean, atol=1e-5)  # learned from images


def test_crops_of_an_embedding_are_the_embedding(tiny, embedded):
    one, several = (KalmanCLIP(tiny, prior_std=0.15, options={"crops": n}).fit(*embedded) for n in (0, 3))
    np.testing.assert_allclose(several.class_weights(), one.class_weights(), atol=2e-3)


def test_low_rank_parameters_on_embeddings_learn_from_embeddings(tiny, shapes, embedded):
    f, y = embedded
    head = {"preset": "head", "epochs": 1, "options": {"batch_size": 5}}
    clf = KalmanCLIP(tiny, **head).fit(f, y)
    np.testing.assert_allclose(clf.predict_proba(shapes), clf.predict_proba(f), atol=1e-4)
    tuned = clf.embed(f)
    np.testing.assert_allclose(clf.embed(f, tuned=False), f, atol=1e-6)
    assert np.abs(tuned - f).max() > 1e-3
    with pytest.raises(ConfigError, match="inside the image tower need images"):
        KalmanCLIP(tiny, preset="paper", epochs=1).fit(f, y)


def test_a_wrong_width_or_a_single_grey_image_is_refused(tiny, embedded):
    f, y = embedded
    with pytest.raises(DataError, match=rf"have 7 numbers.*'tiny' have {tiny.width}"):
        KalmanCLIP(tiny, **QUICK).fit(f[:, :7], y)


def test_text_features_make_a_backbone(tiny, fitted, shapes, embedded, tmp_path):
    f, y = embedded
    T = 3.0 * fitted.method_.text_weights()
    backbone = precomputed(T.flip(0), NAMES[::-1], tiny.logit_scale)
    clf = KalmanCLIP(backbone, **QUICK).fit(f[:10], y[:10])
    assert clf.classes_.tolist() == NAMES[:2]
    clf.partial_fit(f[10:], y[10:])  # a class that was not there before
    assert clf.score(f, y) == 1.0
    whole = KalmanCLIP(backbone, **QUICK).fit(f, y)
    np.testing.assert_allclose(whole.predict_proba(f), fitted.predict_proba(shapes), atol=1e-4)
    again = KalmanCLIP.load(whole.save(tmp_path / "a"), backbone)
    np.testing.assert_allclose(again.predict_proba(f), whole.predict_proba(f), atol=1e-6)
    with pytest.raises(DataError, match="no text feature for 'a photo of a star"):
        clf.partial_fit(-f[:1], ["star"])
    with pytest.raises(ImageError, match="without an image tower"):
        whole.predict(shapes)


@pytest.mark.parametrize(
    ("T", "names", "wrong"),
    [
        (torch.eye(2), ["a"], "1 class names"),
        (torch.eye(2).int(), ["a", "b"], "floats"),
        (torch.zeros(2, 3), ["a", "b"], "zero"),
        (torch.eye(2), ["a", "a"], "twice"),
    ],
)
def test_text_features_that_do_not_fit_are_refused(T, names, wrong):
    with pytest.raises(DataError, match=wrong):
        precomputed(T, names)


def test_predictions_become_frames(fitted, shapes, noise):
    files = [*sorted(shapes.glob("*/0.png")), sorted(noise.iterdir())[0]]
    full = fitted.predict_full(files)
    frame = fitted.predict_frame(files, probabilities=True)
    assert list(frame.index) == [str(file) for file in files]
    assert list(frame["class"]) == list(full.answers)
    flagged = frame["is_ood"].to_numpy()
    assert 0 < flagged.sum() < len(files)
    np.testing.assert_array_equal(frame["probability"][~flagged], full.confidence[~flagged])
    assert frame["probability"][flagged].isna().all()  # one answer: no class, and so no probability of one
    assert [not names for names in replace(full, sets=[["circle"]] * len(files)).to_frame()["set"]] == flagged.tolist()
    assert "nan" not in full._repr_html_().lower()
    np.testing.assert_array_equal(frame[[f"p({name})" for name in NAMES]], full.probabilities)
    np.testing.assert_array_equal(frame["class"] == NONE_OF_THESE, frame["is_ood"])
    assert list(fitted.predict_full(files[:0]).to_frame().columns) == ["class", "probability", "epistemic", "aleatoric"]


def test_a_notebook_shows_the_first_rows_and_escapes_names(tiny, shapes):
    clf = KalmanCLIP(tiny).set_classes(["<b>bold</b>", "plain"])
    html = clf.predict_full(shapes, how="mean")._repr_html_()
    assert "15 images, 2 classes" in html
    assert "and 5 more" in html
    assert html.count("<tr") == 11
    assert "<b>bold" not in html
    assert "&lt;b&gt;bold" in html or "plain" in html
    assert "KalmanCLIP" in clf._repr_html_()


def test_names_that_are_not_loaded_yet_can_be_completed():
    assert set(kalmanclip.__all__) <= set(dir(kalmanclip))


def test_plots_of_a_prediction(fitted, shapes):
    images = read_folder(shapes)
    full = fitted.predict_full(images)
    names = [NAMES[label] for label in images.labels]
    for plot in (plots.plot_confusion, plots.plot_reliability, plots.plot_risk_coverage):
        assert plot(full, images.labels).axes
        with pytest.raises(DataError, match="one label per image"):
            plot(full, names[:-1])
    titles = [axes.get_title() for axes in plots.plot_predictions(full, images.sources, names).axes]
    assert sum("circle" in title for title in titles) == 5
    assert "100.0% of 15 images right" in plots.plot_confusion(full, names).axes[0].get_title()
    for wrong in ([3] * 15, [-1] * 15, [0.5] * 15):
        with pytest.raises(DataError, match=r"numbers 0\.\.2"):
            plots.plot_confusion(full, wrong)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_progress_is_shown_to_whoever_watches_and_waits(monkeypatch, clock):
    monkeypatch.delenv(progress.VARIABLE, raising=False)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(sys, "stderr", Terminal())
    bar = progress.Bar()
    for done in range(1, 5):  # over before anybody waits
        bar("reading images", done, 4)
    assert sys.stderr.getvalue() == ""
    bar("reading images", 1, 4)
    clock[0] += 2 * progress.PATIENCE
    bar("reading images", 2, 4)
    bar("reading images", 3, 4)  # too soon to draw again
    bar("reading images", 4, 4)
    lines = sys.stderr.getvalue().split("\r")[1:]
    assert [line.split()[-1] for line in lines] == ["2/4", "4/4"]
    assert lines[-1].endswith("\n")
    assert "[" + "#" * 15 + "." * 15 + "]" in lines[0]
    assert all(len(line.rstrip()) <= 80 for line in lines)


@pytest.mark.parametrize(("variable", "rank", "terminal", "shown"), [
    ("", "0", True, True), ("", "1", True, False), ("", "0", False, False), ("off", "0", True, False),
    ("on", "0", False, True),
])  # fmt: skip
def test_who_watches(monkeypatch, variable, rank, terminal, shown):
    monkeypatch.setenv(progress.VARIABLE, variable)
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr(sys, "stderr", Terminal() if terminal else io.StringIO())
    assert progress.watched() == shown


@pytest.mark.parametrize("name", ["fit", "partial_fit", "predict", "predict_full", "score", "embed"])
def test_the_estimator_reports_by_itself(name):
    default = inspect.signature(getattr(KalmanCLIP, name)).parameters["progress"].default
    assert default is progress.automatic

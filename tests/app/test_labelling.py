"""The tab that asks for labels, without a browser."""

import pytest

from kalmanclip.app import render
from kalmanclip.app.images import Gallery
from kalmanclip.app.service import AdapterService
from kalmanclip.data import read_images
from kalmanclip.errors import ConfigError, DataError
from kalmanclip.estimator import KalmanCLIP


@pytest.fixture
def files(pool):
    return read_images(pool)


@pytest.fixture
def page(adapter, tiny, learned, files):
    return AdapterService(KalmanCLIP.load(adapter, tiny), adapter, Gallery(learned), pool=files)


def test_it_asks_for_what_is_suggested_and_learns_at_once(page, files, adapter, tiny):
    before = (adapter / "adapter.json").read_bytes()
    clf = KalmanCLIP.load(adapter, tiny)
    found = clf.suggest(files, 6)
    asked = page.ask()
    question = asked.question
    assert (question.position, question.name) == (found.positions[0], f"pool/{files[found.positions[0]].name}")
    assert question.picture.startswith("data:image/jpeg;base64,")
    assert (len(asked.coming), asked.unlabelled) == (5, 6)
    assert asked.expected == pytest.approx(found.expected_accuracy, rel=1e-5)
    assert sorted(p for _, p in question.classes)[::-1] == [p for _, p in question.classes]

    lesson = page.label(question.position, "Circle")
    assert (lesson.class_name, lesson.pictures, lesson.new) == ("circle", 1, False)
    clf.partial_fit([files[question.position]], ["circle"])
    later = page.ask()
    assert later.unlabelled == 5
    assert later.question.position != question.position
    assert later.expected == pytest.approx(clf.suggest(files, 1).expected_accuracy, rel=1e-3)
    assert page.about().unsaved == 1
    assert (adapter / "adapter.json").read_bytes() == before
    page.go_back()
    assert page.ask().unlabelled == 6


def test_pictures_can_be_passed_over_until_none_is_left(page):
    seen = []
    while (question := page.ask().question) is not None:
        seen.append(question.position)
        page.pass_over(question.position)
    assert sorted(seen) == list(range(6))
    assert "nothing left" in render.labelling_html(page.ask())
    assert page.ask().unlabelled == 6


def test_what_makes_no_sense_is_refused(page, adapter, tiny):
    first = page.ask().question.position
    page.label(first, "square")
    with pytest.raises(DataError, match="Somebody else"):
        page.label(first, "square")
    for position in (-1, 6):
        with pytest.raises(DataError, match="not among those"):
            page.label(position, "square")
        with pytest.raises(DataError, match="not among those"):
            page.pass_over(position)
    without = AdapterService(KalmanCLIP.load(adapter, tiny), adapter)
    assert not without.asks
    with pytest.raises(ConfigError, match="--pool"):
        without.ask()


def test_a_click_says_which_picture_it_is_about(page):
    """Somebody else may have labelled meanwhile: the answer is not about whatever picture is next."""
    tab = pytest.importorskip("kalmanclip.app.page", reason="gradio is not installed")
    question = page.ask().question
    first, rest = tab._answers(question)
    assert [value for _, value in first[:3]] == [f"{question.position} {name}" for name, _ in question.classes]
    assert first[-1][1] == str(question.position)
    assert rest == []
    assert tab._answers(None) == ([], [])
    assert (tab._number("17"), tab._number("-3"), tab._number("x"), tab._number("9" * 20)) == (17, -1, -1, -1)

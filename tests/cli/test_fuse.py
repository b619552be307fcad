"""``kalmanclip fuse`` as people use it."""

import pytest
from tests.cli import invoke
from tests.conftest import shape_picture


def call(*words, code=0):
    return " ".join(invoke.call(*words, code=code).output.split())


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Photos of two sites, which share one class, and an adapter of each."""
    root = tmp_path_factory.mktemp("sites")
    for name, shapes, begin in (("a", ("circle", "square"), 0), ("b", ("square", "triangle"), 10)):
        for shape in shapes:
            folder = root / name / shape
            folder.mkdir(parents=True)
            for i in range(3):
                shape_picture(shape, begin + i).save(folder / f"{i}.png")
        call("fit", root / name, "-o", root / f"{name}.adapter", "--crops", 2)
    return root


def test_the_result_is_an_adapter_like_any_other(place):
    out = place / "both.adapter"
    text = call("fuse", place / "a.adapter", place / "b.adapter", "-o", out)
    assert "3 classes: circle, square, triangle" in text
    assert "circle" in call("info", out)
    assert call("predict", out, place / "a" / "circle" / "0.png")
    assert "accuracy" in call("evaluate", out, place / "a").lower()
    refused = call("fuse", place / "a.adapter", place / "b.adapter", "-o", out, code=5)
    assert "--force" in refused
    call("fuse", place / "b.adapter", place / "a.adapter", "-o", out, "--force")
    assert "square, triangle, circle" in call("info", out)


def test_what_is_refused(place):
    a, b, new = place / "a.adapter", place / "b.adapter", place / "new.adapter"
    assert "two or more" in call("fuse", a, "-o", new, code=5)
    assert "twice" in call("fuse", a, b, a, "-o", new, code=5)
    assert "another name" in call("fuse", a, b, "-o", a, code=5)
    assert "no adapter" in call("fuse", a, place / "c.adapter", "-o", new, code=5).lower()
    other = place / "other.adapter"
    call("fit", place / "a", "-o", other, "--crops", 2, "--template", "{}")
    assert "templates" in call("fuse", a, other, "-o", new, code=2)
    assert not new.exists()

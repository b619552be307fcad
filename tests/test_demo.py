from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from kalmanclip.cli import app
from kalmanclip.plots import Example, draw_confusion, draw_predictions

runner = CliRunner()


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    from kalmanclip.cli.demo import run

    out = tmp_path_factory.mktemp("demo")
    return out, run(out, tests=6)


def test_it_beats_zero_shot_clearly(result):
    _, (before, after) = result
    assert after > before + 0.4
    assert after > 0.7


def test_it_leaves_an_adapter_a_picture_and_test_images(result):
    out, _ = result
    assert (out / "digits.adapter" / "adapter.json").is_file()
    assert _greys(out / "predictions.png") > 100
    assert sorted(p.name for p in (out / "test").iterdir()) == list("0123456789")


def test_the_commands_it_suggests_work_on_what_it_leaves(result):
    out, (_, after) = result
    done = runner.invoke(app, ["evaluate", str(out / "digits.adapter"), str(out / "test")])
    assert done.exit_code == 0, done.output
    assert f"{100 * after:.1f} %" in done.stdout


def test_training_and_test_images_are_different_and_drawn_with_the_seed():
    from kalmanclip.cli.demo import digits

    train, test = digits(seed=3, tests=5)
    assert train.counts() == [16] * 10
    assert test.counts() == [5] * 10
    assert not {id(s) for s in train.sources} & {id(s) for s in test.sources}
    again, other = digits(seed=3, tests=5)[0], digits(seed=4, tests=5)[0]
    assert all(np.array_equal(a, b) for a, b in zip(train.sources, again.sources, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(train.sources, other.sources, strict=True))


def test_it_does_not_mix_with_other_files(tmp_path):
    (tmp_path / "thesis.tex").touch()
    done = runner.invoke(app, ["demo", "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert "--out" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("classes", [2, 12, 101])
def test_confusion_pictures_are_drawn_for_few_and_many_classes(tmp_path, classes):
    matrix = np.diag(np.full(classes, 5)) + np.eye(classes, k=1, dtype=int)
    picture = tmp_path / "confusion.png"
    draw_confusion(picture, matrix, [f"class number {i}" for i in range(classes)])
    assert _greys(picture) > 20
    width, height = Image.open(picture).size
    assert 300 < width < 5000
    assert 300 < height < 5000


def test_predictions_of_any_number_fill_the_grid(tmp_path):
    image = np.arange(64, dtype=np.uint8).reshape(8, 8)
    draw_predictions(tmp_path / "p.png", [Example(image, "cat", "dog", 0.5, 0.0)] * 7)
    assert _greys(tmp_path / "p.png") > 10


def _greys(picture: Path) -> int:
    """How many levels of grey a picture has: one if nothing was drawn."""
    return sum(count > 0 for count in Image.open(picture).convert("L").histogram())

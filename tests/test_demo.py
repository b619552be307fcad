from html.parser import HTMLParser
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
    assert after > before + 0.3
    assert after > 0.6


def test_it_leaves_an_adapter_and_test_images(result):
    out, _ = result
    assert (out / "eurosat.adapter" / "adapter.json").is_file()
    for name, count in (("train", 16), ("test", 6)):
        assert [len(list(folder.iterdir())) for folder in (out / name).iterdir()] == [count] * 10


def test_its_page_needs_nothing_else(result):
    """All pictures are in it, every element is closed, and it says what the commands say."""
    out, (before, after) = result
    page = (out / "index.html").read_text(encoding="utf-8")
    assert f"{100 * before:.1f} %" in page
    assert f"{100 * after:.1f} %" in page
    assert "This looks like nothing I know" in page.partition("Something else")[2]
    opened, sources = [], []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attributes):
            given = dict(attributes)
            sources.extend(given[name] for name in ("src", "href") if name in given)
            if tag not in ("meta", "img"):
                opened.append(tag)

        def handle_endtag(self, tag):
            assert opened.pop() == tag

    Reader().feed(page)
    assert not opened
    assert len(sources) >= 4
    assert all(source.startswith("data:image/") for source in sources)
    assert "url(" not in page.partition("</style>")[0]


def test_it_opens_the_page_only_if_wanted(monkeypatch, tmp_path):
    opened = []
    monkeypatch.setattr("kalmanclip.cli.demo.run", lambda *_: None)
    monkeypatch.setattr("typer.launch", opened.append)
    for words in ([], ["--no-open"], ["--open"]):
        assert runner.invoke(app, ["demo", "--out", str(tmp_path), *words]).exit_code == 0
    assert opened == [str(tmp_path / "index.html")]


def test_the_commands_it_suggests_work_on_what_it_leaves(result):
    out, (_, after) = result
    done = runner.invoke(app, ["evaluate", str(out / "eurosat.adapter"), str(out / "test")])
    assert done.exit_code == 0, done.output
    assert f"{100 * after:.1f} %" in done.stdout


def test_training_and_test_images_are_different():
    from kalmanclip.cli.demo import sample

    train, test = sample()
    assert (train.counts(), test.counts()) == ([16] * 10, [30] * 10)
    contents = [{Path(source).read_bytes() for source in images.sources} for images in (train, test)]
    assert [len(each) for each in contents] == [160, 300]
    assert not contents[0] & contents[1]
    assert sum(map(len, contents[0] | contents[1])) < 2 << 20


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

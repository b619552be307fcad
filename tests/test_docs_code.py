"""That the code in the docs runs as it stands there."""

import re

import pytest
import torch
from benchmarks.table import ROOT
from PIL import Image


def blocks(name):
    """The Python code of a page, block by block."""
    return re.findall(
        r"^```python\n(.*?)^```", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )


def test_the_page_of_the_filter_runs_top_to_bottom(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in blocks("docs/filter.md"):
        exec(block, names)
    flowers, digits = re.findall(r"(?:once:|other images) ([\d.]+)", capsys.readouterr().out)
    assert float(flowers) > 0.8
    assert float(digits) > 0.85
    assert names["belief"].mean.isfinite().all()


def test_the_classifier_of_the_page_is_the_example():
    code = (ROOT / "examples/classifier.py").read_text(encoding="utf-8").split('"""\n', 1)[1].strip()
    assert code + "\n" in blocks("docs/filter.md")
    assert sum(bool(line) for line in code.splitlines()) <= 16


def test_the_filter_in_the_readme_runs(capsys):
    (block,) = [block for block in blocks("README.md") if "make_belief" in block]
    names = {"module": torch.nn.Linear(2, 1), "batches": [(torch.randn(5, 2), torch.ones(5, 1)) for _ in range(3)]}
    before = names["module"].weight.clone()
    exec(block, names)
    assert not torch.equal(names["module"].weight, before)


def test_fusing_beliefs_runs():
    (block,) = [block for block in blocks("docs/online.md") if "fuse(sites" in block]
    names = {}
    exec(block, names)
    both, first = (belief.variance(torch.eye(3)) for belief in (names["both"], names["sites"][0]))
    assert (both < first).all()


@pytest.fixture
def photos(monkeypatch, tmp_path):
    """A folder with all that the examples name: two classes, told apart by their colours, and files without one."""
    monkeypatch.chdir(tmp_path)
    colours = {"beagle": (200, 60, 40), "pug": (40, 60, 200)}
    for folder in ("photos", "test", "more_photos", "photos_from_today"):
        for name, colour in colours.items():
            (tmp_path / folder / name).mkdir(parents=True)
            for i in range(2):
                picture = Image.new("RGB", (64, 64), tuple(c + 9 * i for c in colour))
                picture.save(tmp_path / folder / name / f"{folder}{i}.png")
    (tmp_path / "new").mkdir()
    for file in ("new.jpg", "new/1.jpg", "new/2.jpg"):
        Image.new("RGB", (64, 64), colours["pug"]).save(tmp_path / file)


@pytest.mark.parametrize("name", ["README.md", "docs/quickstart.md", "docs/index.md", "docs/notebook.md"])
def test_the_first_examples_run(name, photos, capsys):
    names = {}
    for block in blocks(name):
        if "make_belief" not in block:
            exec(block.replace("ViT-B-16:openai", "tiny"), names)
    assert "KalmanCLIP" in names

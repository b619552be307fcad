"""The notebooks of examples/ run top to bottom, and what they show can be shown."""

import ast
import json

import matplotlib
import pytest
from benchmarks.table import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def run(path):
    """Run the code cells of a notebook as Jupyter does; return its names and what the last lines of cells show."""
    names, shown = {"__name__": "__main__"}, []
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]), f"{path.name}, cell {number}")
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"{path.name}, cell {number}", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), f"{path.name}, cell {number}", "eval"), names)
            as_html = getattr(value, "_repr_html_", None)
            shown.append(repr(value) if as_html is None else as_html())
    return names, shown


@pytest.fixture(scope="module")
def ran():
    found = {}

    def ran(name):
        if name not in found:
            with matplotlib.rc_context({"backend": "Agg"}):
                found[name] = run(ROOT / "examples" / name)
        return found[name]

    return ran


def test_they_are_kept_without_outputs():
    """So that changes can be read, and nothing in them is old."""
    assert len(NOTEBOOKS) == 3
    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        assert notebook["nbformat"] == 4
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_own_photos(ran):
    names, shown = ran("own_photos.ipynb")
    assert names["after"] > names["before"] + 0.1
    assert any("<table" in text for text in shown)  # the prediction
    assert names["clf"].training_images_ is not None
    assert len(names["clf"].training_images_[0]) == 2 * 10 + len(names["later"])


def test_your_own_module(ran):
    names, _ = ran("your_own_module.ipynb")
    assert names["error"] < 0.2
    assert names["inside"] > 2 * names["outside"]


def test_active_learning(ran):
    names, _ = ran("active_learning.ipynb")
    assert [labels for labels, _ in names["course"]] == [10, 15, 20, 25]
    assert len(names["left"]) == 40 - 15
    assert names["course"][-1][1] > names["course"][0][1]

"""Errors in records do not say where things lie."""

import sys
from pathlib import Path

import pytest

from kalmanclip.experiments.places import without_places
from kalmanclip.experiments.sources import ShiftSource, Source


@pytest.fixture
def source(tmp_path):
    for name in ("my photos/train", "my photos/test", "drawn"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "list.csv").touch()
    shifts = (ShiftSource(f"x={tmp_path}/drawn", "x", ""), ShiftSource(f"{tmp_path}/list.csv", "list", ""))
    pair = f"pets={tmp_path}/my photos/train:{tmp_path}/my photos/test"
    return Source(pair, "pets", None, ("{}",), "", shifts)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("cannot read {}/my photos/train/cat/0.png: bad", "cannot read cat/0.png: bad"),
        ("'{}/drawn/cat/0.png'", "'cat/0.png'"),
        ("{}/images/0.png is missing", "images/0.png is missing"),
        ("/home/somebody/elsewhere/model.pt", "elsewhere/model.pt"),
        (f'File "{Path(sys.prefix) / "lib" / "x" / "y.py"}", line 3', 'File "lib/x/y.py", line 3'),
        ("see https://example.org/a/b/c or a/b/c, 3/4", "see https://example.org/a/b/c or a/b/c, 3/4"),
    ],
)
def test_places_are_left_out(source, tmp_path, text, left):
    found = without_places(text.replace("{}", str(tmp_path)), source)
    assert found == left
    assert str(tmp_path) not in found

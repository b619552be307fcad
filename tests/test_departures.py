"""The measurement behind the preset `paper`: what it takes back, how it compares, what it measures again."""

import json
import math
from pathlib import Path

import pytest
from benchmarks import departures
from benchmarks.departures import ALL, configurations, difference, digest, main, markdown

from kalmanclip.config import to_dict
from kalmanclip.methods import preset


def test_every_departure_is_taken_back():
    rows = configurations()
    letter, paper = preset("paper-literal"), preset("paper")
    assert rows["these three (the preset paper)"] == paper
    assert rows["paper-literal"] == letter
    everything = to_dict(rows[ALL])
    apart = {key for key, value in to_dict(letter).items() if everything[key] != value}
    assert apart == {"observation", "noise", "belief_options", "filter", "prior_std"}
    alone = {
        "similarities as observation": "observation",
        "R by position": "noise",
        "covariance update": "belief_options",
        "lambda on mean and R only": "filter",
    }
    for name, key in alone.items():
        assert to_dict(rows[name]) == everything | {key: to_dict(letter)[key]}
    assert rows[departures.PROMPTS] == rows[ALL]


def test_differences_are_paired():
    def row(name, data, seed, accuracy):
        return {"configuration": name, "data": data, "seed": seed, "accuracy": accuracy}

    rows = [row(ALL, "a", 1, 50.0), row(ALL, "a", 2, 60.0), row(ALL, "b", 1, 10.0)]
    rows += [row("other", "a", 2, 63.0), row("other", "a", 1, 51.0)]
    mean, error, pairs = difference(rows, "other", "accuracy")
    assert (mean, error, pairs) == (2.0, pytest.approx(1.0), 2)
    mean, error, pairs = difference(rows[:4], "other", "accuracy")
    assert (mean, math.isnan(error), pairs) == (3.0, True, 1)
    assert difference(rows[:3], "other", "accuracy") is None
    broken = {"configuration": "other", "data": "b", "seed": 1, "broke down": "why"}
    assert difference([*rows, broken], "other", "accuracy") is None


def test_the_docs_show_what_is_in_the_file():
    """Every line of the table, drawn from the committed rows, which were measured with the options of today."""
    root = Path(__file__).parents[1]
    rows = json.loads((root / "results" / "departures.json").read_text())
    text = (root / "docs" / "method.md").read_text()
    assert [line for line in markdown(rows) if line not in text] == []
    now = {name: digest(config) for name, config in configurations().items()}
    assert {row["configuration"] for row in rows if row["options"] != now[row["configuration"]]} == set()


def test_rows_are_measured_once_and_again_with_other_options(shapes, tmp_path, monkeypatch, capsys):
    """Two rows on a folder without shot lists; a second call measures what the first has not."""
    folder = tmp_path / "shapes"
    folder.mkdir()
    (folder / "train").symlink_to(shapes)
    monkeypatch.setattr("benchmarks.development.MOST_SHOTS", 2)
    measured = []

    def measure(backbone, config, place, shots, seed, printed):
        measured.append((config, place.name, shots, seed, printed))
        if config is not None:
            return {"accuracy": 1.0, "nll": 1.0}
        return really(backbone, config, place, shots, seed, printed)

    really = departures.measure
    monkeypatch.setattr(departures, "measure", measure)
    file = tmp_path / "rows.json"
    call = [str(folder), "--shots", "2", "--json", str(file), "--only", "zero-shot", "prompts of the paper"]
    main([*call, "--seeds", "1"])
    (zero, printed) = json.loads(file.read_text())
    assert (zero["configuration"], zero["seed"], zero["images"]) == ("zero-shot", 1, 9)  # 15 less 2 of each class
    assert printed["options"] != zero["options"]
    main([*call, "--seeds", "1", "2"])
    assert [m[3:] for m in measured] == [(1, False), (1, True), (2, False), (2, True)]
    assert len(json.loads(file.read_text())) == 4
    monkeypatch.setattr(departures, "digest", lambda config: "other options")
    main([*call, "--seeds", "1"])
    assert len(measured) == 6
    assert {row["options"] for row in json.loads(file.read_text())} == {"other options"}
    capsys.readouterr()

"""Figures of the paper's tables in results/paper, for the docs. `kalmanclip paper` makes them (see docs/paper.md)."""

from __future__ import annotations

import csv
from collections.abc import Mapping

from benchmarks import table as files
from benchmarks.table import span
from kalmanclip.errors import DataError


def cell(name: str, *words: str) -> str:
    """Our mean in one cell of results/paper/NAME.csv, found by its words: 'cell belief dense EuroSAT'."""
    return f"{_mean(name, *words):.1f}"


def gain(name: str, row: str, other: str, *columns: str) -> str:
    """By how many points one row is above another: the mean over columns; with one column, there."""
    differences = [_mean(name, row, column) - _mean(name, other, column) for column in columns]
    return span([sum(differences) / len(differences)])


def findings(name: str) -> str:
    """What results/paper/NAME.md finds, as a list."""
    lines = (files.RESULTS / "paper" / f"{name}.md").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if line.startswith("- "))


def cells(name: str) -> list[Mapping[str, str]]:
    """All cells of results/paper/NAME.csv."""
    with (files.RESULTS / "paper" / f"{name}.csv").open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def _mean(name: str, *words: str) -> float:
    """Of the one cell with a number whose first columns (data set, method, shots, column) hold these words."""
    measured, wanted = [row for row in cells(name) if row["mean"]], set(words)
    found = [row for row in measured if wanted <= set(list(row.values())[: list(row).index("mean")])]
    if len(found) != 1:
        raise DataError(f"results/paper/{name}.csv has {len(found)} cells for {', '.join(words)}; give words for one.")
    return float(found[0]["mean"])

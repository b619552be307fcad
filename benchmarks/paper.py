"""Figures of the paper's tables from results/paper.jsonl, for the docs; `kalmanclip paper` makes it (docs/paper.md)."""

from __future__ import annotations

from functools import cache

from benchmarks import table as files
from benchmarks.table import span
from kalmanclip.errors import DataError
from kalmanclip.experiments.figure import Picture
from kalmanclip.experiments.paper.fill import Sheet, fill
from kalmanclip.experiments.paper.studies import STUDIES
from kalmanclip.experiments.render import title_of, to_markdown
from kalmanclip.experiments.store import read_results


def table(name: str) -> str:
    """A study with the paper's numbers beside ours; data sets that were not run are left out."""
    return to_markdown(sheet(name, whole=False).table)


def findings(name: str) -> str:
    """What a study finds, as a list."""
    return "\n".join(f"- {finding}" for finding in sheet(name).findings)


def cell(name: str, *words: str) -> str:
    """Our mean in one cell of a study, found by its titles: 'cell belief dense EuroSAT'."""
    return f"{_mean(name, *words):.1f}"


def gain(name: str, row: str, other: str, *columns: str) -> str:
    """By how many points one row is above another: the mean over columns; with one column, there."""
    differences = [_mean(name, row, column) - _mean(name, other, column) for column in columns]
    return span([sum(differences) / len(differences)])


def pictures() -> dict[str, Picture]:
    """All pictures, by the names of their files in docs/assets."""
    sheets = [sheet(name) for name in STUDIES]
    return {f"paper-{stem}": p for found in sheets for stem, p in zip(found.stems(), found.pictures, strict=True)}


@cache
def sheet(name: str, whole: bool = True) -> Sheet:
    """A study, filled from the runs that say that they belong to it; ``whole``: with all data sets of the paper."""
    study = STUDIES[name]
    records, _ = read_results(files.RESULTS / "paper.jsonl")
    shown = [r | {"label": r["studies"][name]} for r in records if name in r.get("studies", {})]
    run = {record["run"]["data"]: list(record["run"].get("shifts", {})) for record in shown}
    own = {data: list(study.shifts) for data in study.sets if whole or data in run}
    return fill(study, own | run, shown)


def _mean(name: str, *words: str) -> float:
    """Of the one cell with a number that has these titles (data set, method, shots, column)."""
    numbers, wanted = sheet(name).table, set(words)
    found = [
        made.mean
        for (row, column), made in numbers.cells.items()
        if made.mean is not None and wanted <= {*numbers.rows[row], title_of(numbers.columns[column])}
    ]
    if len(found) != 1:
        raise DataError(f"The study {name} has {len(found)} cells for {', '.join(words)}; give words for one.")
    return found[0]

"""The rows that a study measured, as a file in results/, and the Markdown tables that are drawn from it.

A study measures rows, one dictionary for each seed, data set and method. With ``--json results/NAME.json`` they are
written, and `benchmarks.figures` draws the tables of the docs from that file; the command prints the same tables.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kalmanclip.errors import DataError
from kalmanclip.experiments.provenance import code_version
from kalmanclip.files import read_json, write_atomic, write_json_atomic

NOT_YET: dict[str, str] = {}
"""Studies that have yet to write their files, with the commands; the docs keep their figures until then."""

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
SETS = {"eurosat": "EuroSAT", "pets": "OxfordPets", "dtd37": "DTD", "pacs": "PACS", "cifar100": "CIFAR-100"}

Row = dict[str, Any]


class NotYet(DataError):
    """A study whose file is still to be made."""


def add_file(parser: argparse.ArgumentParser) -> None:
    """Adds the option ``--json``."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here, such as results/NAME.json")


def write_rows(options: argparse.Namespace, rows: Iterable[Row]) -> None:
    """Writes the rows to ``options.json``, if it was given: sorted, one in a line, with the options and the code."""
    if options.json is None:
        return
    given = {name: _named(value) for name, value in vars(options).items() if name not in ("json", "cache", "results")}
    lines = sorted(json.dumps(_rounded(row), sort_keys=True, allow_nan=False) for row in rows)
    head = json.dumps({"code": code_version()["source"][:16], "options": given}, sort_keys=True)
    write_atomic(options.json, head[:-1] + ', "rows": [\n' + ",\n".join(lines) + "\n]}\n", DataError)


def rows_of(path: Path | None) -> list[Row]:
    """The rows that a study has measured already, for one that goes on where it was interrupted."""
    rows: list[Row] = read_json(path, DataError)["rows"] if path is not None and path.exists() else []
    return rows


def resumed(
    options: argparse.Namespace,
    cells: Iterable[tuple[Any, ...]],
    measured: Callable[..., list[Row]],
    choosing: Collection[str] = (),
) -> list[Row]:
    """The rows of all cells; those that an interrupted run of the same code and options has measured are read.

    Args:
        options: of the command, with the file in ``json``.
        cells: what names one, which no two share.
        measured: the rows of a cell, from what names it.
        choosing: the options that say no more than which cells there are: they may have changed.
    """
    if options.json is None:
        return [row for cell in cells for row in measured(*cell)]
    path = options.json.with_suffix(".partial")
    given = {name: str(value) for name, value in vars(options).items() if name not in ("json", *choosing)}
    state: dict[str, Any] = {"code": code_version()["source"], "options": given, "cells": {}}
    if path.exists():
        before = read_json(path, DataError)
        state = before if {**before, "cells": {}} == state else state
    names = []
    for cell in cells:
        name = " ".join(map(str, cell))
        names.append(name)
        if name not in state["cells"]:
            state["cells"][name] = measured(*cell)
            write_json_atomic(path, state, DataError)
    rows = [row for name in names for row in state["cells"][name]]
    write_rows(options, rows)
    path.unlink()
    return rows


def read_rows(name: str) -> list[Row]:
    """The rows of ``results/NAME.json``.

    Raises:
        NotYet: there is no such file, and it is known (`NOT_YET`).
    """
    if name in NOT_YET and not (RESULTS / f"{name}.json").exists():
        raise NotYet(f"results/{name}.json is to be made: {NOT_YET[name]}")
    rows: list[Row] = read_json(RESULTS / f"{name}.json", DataError)["rows"]
    return rows


def only(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """Those that have all these values."""
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def values(rows: Iterable[Row], name: str) -> list[Any]:
    """The different values of a field, as they come; data sets in the order of `SETS`."""
    found = list(dict.fromkeys(row[name] for row in rows if name in row))
    return sorted(found, key=lambda value: list(SETS).index(value) if value in SETS else len(SETS))


def mean(rows: Iterable[Row], name: str) -> float:
    """Of one field."""
    return statistics.fmean(row[name] for row in rows)


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table whose first ``left`` columns are words and whose others are numbers."""
    rule = ["---"] * left + ["---:"] * (len(heads) - left)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rule, *lines))


def shots_head(shots: int) -> str:
    """'1 shot', '2 shots'."""
    return f"{shots} shot" + ("" if shots == 1 else "s")


def span(numbers: Iterable[float], digits: int = 1, sign: bool = False) -> str:
    """The least and the largest, '1.3 to 3.6'; with a sign, '−0.3 to +0.1'."""
    found = [round(number, digits) + 0.0 for number in numbers]  # never "-0.0"
    low, high = (f"{number:{'+' if sign else ''}.{digits}f}".replace("-", "−") for number in (min(found), max(found)))
    return low if low == high else f"{low} to {high}"


def _named(value: Any) -> Any:
    """An option without the place where files lie, which is nobody's business."""
    if isinstance(value, str) and value.startswith("local-dir:"):
        value = Path(value.removeprefix("local-dir:"))
    if isinstance(value, Path):
        return value.name
    return [_named(part) for part in value] if isinstance(value, list | tuple) else value


def _rounded(row: Mapping[str, Any]) -> Row:
    """Six digits are more than any table shows."""

    def short(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.6g}")
        return [short(part) for part in value] if isinstance(value, list | tuple) else value

    return {name: short(value) for name, value in row.items()}

"""What a comparison leaves for people and programs: table.csv, table.md, results.json, figure.png, figure.svg."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kalmanclip.errors import DataError
from kalmanclip.experiments.figure import draw_figure
from kalmanclip.experiments.table import Grid, to_csv, to_markdown
from kalmanclip.files import write_atomic, write_json_atomic

LEFT_OUT = ("task", "environment")
"""Parts of a record that results.json leaves to the run's own file: they are long, and the same again and again."""


def write_report(folder: Path, records: Sequence[dict[str, Any]]) -> Grid:
    """Writes all files of the report into ``folder`` and returns the table."""
    grid = Grid(records)
    short = [{name: value for name, value in record.items() if name not in LEFT_OUT} for record in records]
    write_json_atomic(folder / "results.json", {"runs": short}, DataError)
    write_atomic(folder / "table.csv", to_csv(grid), DataError)
    write_atomic(folder / "table.md", to_markdown(grid, records[0]["run"]["model"]), DataError)
    draw_figure([folder / "figure.png", folder / "figure.svg"], grid)
    return grid

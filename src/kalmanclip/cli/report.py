"""What ``kalmanclip compare`` says at the end: its tables, where ours is behind, and what failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich.table
from rich.text import Text

from kalmanclip.cli.console import console, listing, note, say

if TYPE_CHECKING:
    from kalmanclip.experiments import Grid, Table
    from kalmanclip.experiments.table import Column


def print_report(grids: Mapping[str, Grid], records: Sequence[dict[str, Any]], folder: Path) -> bool:
    """Prints it.

    Args:
        grids: what `write_report` returned.
        records: of all runs.
        folder: where the files are.

    Returns:
        Whether every run is done.
    """
    from kalmanclip.experiments import make_tables

    for model, grid in grids.items():
        for table in make_tables(grid):
            say(f"{table.title}, {model}: mean ± standard deviation over seeds", style="bold")
            _print(table)
            if table.remark():
                say(table.remark())
            say()
    figures = "figure.png, figure.svg" if len(grids) == 1 else "figures"
    note(f"Also in {folder}: table.csv, table.md, results.json, {figures}")
    if len({record["code"]["source"] for record in records}) > 1:
        note("These results were made by different versions of the code. For a clean table choose a new folder.")
    return not _print_failures(records)


def _print(table: Table) -> None:
    whole, screen = _listing(table, table.columns), console()
    if screen.measure(whole, options=screen.options.update(max_width=10_000)).maximum <= screen.width:
        say(whole)
        return
    for name in dict.fromkeys(column.heads[0] for column in table.columns):  # too wide: one below the other
        say(_listing(table, [column for column in table.columns if column.heads[0] == name]))


def _listing(table: Table, columns: Sequence[Column]) -> rich.table.Table:
    heads = ["\n".join(column.heads) for column in columns]
    shown = listing("method", *heads, right=heads)
    best = {column: table.best(column) for column in columns}
    for row in table.rows:
        texts = {column: table.text(row, column) for column in columns}
        cells = [Text(text, style="bold" if row in best[column] else "") for column, text in texts.items()]
        shown.add_row(Text(row), *cells)
    return shown


def _print_failures(records: Sequence[dict[str, Any]]) -> bool:
    failed = [record for record in records if record["status"] == "failed"]
    if failed:
        from kalmanclip.experiments.cells import label_of

        table = listing("failed", "data", "shots", "seed", "reason", right=("shots", "seed"))
        for record in failed:
            run = record["run"]
            reason = " ".join(record["reason"].split())
            table.add_row(Text(label_of(record)), Text(run["data"]), str(run["shots"]), str(run["seed"]), Text(reason))
        say(table)
        note(f"{len(failed)} of {len(records)} runs failed; --retry-failed tries them again.")
    return bool(failed)

"""Tables of results in a terminal: those of a comparison, and those of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich.table
from rich.text import Text

from kalmanclip.cli.console import console, listing, note, say

if TYPE_CHECKING:
    import pandas as pd

    from kalmanclip.experiments.paper.fill import Sheet
    from kalmanclip.experiments.render import Table


def print_report(frame: pd.DataFrame, folder: Path) -> bool:
    """Print the tables of a comparison, where ours is behind, and what failed.

    Args:
        frame: what `write_report` returned.
        folder: where the files are.

    Returns:
        Whether every run is done.
    """
    from kalmanclip.experiments.report import make_tables, remark

    for model, part in frame.groupby("model", sort=False):
        for table in make_tables(part):
            say(f"{table.title}, {model}: mean ± standard deviation over seeds", style="bold")
            print_table(table)
            if said := remark(part, table):
                say(said)
            say()
    figures = "figure.png, figure.svg" if frame["model"].nunique() == 1 else "figures"
    note(f"Also in {folder}: table.csv, table.md, results.jsonl, {figures}")
    runs = frame[frame["shift"] == ""]
    if runs["code"].nunique() > 1:
        note("These results were made by different versions of the code. For a clean table choose a new folder.")
    failed = runs[runs["status"] == "failed"]
    if len(failed):
        shown = listing("failed", "data", "shots", "seed", "reason", right=("shots", "seed"))
        for run in failed.itertuples():
            shown.add_row(Text(run.row), Text(run.data), str(run.shots), str(run.seed), Text(_one_line(run.reason)))
        say(shown)
        note(f"{len(failed)} of {len(runs)} runs failed; --retry-failed tries them again.")
    return not len(failed)


def print_sheet(sheet: Sheet) -> None:
    """Print a table of the paper: numbers (ours; the paper's in brackets), findings and what is missing."""
    say(sheet.study.title, style="bold")
    print_table(sheet.table)
    for finding in sheet.findings:
        say(f"- {finding}")
    for reason in sheet.reasons():
        say(f"- Missing: {_one_line(reason)}")
    say(f"{sheet.progress()}.")
    say()


def print_table(table: Table) -> None:
    """Print a table; one that is too wide for the screen goes on below, the columns of a data set together."""
    columns, screen = range(len(table.columns)), console()
    whole = _listing(table, columns)
    if screen.measure(whole, options=screen.options.update(max_width=10_000)).maximum <= screen.width:
        say(whole)
        return
    for name in dict.fromkeys(heads[0] for heads in table.columns):
        say(_listing(table, [column for column in columns if table.columns[column][0] == name]))


def _listing(table: Table, columns: Sequence[int]) -> rich.table.Table:
    heads = ["\n".join(table.columns[column]) for column in columns]
    shown = listing(*table.row_heads, *heads, right=heads)
    best = {column: table.best(column) for column in columns}
    for row, titles in enumerate(table.rows):
        cells: list[Any] = [
            Text(table.text(row, column), style="bold" if row in best[column] else "") for column in columns
        ]
        shown.add_row(*map(Text, titles), *cells)
    return shown


def _one_line(text: str) -> str:
    return " ".join(text.split())

"""A table of the paper in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from kalmanclip.cli.console import listing, say

if TYPE_CHECKING:
    from kalmanclip.experiments.paper.sheet import Sheet


def print_sheet(sheet: Sheet) -> None:
    """Prints title, numbers (ours; the paper's in brackets), findings and what is missing."""
    from kalmanclip.experiments.paper.shown import mean_of, number, printed, progress, reasons

    say(sheet.title, style="bold")
    table = listing(*sheet.row_heads, *sheet.columns, right=sheet.columns)
    best = [sheet.best(column) for column in range(len(sheet.columns))]
    for row, titles in enumerate(sheet.rows):
        cells = []
        for column in range(len(sheet.columns)):
            entry = sheet.entry(row, column)
            std = "" if entry.std is None or entry.mean is None else f" ± {number(entry.std)}"
            theirs = f" ({printed(entry.printed)})" if entry.printed is not None else ""
            cells.append(Text(mean_of(entry) + std + theirs, style="bold" if row in best[column] else ""))
        table.add_row(*map(Text, titles), *cells)
    say(table)
    for finding in sheet.findings:
        say(f"- {finding}")
    for reason, names in reasons(sheet).items():
        say(f"- Missing: {', '.join(names)}: {reason}" if names else f"- Missing: {reason}")
    say(f"{progress(sheet)}.")
    say()

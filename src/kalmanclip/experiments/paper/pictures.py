"""The pictures of the studies that have some, from their filled sheets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kalmanclip.experiments.aggregate import Cell
from kalmanclip.experiments.figure import Picture, draw_bars, draw_lines
from kalmanclip.experiments.paper.printed import READINGS
from kalmanclip.experiments.paper.study import ZERO_SHOT

if TYPE_CHECKING:
    from kalmanclip.experiments.paper.fill import Sheet


def figure_2(sheet: Sheet) -> list[Picture]:
    """Draw a panel per data set: accuracy against shots. What the paper has and we have not is shown, too."""
    panels: dict[str, dict[str, dict[float, Cell]]] = {}
    for column, (data,) in enumerate(sheet.table.columns):
        for row, line in enumerate(sheet.form.rows):
            cell, label = sheet.table.cell(row, column), line.fixes["label"]
            if cell.mean is not None or cell.printed is not None:
                # what learns nothing is the same at every number of shots
                shots = sheet.study.shots if label == ZERO_SHOT else (line.fixes["shots"],)
                panels.setdefault(data, {}).setdefault(label, {}).update(dict.fromkeys(shots, cell))
    title = "Accuracy against images per class, a panel per data set"
    return [draw_lines(title, panels, ours=READINGS)] if panels else []


def figure_3(sheet: Sheet) -> list[Picture]:
    """Draw bars: gains over zero-shot, a picture for each of our readings."""
    drawn = []
    for column, (label,) in enumerate(sheet.table.columns):
        cells = {name: sheet.table.cell(row, column) for row, (name,) in enumerate(sheet.table.rows)}
        if any(cell.mean is not None for cell in cells.values()):
            drawn.append(draw_bars(f"Gain over zero-shot of {label}, by data set", cells))
    return drawn

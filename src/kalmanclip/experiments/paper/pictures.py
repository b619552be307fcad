"""The pictures of the studies that have some, from their filled sheets."""

from __future__ import annotations

from kalmanclip.experiments.paper.draw import draw_bars, draw_heat, draw_lines
from kalmanclip.experiments.paper.forms import ZERO_SHOT
from kalmanclip.experiments.paper.printed import OURS
from kalmanclip.experiments.paper.sheet import Entry, Picture, Sheet


def figure_2(sheet: Sheet) -> list[Picture]:
    """A panel per data set: accuracy against shots. What the paper has and we have not is shown, too."""
    shots = sorted({int(titles[1]) for titles in sheet.rows if titles[1]})
    panels: dict[str, dict[str, dict[float, Entry]]] = {}
    for column, data in enumerate(sheet.columns):
        lines: dict[str, dict[float, Entry]] = {}
        for row, (label, k) in enumerate(sheet.rows):
            entry = sheet.entry(row, column)
            if entry.mean is None and entry.printed is None:
                continue
            # what learns nothing is the same at every number of shots
            lines.setdefault(label, {}).update(dict.fromkeys([int(k)] if k else shots, entry))
        if lines:
            panels[data] = lines
    return [draw_lines("Accuracy against images per class, a panel per data set", panels, ours=OURS)] if panels else []


def figure_3(sheet: Sheet) -> list[Picture]:
    """Bars: gains over zero-shot, a picture for each of our readings."""
    return [
        draw_bars(
            f"Gain over zero-shot of {label}, by data set",
            {titles[0]: sheet.entry(row, column) for row, titles in enumerate(sheet.rows)},
        )
        for column, label in enumerate(sheet.columns)
        if any(sheet.entry(row, column).mean is not None for row in range(len(sheet.rows)))
    ]


def table_3(sheet: Sheet) -> list[Picture]:
    """Grids of alpha against the share of corrupted images, one for each data set and reading."""
    groups: dict[tuple[str, str], list[int]] = {}
    for row, (data, label) in enumerate(sheet.rows):
        if label != ZERO_SHOT:
            groups.setdefault((data, label.rsplit(" ", 2)[0]), []).append(row)
    columns = range(len(sheet.columns))
    return [
        draw_heat(
            f"Accuracy of {label} on {data} by alpha and share of corrupted training images",
            [sheet.rows[row][1].rsplit(" ", 1)[-1] for row in rows],
            sheet.columns,
            {
                (i, column): sheet.entry(row, column)
                for i, row in enumerate(rows)
                for column in range(len(sheet.columns))
            },
            row_title="α",
            column_title="corrupted training images",
        )
        for (data, label), rows in groups.items()
        if any(sheet.entry(row, column).mean is not None for row in rows for column in columns)
    ]

"""The figure of the few-shot literature: accuracy against shots, a panel per data set and one of their average."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from kalmanclip.errors import DataError
from kalmanclip.experiments.cells import Grid, Place
from kalmanclip.files import atomic_path

# A bare Figure, as in `kalmanclip.plots`: pyplot keeps figures in a global list and may open windows.

COLUMNS = 4
"""Panels side by side."""
MARKERS = "osD^vP*X<>h"


def draw_figure(paths: Sequence[Path], grid: Grid) -> None:
    """Draws the comparison into files; their suffixes say in which formats.

    Runs with corrupted training images are shown only where there are no others.
    """
    names = _panels(grid)
    columns = min(COLUMNS, len(names))
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(3.6 * columns + 1.6, 3.0 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    lines: dict[str, Any] = {}
    for axes, (name, places) in zip(panels.flat, names.items(), strict=False):
        lines |= _panel(axes, grid, name, places)
    for axes in panels.flat[len(names) :]:
        axes.axis("off")
    if lines:
        shown = [row for row in grid.rows if row in lines]
        figure.legend([lines[row] for row in shown], shown, loc="outside right upper", fontsize=8, frameon=False)
    for path in paths:
        # without the date and random ids, the same results give the same file
        metadata = {"Date": None} if path.suffix == ".svg" else None
        with atomic_path(path, DataError) as temporary, matplotlib.rc_context({"svg.hashsalt": "kalmanclip"}):
            figure.savefig(temporary, dpi=150, metadata=metadata)


def _panels(grid: Grid) -> dict[str, dict[int, list[Place]]]:
    """What each panel shows, by its title: the places for every number of shots."""
    own = sorted((place for place in grid.places if not place.shift), key=lambda place: place.shots)
    names = list(dict.fromkeys(place.data for place in grid.places))
    panels: dict[str, dict[int, list[Place]]] = {name: {} for name in names}
    together: dict[int, list[Place]] = {}
    clean = [place for place in own if not place.share]
    for place in clean or own:
        title = f"{place.data}, {place.condition}" if place.share else place.data
        panels.setdefault(title, {})[place.shots] = [place]
        together.setdefault(place.shots, []).append(place)
    panels = {title: places for title, places in panels.items() if places}
    common = {shots: places for shots, places in together.items() if len(places) == len(panels)}
    first = {f"average of {len(panels)}": common} if len(panels) > 1 and common else {}
    return first | panels  # the average first, as in the literature


def _panel(axes: Any, grid: Grid, title: str, places: dict[int, list[Place]]) -> dict[str, Any]:
    """One panel; the band around a line is one standard deviation over seeds to either side."""
    lines = {}
    for number, row in enumerate(grid.rows):
        cells = {k: cell for k, group in places.items() if (cell := grid.average(row, group)).seeds}
        if not cells:
            continue
        x = list(cells)
        y = [100 * (cell.mean() or 0.0) for cell in cells.values()]
        spread = [100 * (cell.std() or 0.0) for cell in cells.values()]
        colour, marker = f"C{number % 10}", MARKERS[number % len(MARKERS)]
        style = "-" if number < 10 else "--"  # there are ten colours
        (lines[row],) = axes.plot(x, y, style, marker=marker, markersize=4, linewidth=1.4, color=colour)
        if len(x) > 1:
            low = [a - b for a, b in zip(y, spread, strict=True)]
            high = [a + b for a, b in zip(y, spread, strict=True)]
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        else:  # a band needs a width
            axes.errorbar(x, y, spread, color=colour, linewidth=1, capsize=3)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(places), [str(k) for k in places])
    axes.minorticks_off()
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("images per class", fontsize=9)
    axes.set_ylabel("accuracy (%)", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    return lines

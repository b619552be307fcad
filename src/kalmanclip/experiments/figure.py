"""The figure of the few-shot literature: accuracy against shots, one panel per data set, one line per method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from kalmanclip.errors import DataError
from kalmanclip.experiments.table import Grid
from kalmanclip.files import atomic_path

# A bare Figure, as in `kalmanclip.pictures`: pyplot keeps figures in a global list and may open windows.

COLUMNS = 4
"""Panels side by side."""
MARKERS = "osD^vP*X<>h"


def draw_figure(paths: Sequence[Path], grid: Grid) -> None:
    """Draws the comparison into files; their suffixes say in which formats."""
    names = list(dict.fromkeys(data for data, _ in grid.columns))
    columns = min(COLUMNS, len(names))
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(3.6 * columns + 1.6, 3.0 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    lines: dict[str, Any] = {}
    for axes, data in zip(panels.flat, names, strict=False):
        lines |= _panel(axes, grid, data)
    for axes in panels.flat[len(names) :]:
        axes.axis("off")
    if lines:
        shown = [method for method in grid.methods if method in lines]
        figure.legend([lines[m] for m in shown], shown, loc="outside right upper", fontsize=8, frameon=False)
    for path in paths:
        # without the date and random ids, the same results give the same file
        metadata = {"Date": None} if path.suffix == ".svg" else None
        with atomic_path(path, DataError) as temporary, matplotlib.rc_context({"svg.hashsalt": "kalmanclip"}):
            figure.savefig(temporary, dpi=150, metadata=metadata)


def _panel(axes: Any, grid: Grid, data: str) -> dict[str, Any]:
    """One data set; the band around a line is one standard deviation over seeds to either side."""
    shots = sorted(k for name, k in grid.columns if name == data)
    lines = {}
    for number, method in enumerate(grid.methods):
        cells = [cell for k in shots if (cell := grid.cell(method, data, k)).seeds]
        if not cells:
            continue
        x = [cell.shots for cell in cells]
        y = [100 * (cell.mean() or 0.0) for cell in cells]
        spread = [100 * (cell.std() or 0.0) for cell in cells]
        colour, marker = f"C{number % 10}", MARKERS[number % len(MARKERS)]
        style = "-" if number < 10 else "--"  # there are ten colours
        (lines[method],) = axes.plot(x, y, style, marker=marker, markersize=4, linewidth=1.4, color=colour)
        if len(x) > 1:
            low = [a - b for a, b in zip(y, spread, strict=True)]
            high = [a + b for a, b in zip(y, spread, strict=True)]
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        else:  # a band needs a width
            axes.errorbar(x, y, spread, color=colour, linewidth=1, capsize=3)
    axes.set_xscale("log", base=2)
    axes.set_xticks(shots, [str(k) for k in shots])
    axes.minorticks_off()
    axes.set_title(data, fontsize=10)
    axes.set_xlabel("images per class", fontsize=9)
    axes.set_ylabel("accuracy (%)", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    return lines

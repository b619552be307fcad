"""The figures of the paper, drawn from our numbers with the printed ones beside them.

Everything is drawn in two fixed colours, `INK` on `PAPER`, beside those of the data; the page replaces these two by its
own, so that a picture follows its reader from light to dark.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from kalmanclip.experiments.paper.sheet import Entry, Picture
from kalmanclip.experiments.paper.shown import NONE, number, printed, signed

# A bare Figure, as in `kalmanclip.plots`: pyplot keeps figures in a global list and may open windows.

INK, PAPER = "#1b1f24", "#fefefe"
COLOURS = ("#2f7fd1", "#c77700", "#2c9a6b", "#d6504c", "#9a68c9", "#8a7a4f", "#c45a9a", "#6f7f8f")
"""A contrast of at least 3 on white and on black. The first is the paper's method."""
MARKERS = "osD^vPXh"
OURS, THEIRS = COLOURS[0], "#8b96a3"
"""Bars."""
CROSS = "×"
"""What diverged."""
COLUMNS = 3
"""Panels side by side."""

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be read aloud, searched and copied
    "font.size": 9,
    "font.sans-serif": ["DejaVu Sans", "Arial", "Helvetica"],
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "figure.facecolor": PAPER,
    "legend.frameon": False,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
}

Panels = Mapping[str, Mapping[str, Mapping[float, Entry]]]
"""By the panel's title, by the line's label, by what stands on the x axis (such as shots)."""


def draw_lines(
    title: str,
    panels: Panels,
    *,
    ours: str = "",
    x_title: str = "images per class",
    y_title: str = "accuracy (%)",
) -> Picture:
    """Numbers against shots, a panel per data set: ours with a band of one standard deviation, the paper's dashed.

    Args:
        title: what it shows, in a sentence; it is not drawn, but told to those who cannot see the picture.
        panels: see `Panels`. Entries without a number of ours or of the paper leave a gap in the line; those that
            diverged are crosses at the foot of the panel.
        ours: how the labels of the lines begin that stand out: the paper's method, in one or several readings.
        x_title: under the panels.
        y_title: beside them.
    """

    def draw(figure: Figure) -> None:
        labels = list(dict.fromkeys(label for lines in panels.values() for label in lines))
        labels.sort(key=lambda label: not _stands_out(label, ours))  # the first colour is the paper's method's
        columns = min(COLUMNS, len(panels))
        rows = -(-len(panels) // columns)
        figure.set_size_inches(max(4.5, 3.3 * columns), 2.6 * rows + 0.9)
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes, (name, lines) in zip(grid.flat, panels.items(), strict=False):
            _lines(axes, lines, labels, ours)
            axes.set_title(name, loc="left")
        for axes in grid.flat[len(panels) :]:
            axes.axis("off")
        for axes in grid[:, 0]:
            axes.set_ylabel(y_title)
        for axes in grid.flat[max(0, len(panels) - columns) : len(panels)]:
            axes.set_xlabel(x_title)
        entries = [e for lines in panels.values() for line in lines.values() for e in line.values()]
        handles = [Line2D([], [], color=_colour(n), marker=_marker(n), label=label) for n, label in enumerate(labels)]
        if any(_is_number(entry.printed) for entry in entries):
            handles.append(Line2D([], [], color=INK, linestyle="--", linewidth=1, label="dashed: the paper's"))
        if any(_has_diverged(entry) for entry in entries):
            handles.append(Line2D([], [], color=INK, linestyle="", marker="x", label="diverged"))
        figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8.5)

    return _picture(title, draw)


def _lines(axes: Any, lines: Mapping[str, Mapping[float, Entry]], labels: Sequence[str], ours: str) -> None:
    """One panel."""
    places = {x: at for at, x in enumerate(sorted({x for line in lines.values() for x in line}))}
    foot = axes.get_xaxis_transform()  # x as in the data, y as a share of the panel
    drawn: list[list[Any]] = []
    for label, line in lines.items():
        n, first = labels.index(label), _stands_out(label, ours)
        style: dict[str, Any] = {"color": _colour(n), "zorder": 4 if first else 3}
        at = [places[x] for x in sorted(line)]
        entries = [line[x] for x in sorted(line)]
        y = np.array([np.nan if entry.mean is None else entry.mean for entry in entries])
        spread = np.array([entry.std or 0.0 for entry in entries])
        theirs = [entry.printed if _is_number(entry.printed) else None for entry in entries]
        if any(value is not None for value in theirs) and theirs not in drawn:  # two readings of one printed line
            drawn.append(theirs)
            known = [np.nan if value is None else value for value in theirs]
            axes.plot(at, known, linestyle=(0, (3, 2)), linewidth=1, alpha=0.85, **style)
        axes.plot(at, y, marker=_marker(n), markersize=3.5, linewidth=2.2 if first else 1.3, **style)
        axes.fill_between(at, y - spread, y + spread, color=_colour(n), alpha=0.16, linewidth=0)
        crosses = [place for place, entry in zip(at, entries, strict=True) if _has_diverged(entry)]
        (mark,) = axes.plot(crosses, [0.04] * len(crosses), "x", transform=foot, markersize=5, **style)
        mark.set_in_layout(False)
    axes.set_xticks(list(places.values()), [f"{x:g}" for x in places])
    axes.grid(axis="y", color=INK, alpha=0.14, linewidth=0.6)
    if not any(entry.mean is not None for line in lines.values() for entry in line.values()):
        words = {"va": "top", "style": "italic", "fontsize": 8, "in_layout": False}
        axes.text(0.03, 0.97, "not measured here", transform=axes.transAxes, **words)


def draw_bars(title: str, entries: Mapping[str, Entry], *, x_title: str = "gain over zero-shot (points)") -> Picture:
    """One bar of ours per data set, with its standard deviation, and the paper's beneath it.

    Args:
        title: as in `draw_lines`.
        entries: by data set, from top to bottom.
        x_title: under the bars.
    """

    theirs = any(_is_number(entry.printed) for entry in entries.values())
    wide = 0.38 if theirs else 0.6

    def draw(figure: Figure) -> None:
        figure.set_size_inches(7.2, (0.46 if theirs else 0.34) * len(entries) + 1.1)
        axes = figure.add_subplot()
        for at, entry in enumerate(entries.values()):
            missing = "diverged" if _has_diverged(entry) else NONE
            _bar(axes, at - wide / 2 * theirs, wide, entry.mean, entry.std or 0.0, missing, OURS)
            if theirs:
                value = float(entry.printed) if _is_number(entry.printed) else None  # type: ignore[arg-type]
                _bar(axes, at + wide / 2, wide, value, 0.0, NONE, THEIRS)
        axes.set_yticks(range(len(entries)), list(entries))
        axes.set_ylim(len(entries) - 0.4, -0.6)
        axes.margins(x=0.12)  # for the numbers beside the bars
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color=INK, alpha=0.14, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_xlabel(x_title)
        if theirs:
            handles = [Patch(color=OURS, label="here"), Patch(color=THEIRS, label="the paper's")]
            figure.legend(handles=handles, loc="outside upper left", ncols=2, fontsize=8.5)

    return _picture(title, draw)


def _bar(axes: Any, y: float, wide: float, value: float | None, spread: float, missing: str, colour: str) -> None:
    """One bar with its number, or the word for why there is none."""
    length = value or 0.0
    side = -1 if length < 0 else 1
    axes.barh(y, length, wide, color=colour)
    if spread:
        axes.errorbar(length, y, xerr=spread, color=INK, linewidth=1, capsize=2)
    axes.annotate(
        missing if value is None else signed(value),
        (length + side * spread, y),
        (4 * side, 0),
        textcoords="offset points",
        ha="left" if side > 0 else "right",
        va="center_baseline",
        fontsize=7.5,
    )


def draw_heat(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    entries: Mapping[tuple[int, int], Entry],
    *,
    row_title: str,
    column_title: str,
) -> Picture:
    """Grids, ours and the paper's if it has one, where a cell's colour says how far it is from its column's mean.

    Columns differ by far more than what is asked about, the rows; therefore the colours are about differences within a
    column, in points, on one scale for both grids. The best of a column is framed; cells that diverged are crossed.

    Args:
        title: as in `draw_lines`.
        rows: such as the values of α.
        columns: such as the shares of corrupted images.
        entries: by row and column number.
        row_title: what the rows are.
        column_title: what the columns are.
    """
    shape = len(rows), len(columns)
    own, theirs = np.full(shape, np.nan), np.full(shape, np.nan)
    crossed = [np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)]
    for place, entry in entries.items():
        own[place] = np.nan if entry.mean is None else entry.mean
        theirs[place] = entry.printed if _is_number(entry.printed) else np.nan
        crossed[0][place], crossed[1][place] = _has_diverged(entry), isinstance(entry.printed, str)
    grids = [("here", own, crossed[0], number)]
    if any(entry.printed is not None for entry in entries.values()):
        grids.append(("the paper's", theirs, crossed[1], printed))

    def draw(figure: Figure) -> None:
        figure.set_size_inches(len(grids) * max(3.3, 0.68 * len(columns) + 0.8) + 1.2, 0.46 * len(rows) + 1.1)
        places = list(figure.subplots(1, len(grids), squeeze=False).flat)
        # the ends of the scale are too dark to tell from each other; small differences stay pale
        limit = 1.2 * max(1.0, *(float(np.nanmax(np.abs(_centred(grid)), initial=0.0)) for _, grid, *_ in grids))
        for axes, (name, grid, crosses, show) in zip(places, grids, strict=True):
            image = axes.imshow(_centred(grid), cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
            _cells(axes, grid, crosses, show, limit)
            axes.set_title(name, loc="left")
            axes.set_xticks(range(len(columns)), list(columns))
            axes.set_yticks(range(len(rows)), list(rows))
            axes.set_xlabel(column_title)
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
        short = len(row_title) < 3  # a single letter need not lie on its side
        places[0].set_ylabel(row_title, rotation=0 if short else 90, labelpad=8 if short else 4)
        bar = figure.colorbar(image, ax=places, shrink=0.9, aspect=16, pad=0.02)
        bar.outline.set_visible(False)
        bar.set_label("points from the mean\nof the column", fontsize=8)

    return _picture(title, draw)


def _cells(axes: Any, grid: np.ndarray, crossed: np.ndarray, show: Callable[[float], str], limit: float) -> None:
    """Numbers, crosses and frames of one grid."""
    inks = np.where(np.abs(_centred(grid)) / limit > 0.6, "#ffffff", "#101010")
    for (row, column), value in np.ndenumerate(grid):
        text, colour = show(value), inks[row, column]
        if np.isnan(value):  # nothing is painted there: the ground is the page's
            text, colour = (CROSS, COLOURS[3]) if crossed[row, column] else (NONE, INK)
        axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=12 if text == CROSS else 8.5)
    for column, values in enumerate(np.round(grid, 1).T):  # as in `Sheet.best`
        for row in np.flatnonzero(values == np.nanmax(values, initial=-np.inf)):
            corner = column - 0.46, row - 0.44
            axes.add_patch(Rectangle(corner, 0.92, 0.88, fill=False, edgecolor=inks[row, column], linewidth=1.4))


def _centred(grid: np.ndarray) -> np.ndarray:
    """(r, c) minus the means of the columns, over what is there; NaN stays."""
    counts = np.maximum((~np.isnan(grid)).sum(axis=0), 1)
    return grid - np.nansum(grid, axis=0) / counts


def _picture(title: str, draw: Callable[[Figure], None]) -> Picture:
    """A figure in both formats; the same numbers give the same bytes."""
    # ids of different pictures differ, for those who put several into one page
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": title}):
        figure = Figure(layout="constrained")
        draw(figure)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # found once, it holds for both formats
        svg, png = io.StringIO(), io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
    return Picture(title, svg.getvalue(), png.getvalue())


def _stands_out(label: str, ours: str) -> bool:
    return bool(ours) and label.startswith(ours)


def _is_number(value: float | str | None) -> bool:
    return value is not None and not isinstance(value, str)


def _has_diverged(entry: Entry) -> bool:
    """Whether nothing but diverged seeds is there."""
    return entry.mean is None and entry.diverged > 0


def _colour(n: int) -> str:
    return COLOURS[n % len(COLOURS)]


def _marker(n: int) -> str:
    return MARKERS[n % len(MARKERS)]

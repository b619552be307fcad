"""Figures: accuracy against shots and bars, with the paper's printed numbers beside ours if it has some."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from kalmanclip.errors import DataError
from kalmanclip.experiments.aggregate import Cell
from kalmanclip.experiments.render import signed
from kalmanclip.files import write_atomic

# A bare Figure, as in `kalmanclip.plots`: pyplot keeps figures in a global list and may open windows.

INK = "#1b1f24"
COLOURS = ("#2f7fd1", "#c77700", "#2c9a6b", "#d6504c", "#9a68c9", "#8a7a4f", "#c45a9a", "#6f7f8f")
"""The first is the paper's method."""
MARKERS = "osD^vPXh"
OURS, THEIRS = COLOURS[0], "#8b96a3"
"""Bars."""
NONE = "–"
"""Where there is no number."""
COLUMNS = 3
"""Panels side by side."""

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be searched and copied
    "font.size": 9,
    "font.sans-serif": ["DejaVu Sans", "Arial", "Helvetica"],
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
}

Panels = Mapping[str, Mapping[str, Mapping[float, Cell]]]
"""By the panel's title, by the line's label, by what stands on the x axis (such as shots)."""

Curves = Mapping[str, Mapping[str, Sequence[Sequence[float]]]]
"""By the panel's title, by the line's label: points, each an x and a y."""


@dataclass(frozen=True)
class Picture:
    """A figure, drawn.

    Attributes:
        title: what it shows, also for those who cannot see it.
        svg: an SVG document.
        png: the same as PNG.
    """

    title: str
    svg: str
    png: bytes

    def save(self, stem: Path) -> None:
        """Write ``stem.svg`` and ``stem.png``."""
        write_atomic(stem.with_name(f"{stem.name}.svg"), self.svg, DataError)
        write_atomic(stem.with_name(f"{stem.name}.png"), self.png, DataError)


def draw_lines(title: str, panels: Panels, *, ours: Sequence[str] = (), x: str = "images per class") -> Picture:
    """Draw numbers against shots, a panel per data set: ours with a band of one standard deviation, the paper's dashed.

    Args:
        title: what it shows, in a sentence, for those who cannot see the picture; it is not drawn.
        panels: see `Panels`. Cells without a number of ours or of the paper leave a gap in the line; those that
            diverged are crosses at the foot of the panel.
        ours: the labels of the lines that stand out: the paper's method, in one or several readings.
        x: what stands on the x axis.
    """

    def draw(figure: Figure) -> None:
        labels = _labels(panels, ours)
        columns = 2 if len(panels) == 4 else min(COLUMNS, len(panels))
        grid = _grid(figure, list(panels), columns, 2.6, x)
        for axes, lines in zip(grid.flat, panels.values(), strict=False):
            _lines(axes, lines, labels, ours)
        for axes in grid[:, 0]:
            axes.set_ylabel("accuracy (%)")
        cells = [e for lines in panels.values() for line in lines.values() for e in line.values()]
        handles = [Line2D([], [], **_style(n), label=label) for n, label in enumerate(labels)]
        if any(_number(cell.printed) is not None for cell in cells):
            handles.append(Line2D([], [], color=INK, linestyle="--", linewidth=1, label="dashed: the paper's"))
        if any(_has_diverged(cell) for cell in cells):
            handles.append(Line2D([], [], color=INK, linestyle="", marker="x", label="diverged"))
        _legend(figure, handles)

    return _picture(title, draw)


def _labels(panels: Mapping[str, Mapping[str, Any]], ours: Sequence[str]) -> list[str]:
    """Return the labels of all lines; the first colour is the paper's method's."""
    labels = list(dict.fromkeys(label for lines in panels.values() for label in lines))
    return sorted(labels, key=lambda label: label not in ours)


def _legend(figure: Figure, handles: Sequence[Line2D]) -> None:
    """Put a legend beneath the panels, in as many columns, up to four, as fit, and make the figure higher by it."""
    for columns in (4, 3, 2, 1):
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=8.5)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()
    figure.set_figheight(figure.get_figheight() + 0.2 * -(-len(handles) // columns))


def _grid(figure: Figure, names: Sequence[str], columns: int, height: float, x: str) -> Any:
    """Return the axes of panels with these titles, row by row.

    Args:
        figure: is made as large as they need.
        names: of the panels.
        columns: side by side.
        height: of a row, in inches.
        x: what stands on the x axis of the last ones.
    """
    rows = -(-len(names) // columns)
    figure.set_size_inches(max(4.5, 3.3 * columns), height * rows + 0.5)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, name in zip(grid.flat, names, strict=False):
        axes.set_title(name, loc="left")
    for axes in grid.flat[len(names) :]:
        axes.axis("off")
    for axes in grid.flat[max(0, len(names) - columns) : len(names)]:
        axes.set_xlabel(x)
    return grid


def _lines(axes: Any, lines: Mapping[str, Mapping[float, Cell]], labels: Sequence[str], ours: Sequence[str]) -> None:
    """Draw one panel."""
    places = {x: at for at, x in enumerate(sorted({x for line in lines.values() for x in line}))}
    foot = axes.get_xaxis_transform()  # x as in the data, y as a share of the panel
    drawn: list[list[Any]] = []
    for label, line in lines.items():
        n, first = labels.index(label), label in ours
        style: dict[str, Any] = {"color": _style(n)["color"], "zorder": 4 if first else 3}
        at = [places[x] for x in sorted(line)]
        cells = [line[x] for x in sorted(line)]
        y = np.array([np.nan if cell.mean is None else cell.mean for cell in cells])
        spread = np.array([cell.std or 0.0 for cell in cells])
        theirs = [_number(cell.printed) for cell in cells]
        if any(value is not None for value in theirs) and theirs not in drawn:  # two readings of one printed line
            drawn.append(theirs)
            known = [np.nan if value is None else value for value in theirs]
            axes.plot(at, known, linestyle=(0, (3, 2)), linewidth=1, alpha=0.85, **style)
        axes.plot(at, y, markersize=3.5, linewidth=2.2 if first else 1.3, **(_style(n) | style))
        axes.fill_between(at, y - spread, y + spread, color=style["color"], alpha=0.16, linewidth=0)
        if len(at) == 1:  # a band needs a width
            axes.errorbar(at, y, spread, linewidth=1, capsize=3, **style)
        crosses = [place for place, cell in zip(at, cells, strict=True) if _has_diverged(cell)]
        (mark,) = axes.plot(crosses, [0.04] * len(crosses), "x", transform=foot, markersize=5, **style)
        mark.set_in_layout(False)
    axes.set_xticks(list(places.values()), [f"{x:g}" for x in places])
    axes.grid(axis="y", color=INK, alpha=0.14, linewidth=0.6)
    if not any(cell.mean is not None for line in lines.values() for cell in line.values()):
        words = {"va": "top", "style": "italic", "fontsize": 8, "in_layout": False}
        axes.text(0.03, 0.97, "not measured here", transform=axes.transAxes, **words)


def draw_curves(title: str, panels: Curves, *, ours: Sequence[str] = (), x: str) -> Picture:
    """Draw courses, a panel for each: points that are joined, on an axis of numbers.

    Args:
        title: what it shows, in a sentence, for those who cannot see the picture; it is not drawn.
        panels: see `Curves`.
        ours: the labels of the lines that stand out.
        x: what stands on the x axis.
    """

    def draw(figure: Figure) -> None:
        labels = _labels(panels, ours)
        grid = _grid(figure, list(panels), min(COLUMNS, len(panels)), 2.3, x)
        for axes, lines in zip(grid.flat, panels.values(), strict=False):
            for label, points in lines.items():
                first = label in ours
                style = _style(labels.index(label)) | {"zorder": 4 if first else 3}
                axes.plot(*zip(*points, strict=True), markersize=3.5, linewidth=2.2 if first else 1.3, **style)
            axes.grid(axis="y", color=INK, alpha=0.14, linewidth=0.6)
        handles = [Line2D([], [], **_style(n), label=label) for n, label in enumerate(labels)]
        _legend(figure, handles)

    return _picture(title, draw)


def draw_bars(title: str, cells: Mapping[str, Cell]) -> Picture:
    """Draw one bar of our gain per data set, from top to bottom, with its deviation, and the paper's beneath it."""
    theirs = any(_number(cell.printed) is not None for cell in cells.values())
    wide = 0.38 if theirs else 0.6

    def draw(figure: Figure) -> None:
        figure.set_size_inches(7.2, (0.46 if theirs else 0.34) * len(cells) + 1.1)
        axes = figure.add_subplot()
        for at, cell in enumerate(cells.values()):
            missing = "diverged" if _has_diverged(cell) else NONE
            _bar(axes, at - wide / 2 * theirs, wide, cell.mean, cell.std or 0.0, missing, OURS)
            if theirs:
                _bar(axes, at + wide / 2, wide, _number(cell.printed), 0.0, NONE, THEIRS)
        axes.set_yticks(range(len(cells)), list(cells))
        axes.set_ylim(len(cells) - 0.4, -0.6)
        axes.margins(x=0.12)  # for the numbers beside the bars
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color=INK, alpha=0.14, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_xlabel("gain over zero-shot (points)")
        if theirs:
            handles = [Patch(color=OURS, label="here"), Patch(color=THEIRS, label="the paper's")]
            figure.legend(handles=handles, loc="outside upper left", ncols=2, fontsize=8.5)

    return _picture(title, draw)


def _bar(axes: Any, y: float, wide: float, value: float | None, spread: float, missing: str, colour: str) -> None:
    """Draw one bar with its number, or the word for why there is none."""
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


def _picture(title: str, draw: Callable[[Figure], None]) -> Picture:
    """Return a figure in both formats; the same numbers give the same bytes."""
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "kalmanclip"}):
        figure = Figure(layout="constrained")
        draw(figure)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # found once, it holds for both formats
        svg, png = io.StringIO(), io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
    return Picture(title, svg.getvalue(), png.getvalue())


def _number(value: float | str | None) -> float | None:
    return None if isinstance(value, str) else value


def _has_diverged(cell: Cell) -> bool:
    """Whether nothing but diverged seeds is there."""
    return cell.mean is None and cell.diverged > 0


def _style(n: int) -> dict[str, Any]:
    """Return how the n-th line is drawn: there are eight colours, then they come again in other strokes."""
    stroke = ("-", ":", "-.")[n // len(COLOURS) % 3]
    return {"color": COLOURS[n % len(COLOURS)], "marker": MARKERS[n % len(MARKERS)], "linestyle": stroke}

"""Plots: confusion matrices, reliability and risk-coverage curves, predictions with their uncertainty."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from kalmanclip.errors import ConfigError
from kalmanclip.files import atomic_path
from kalmanclip.metrics import ReliabilityBin, RiskCoverage

# matplotlib's pyplot keeps figures in a global list and may open windows; a bare Figure does neither.

RIGHT, WRONG = "#2a7d4f", "#c0392b"


class Example(NamedTuple):
    """One image and its prediction; ``lead`` as in `kalmanclip.metrics`."""

    image: np.ndarray
    truth: str
    predicted: str
    probability: float
    lead: float


def check_plot_path(path: Path) -> None:
    """Refuse, before the work, a place or a format that a plot cannot be written to."""
    formats = Figure().canvas.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in formats:
        raise ConfigError(f"{path} must end in a picture format: .{', .'.join(sorted(formats))}.")
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give the name of a picture file.")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as problem:
        raise ConfigError(f"Cannot write to {path.parent}: {problem.strerror}. Choose another place.") from problem


def draw_confusion(path: Path, matrix: np.ndarray, names: Sequence[str]) -> None:
    """Draw a confusion matrix (C, C), shaded by the share of each true class, with counts where they fit."""
    C = len(names)
    cell = min(0.6, 4 / C + 0.15)  # inches: cells shrink as they become many
    side = 2.5 + max(2.0, cell * C)
    figure = Figure(figsize=(side, side), layout="constrained")
    axes = figure.add_subplot()
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", norm=PowerNorm(0.5, vmin=0, vmax=1))  # so that single mistakes are visible
    size = min(10.0, 0.6 * 72 * cell)
    step = -(-C // 150)  # of more names, every second, third, ...
    ticks, labels = range(0, C, step), [_short(name) for name in names][::step]
    upright = max(map(len, labels)) * 0.6 * size > 72 * cell
    axes.set_xticks(ticks, labels, rotation=90 if upright else 0, fontsize=size)
    axes.set_yticks(ticks, labels, fontsize=size)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    total = matrix.sum()
    axes.set_title(f"{np.trace(matrix) / max(total, 1):.1%} of {total} images right", fontsize=11)
    if C <= 60:
        for (i, j), count in np.ndenumerate(matrix):
            if count:
                colour = "white" if shares[i, j] > 0.3 else "black"
                axes.text(j, i, count, ha="center", va="center", fontsize=size, color=colour)
    _save(figure, path)


def draw_reliability(path: Path, rows: Sequence[ReliabilityBin], error: float) -> None:
    """Draw accuracy against confidence, bin by bin, over how many images each bin has; ``error`` is the ECE."""
    figure = Figure(figsize=(4.5, 5), layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=[4, 1], sharex=True)
    width = rows[0].upper - rows[0].lower
    upper.plot([0, 1], [0, 1], color="#7f8c8d", linewidth=1, linestyle="--")
    for row in rows:
        if row.accuracy is not None and row.confidence is not None:
            colour = WRONG if row.accuracy < row.confidence else RIGHT
            upper.bar(row.lower, row.accuracy, width, align="edge", color="#9ecae1", edgecolor="white")
            upper.plot([row.confidence] * 2, [row.accuracy, row.confidence], color=colour, linewidth=2)
    lower.bar([row.lower for row in rows], [row.images for row in rows], width, align="edge", color="#bdc3c7")
    upper.set(ylabel="share that is right", xlim=(0, 1), ylim=(0, 1))
    lower.set(xlabel="probability of the answer", ylabel="images")
    upper.set_title(f"expected calibration error {error:.1%}\n(red: too sure, green: not sure enough)", fontsize=9)
    _save(figure, path)


def draw_risk_coverage(path: Path, curve: RiskCoverage, area: float) -> None:
    """Draw the share of wrong answers if only the surest are given, and how low it could be; ``area`` is the AURC."""
    figure = Figure(figsize=(4.5, 4), layout="constrained")
    axes = figure.add_subplot()
    errors = curve.risk[-1]
    least = np.maximum(curve.coverage - (1 - errors), 0) / curve.coverage  # all right answers before the first wrong
    axes.plot(curve.coverage, least, color="#7f8c8d", linewidth=1, linestyle="--", label="if it knew its mistakes")
    axes.plot(curve.coverage, curve.risk, color=WRONG, label="by probability")
    axes.axhline(errors, color="#bdc3c7", linewidth=1, label="in any order")
    axes.set(xlabel="share of images that are answered", ylabel="share of wrong answers", xlim=(0, 1), ylim=(0, None))
    axes.legend(frameon=False, fontsize=8)
    axes.set_title(f"mean over the curve: {area:.1%} (AURC)", fontsize=9)
    _save(figure, path)


def draw_predictions(path: Path, predictions: Sequence[Example], columns: int = 5) -> None:
    """Draw images in a grid, each with its predicted class, its probability and a bar for how sure it is."""
    rows = -(-len(predictions) // columns)
    figure = Figure(figsize=(1.7 * columns, 2.3 * rows + 0.6), layout="constrained")
    figure.suptitle(
        "Predicted class and its probability. Bar: lead over the second choice in standard deviations (short: unsure)",
        fontsize=10,
    )
    longest = max(p.lead for p in predictions)
    grid = figure.subplots(2 * rows, columns, height_ratios=[12, 1] * rows, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for number, prediction in enumerate(predictions):
        row, column = divmod(number, columns)
        _draw_prediction(grid[2 * row, column], grid[2 * row + 1, column], prediction, longest)
    _save(figure, path)


def _draw_prediction(picture: Any, bar: Any, p: Example, longest: float) -> None:
    right = p.predicted == p.truth
    colour = RIGHT if right else WRONG
    picture.axis("on")
    picture.set_xticks([])
    picture.set_yticks([])
    picture.imshow(p.image, cmap="gray", vmin=0, vmax=255)
    for spine in picture.spines.values():
        spine.set(color=colour, linewidth=1 if right else 3)
    verdict = "" if right else f"\nwrong: it is {_short(p.truth)}"
    picture.set_title(f"{_short(p.predicted)}  {p.probability:.0%}{verdict}", fontsize=9, color=colour)
    bar.set_xlim(0, 1)
    bar.barh(0, 1, color="#e6e6e6")
    bar.barh(0, p.lead / longest if longest else 0, color="#7f8c8d")


def _short(name: str, limit: int = 24) -> str:
    return name if len(name) <= limit else name[: limit - 1] + "…"


def _save(figure: Figure, path: Path) -> None:
    with atomic_path(path, ConfigError) as temporary:
        figure.savefig(temporary, dpi=150)

"""Plots: confusion matrices, reliability and risk-coverage curves, predictions with their uncertainty.

`plot_confusion`, `plot_reliability`, `plot_risk_coverage` and `plot_predictions` take what `KalmanCLIP.predict_full`
gives and return a matplotlib figure, which a notebook shows. The functions ``draw_...`` below them take numbers, and
write a file where they are given a path.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from kalmanclip.data.images import ImageSource, load_image
from kalmanclip.data.labelled import find_labels
from kalmanclip.errors import ConfigError, DataError
from kalmanclip.files import atomic_path
from kalmanclip.metrics import (
    ReliabilityBin,
    RiskCoverage,
    area_under_risk_coverage,
    confusion_matrix,
    expected_calibration_error,
    reliability_table,
    risk_coverage,
    standardized_margin,
)
from kalmanclip.prediction import Prediction

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


def plot_confusion(prediction: Prediction, labels: Sequence[str | int]) -> Figure:
    """Return a confusion matrix, shaded by the share of each true class; ``labels`` (N,): names or class numbers."""
    truth, guesses = _truth(prediction, labels), prediction.probabilities.argmax(dim=1).numpy()
    names = prediction.class_names
    return draw_confusion(None, confusion_matrix(truth, guesses, len(names)), names)


def plot_reliability(prediction: Prediction, labels: Sequence[str | int]) -> Figure:
    """Return accuracy against confidence, over how many images each bin has; ``labels`` as in `plot_confusion`."""
    truth, p = _truth(prediction, labels), prediction.probabilities.numpy()
    return draw_reliability(None, reliability_table(p, truth), expected_calibration_error(p, truth))


def plot_risk_coverage(prediction: Prediction, labels: Sequence[str | int]) -> Figure:
    """Return the share of wrong answers if only the surest are given; ``labels`` as in `plot_confusion`."""
    p = prediction.probabilities
    confidence, right = p.amax(dim=1).numpy(), p.argmax(dim=1).numpy() == _truth(prediction, labels)
    return draw_risk_coverage(None, risk_coverage(confidence, right), area_under_risk_coverage(confidence, right))


def plot_predictions(
    prediction: Prediction, images: Sequence[ImageSource], labels: Sequence[str | int], columns: int = 5
) -> Figure:
    """Return the images in a grid, each with its class, its probability and how sure it is; few images are best."""
    return draw_predictions(None, examples(prediction, images, labels), columns)


def examples(prediction: Prediction, images: Sequence[ImageSource], labels: Sequence[str | int]) -> list[Example]:
    """Return one `Example` for each image of a prediction."""
    truth, names = _truth(prediction, labels), prediction.class_names
    if len(images) != len(truth):
        raise DataError(f"{len(images)} images but a prediction of {len(truth)}; give the images that were predicted")
    leads = standardized_margin(prediction.mean.numpy(), prediction.std.numpy())
    columns = (images, truth, prediction.labels, prediction.confidence, leads)
    return [
        Example(np.asarray(load_image(image)), names[label], str(guess), float(p), float(ahead))
        for image, label, guess, p, ahead in zip(*columns, strict=True)
    ]


def _truth(prediction: Prediction, labels: Sequence[str | int]) -> np.ndarray:
    """Return the numbers (N,) of the true classes."""
    given: list[Any] = list(labels)
    last = len(prediction.class_names) - 1
    if len(given) != len(prediction):
        raise DataError(f"{len(given)} labels but a prediction of {len(prediction)} images; give one label per image")
    if all(isinstance(label, str) for label in given):
        return np.array(find_labels(given, prediction.class_names, "label"), dtype=int)
    found = np.array(given)
    if found.dtype.kind not in "iu" or not ((found >= 0) & (found <= last)).all():
        raise DataError(f"labels are names of classes, or their numbers 0..{last}")
    return found


def draw_confusion(path: Path | None, matrix: np.ndarray, names: Sequence[str]) -> Figure:
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
    return _save(figure, path)


def draw_reliability(path: Path | None, rows: Sequence[ReliabilityBin], error: float) -> Figure:
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
    return _save(figure, path)


def draw_risk_coverage(path: Path | None, curve: RiskCoverage, area: float) -> Figure:
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
    return _save(figure, path)


def draw_predictions(path: Path | None, predictions: Sequence[Example], columns: int = 5) -> Figure:
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
    return _save(figure, path)


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


def _save(figure: Figure, path: Path | None) -> Figure:
    if path is not None:
        with atomic_path(path, ConfigError) as temporary:
            figure.savefig(temporary, dpi=150)
    return figure

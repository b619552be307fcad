"""From records to the table: means and spreads over seeds, as cells, CSV and Markdown."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

METRICS = ("accuracy", "nll", "ece", "brier", "failure_auroc")


@dataclass(frozen=True)
class Cell:
    """One method on one data set with K shots, over the seeds.

    Attributes:
        method: its name.
        data: the data set's name.
        shots: K.
        seeds: those whose runs are done, in order.
        values: by metric, one number per done seed; None where a metric is not defined.
        reasons: why the other seeds failed, by seed.
    """

    method: str
    data: str
    shots: int
    seeds: tuple[int, ...]
    values: dict[str, tuple[float | None, ...]]
    reasons: dict[int, str]

    def mean(self, metric: str = "accuracy") -> float | None:
        """Over the done seeds; None without any, or where the metric is not defined on all of them."""
        values = self._numbers(metric)
        return statistics.fmean(values) if values else None

    def std(self, metric: str = "accuracy") -> float | None:
        """The sample's standard deviation (n - 1) over the done seeds; None with fewer than two."""
        values = self._numbers(metric)
        return statistics.stdev(values) if len(values) > 1 else None

    @property
    def text(self) -> str:
        """The accuracy as the table shows it, in percent."""
        mean, std = self.mean(), self.std()
        if mean is None:
            return "failed"
        shown = f"{100 * mean:.1f}" + ("" if std is None else f" ± {100 * std:.1f}")
        return shown + (f" ({len(self.reasons)} failed)" if self.reasons else "")

    def _numbers(self, metric: str) -> list[float]:
        values = self.values[metric]
        numbers = [value for value in values if value is not None]
        return numbers if len(numbers) == len(values) else []


class Grid:
    """The cells of a comparison, by method, data set and shots.

    Args:
        records: as `execute` makes them.

    Attributes:
        methods: in the order of the records.
        columns: pairs of a data set and shots, in the order of the records.
    """

    def __init__(self, records: Sequence[dict[str, Any]]) -> None:
        self.methods: list[str] = list(dict.fromkeys(r["run"]["method"] for r in records))
        self.columns: list[tuple[str, int]] = list(
            dict.fromkeys((r["run"]["data"], r["run"]["shots"]) for r in records)
        )
        groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
        for record in records:
            run = record["run"]
            groups.setdefault((run["method"], run["data"], run["shots"]), []).append(record)
        self._cells = {key: _cell(*key, group) for key, group in groups.items()}

    def cell(self, method: str, data: str, shots: int) -> Cell:
        """One of them."""
        return self._cells[method, data, shots]

    def cells(self) -> Iterable[Cell]:
        """All cells, data set by data set, then by shots and method."""
        return (self.cell(method, data, shots) for data, shots in self.columns for method in self.methods)

    def best(self, data: str, shots: int) -> set[str]:
        """The methods whose accuracy, as it is shown, no other exceeds; a mean over fewer seeds does not compete."""
        means = {method: self.cell(method, data, shots).mean() for method in self.methods}
        shown = {
            method: round(100 * mean, 1)
            for method, mean in means.items()
            if mean is not None and not self.cell(method, data, shots).reasons
        }
        return {method for method, value in shown.items() if value == max(shown.values())}


def to_csv(grid: Grid) -> str:
    """One line per cell: how many seeds, mean and standard deviation of every metric, and why runs failed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    numbers = [f"{metric}_{what}" for metric in METRICS for what in ("mean", "std")]
    writer.writerow(["data", "shots", "method", "seeds", "failed", *numbers, "reasons"])
    for cell in grid.cells():
        values = [value for metric in METRICS for value in (cell.mean(metric), cell.std(metric))]
        shown = ["" if value is None else repr(value) for value in values]
        reasons = "; ".join(f"seed {seed}: {_one_line(reason)}" for seed, reason in cell.reasons.items())
        writer.writerow([cell.data, cell.shots, cell.method, len(cell.seeds), len(cell.reasons), *shown, reasons])
    return text.getvalue()


def to_markdown(grid: Grid, model: str) -> str:
    """The table for people: rows are methods, columns data sets with their shots, the best in bold."""
    heads = ["method", *(f"{_escape(data)}, {shots}-shot" for data, shots in grid.columns)]
    lines = [
        f"Accuracy in % on the test images with {_escape(model)}: mean ± standard deviation over seeds.",
        "",
        f"| {' | '.join(heads)} |",
        f"| --- |{' ---: |' * len(grid.columns)}",
    ]
    best = {column: grid.best(*column) for column in grid.columns}
    for method in grid.methods:
        texts = {column: grid.cell(method, *column).text for column in grid.columns}
        shown = [f"**{text}**" if method in best[column] else text for column, text in texts.items()]
        lines.append(f"| {method} | {' | '.join(shown)} |")
    failed = [
        f"- {cell.method} on {_escape(cell.data)}, {cell.shots}-shot, seed {seed}: {_escape(_one_line(reason))}"
        for cell in grid.cells()
        for seed, reason in cell.reasons.items()
    ]
    if failed:
        lines += ["", "Failed:", "", *failed]
    return "\n".join(lines) + "\n"


def _cell(method: str, data: str, shots: int, records: Sequence[dict[str, Any]]) -> Cell:
    done = [record for record in records if record["status"] == "done"]
    return Cell(
        method,
        data,
        shots,
        tuple(record["run"]["seed"] for record in done),
        {metric: tuple(record["metrics"][metric] for record in done) for metric in METRICS},
        {record["run"]["seed"]: record["reason"] for record in records if record["status"] == "failed"},
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _escape(text: str) -> str:
    return text.replace("|", "\\|")

"""The tables of a comparison: which columns they have, what is best, and where the paper's method is not."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kalmanclip.experiments.cells import METRICS, Cell, Grid, Place
from kalmanclip.metrics import BINS

AVERAGE = "average"
OURS = "class_residuals"
"""The method whose shortcomings every table spells out."""


@dataclass(frozen=True)
class Measure:
    """How a metric is shown.

    Attributes:
        metric: one of `METRICS`.
        title: in words.
        unit: after differences.
        scale: numbers are multiplied by this,
        digits: and rounded to so many after the point.
        sign: 1 where more is better, -1 where less is.
    """

    metric: str
    title: str
    unit: str = ""
    scale: float = 1.0
    digits: int = 1
    sign: int = 1

    def round(self, value: float) -> float:
        """The number as it is shown."""
        return round(self.scale * value, self.digits)

    def show(self, value: float) -> str:
        """The number in words."""
        return f"{self.scale * value:.{self.digits}f}"


ACCURACY = Measure("accuracy", "Accuracy in %", " points", 100)
MEASURES = (
    ACCURACY,
    Measure("top5_accuracy", "Top-5 accuracy in %", " points", 100),
    Measure("nll", "Negative log-likelihood (less is better)", digits=3, sign=-1),
    Measure("ece", f"Expected calibration error in %, {BINS} bins (less is better)", " points", 100, sign=-1),
)


@dataclass(frozen=True)
class Column:
    """One column: a place, or several to average over.

    Attributes:
        heads: what stands above it, line by line.
        places: what it is of.
    """

    heads: tuple[str, ...]
    places: tuple[Place, ...]

    @property
    def title(self) -> str:
        """All of its heads."""
        return ", ".join(self.heads)


class Table:
    """One table: rows of a grid, columns, one measure.

    Args:
        title: what it shows.
        grid: where the numbers are.
        columns: of which those without any number are left out.
        measure: which numbers.
    """

    def __init__(self, title: str, grid: Grid, columns: Iterable[Column], measure: Measure = ACCURACY) -> None:
        self.title, self.measure = title, measure
        self.methods = grid.methods
        self._cells = {(row, column): grid.average(row, column.places) for column in columns for row in grid.rows}
        told = [column for (_, column), cell in self._cells.items() if self._mean(cell) is not None or cell.reasons]
        self.columns = list(dict.fromkeys(told))
        measured = {row for (row, column), cell in self._cells.items() if cell.seeds or cell.reasons}
        self.rows = [row for row in grid.rows if row in measured]

    def __bool__(self) -> bool:
        """Whether there is any number in it, or the reason why not."""
        defined = any(self._mean(cell) is not None for cell in self._cells.values())
        return bool(self.columns) and (defined or self.measure is ACCURACY)

    def text(self, row: str, column: Column) -> str:
        """A cell as it is shown: mean ± standard deviation, and what is missing."""
        cell = self._cells[row, column]
        mean, std = cell.mean(self.measure.metric), cell.std(self.measure.metric)
        if mean is None:
            return "failed" if cell.reasons else "-"
        shown = self.measure.show(mean) + ("" if std is None else f" ± {self.measure.show(std)}")
        if cell.reasons:
            return f"{shown} ({len(cell.reasons)} failed)"
        return (
            shown if self._is_complete(cell, column) else f"{shown} ({len(cell.seeds)} of {self._seeds(column)} seeds)"
        )

    def best(self, column: Column) -> set[str]:
        """The rows whose number, as it is shown, no other exceeds; a mean over fewer seeds does not compete."""
        numbers = self._competing(column)
        return {row for row, value in numbers.items() if value == self._best_of(numbers)}

    def remark(self) -> str:
        """On which columns the paper's method is not the best, and by how much; empty if it is no row."""
        row = next((r for r in self.rows if r == OURS), None) or next(
            (r for r in self.rows if self.methods[r] == OURS), None
        )
        if row is None or len(self.rows) < 2:
            return ""
        behind, unknown = [], []
        for column in self.columns:
            numbers = self._competing(column)
            if row not in numbers:
                unknown.append(column.title)
                continue
            gap = round(abs(numbers[row] - self._best_of(numbers)), self.measure.digits)
            if gap:
                leaders = " and ".join(r for r in self.rows if r in self.best(column))
                behind.append(f"{column.title} ({gap:.{self.measure.digits}f}{self.measure.unit} behind {leaders})")
        known = len(self.columns) - len(unknown)
        if behind:
            said = f"{row} is not the best on {len(behind)} of {known} columns: {'; '.join(behind)}."
        else:
            said = f"{row} is the best, alone or with others, on {known} of {known} columns."
        return said + (f" It has no complete result on: {'; '.join(unknown)}." if unknown else "")

    def _mean(self, cell: Cell) -> float | None:
        return cell.mean(self.measure.metric)

    def _seeds(self, column: Column) -> int:
        return max((len(self._cells[row, column].seeds) for row in self.rows), default=0)

    def _is_complete(self, cell: Cell, column: Column) -> bool:
        return not cell.reasons and len(cell.seeds) == self._seeds(column)

    def _competing(self, column: Column) -> Mapping[str, float]:
        cells = {row: self._cells[row, column] for row in self.rows}
        means = {row: self._mean(cell) for row, cell in cells.items() if self._is_complete(cell, column)}
        return {row: self.measure.round(mean) for row, mean in means.items() if mean is not None}

    def _best_of(self, numbers: Mapping[str, float]) -> float:
        return self.measure.sign * max(self.measure.sign * value for value in numbers.values())


def make_tables(grid: Grid) -> list[Table]:
    """All tables that a comparison has numbers for: one per measure, shifts, and contamination."""
    own = [place for place in grid.places if not place.shift]
    clean = _columns([place for place in own if not place.share])
    tables = [Table(measure.title, grid, clean, measure) for measure in MEASURES]
    shifts = _columns([place for place in grid.places if place.shift and not place.share], shifted=True)
    tables.append(Table("Accuracy in % under distribution shift", grid, shifts))
    if any(place.share for place in own):
        tables.append(Table("Accuracy in % with corrupted training images", grid, _columns(own, conditions=True)))
    return [table for table in tables if table]


def _columns(places: Sequence[Place], shifted: bool = False, conditions: bool = False) -> list[Column]:
    """Columns of these places, data set by data set, then their averages for every number of shots."""

    def name(place: Place) -> str:
        return f"{place.data} → {place.shift}" if shifted else place.data

    def rest(place: Place) -> tuple[str, ...]:
        return (f"{place.shots}-shot", *((place.condition,) if conditions else ()))

    names = list(dict.fromkeys(name(place) for place in places))
    single = [Column((own, *rest(place)), (place,)) for own in names for place in places if name(place) == own]
    groups: dict[tuple[str, ...], list[Place]] = {}
    for place in places:
        groups.setdefault(rest(place), []).append(place)
    # an average over some of the data sets would look like one over all of them
    whole = {heads: group for heads, group in groups.items() if len(group) == len(names) > 1}
    return single + [Column((AVERAGE, *heads), tuple(group)) for heads, group in whole.items()]


def to_csv(grids: Mapping[str, Grid]) -> str:
    """One line per cell: how many seeds, mean and standard deviation of every metric, and why runs failed.

    Args:
        grids: by backbone.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    numbers = [f"{metric}_{what}" for metric in METRICS for what in ("mean", "std")]
    heads = ["model", "data", "shift", "corrupted", "damage", "shots", "method", "seeds", "failed", *numbers, "reasons"]
    writer.writerow(heads)
    for model, grid in grids.items():
        for place in grid.places:
            for row in grid.rows:
                cell = grid.cell(row, place)
                if not cell.seeds and not cell.reasons:
                    continue
                values = [value for metric in METRICS for value in (cell.mean(metric), cell.std(metric))]
                shown = ["" if value is None else repr(value) for value in values]
                reasons = "; ".join(f"seed {seed}: {_one_line(reason)}" for seed, reason in cell.reasons.items())
                where = [model, place.data, place.shift, place.share, place.damage, place.shots]
                writer.writerow([*where, row, len(cell.seeds), len(cell.reasons), *shown, reasons])
    return text.getvalue()


def to_markdown(grids: Mapping[str, Grid]) -> str:
    """The tables for people: rows are methods, the best of a column in bold, and what that means for ours beneath.

    Args:
        grids: by backbone.
    """
    lines = []
    for model, grid in grids.items():
        lines += [
            f"# Comparison with {_escape(model)}",
            "",
            "Mean ± standard deviation over seeds, on the test images; the best of a column is bold.",
        ]
        for table in make_tables(grid):
            lines += ["", f"## {table.title}", "", *_markdown(table)]
            lines += ["", _escape(table.remark())] if table.remark() else []
        failed = [
            f"- {_escape(row)} on {_escape(_called(place))}, seed {seed}: {_escape(_one_line(reason))}"
            for place in grid.places
            for row in grid.rows
            for seed, reason in grid.cell(row, place).reasons.items()
            if not place.shift
        ]
        if failed:
            lines += ["", "## Failed", "", *failed]
        lines.append("")
    return "\n".join(lines)


def _markdown(table: Table) -> list[str]:
    lines = [
        f"| method | {' | '.join(_escape(column.title) for column in table.columns)} |",
        f"| --- |{' ---: |' * len(table.columns)}",
    ]
    best = {column: table.best(column) for column in table.columns}
    for row in table.rows:
        texts = {column: table.text(row, column) for column in table.columns}
        shown = [f"**{text}**" if row in best[column] else text for column, text in texts.items()]
        lines.append(f"| {_escape(row)} | {' | '.join(shown)} |")
    return lines


def _called(place: Place) -> str:
    return f"{place.data}, {place.shots}-shot" + (f", {place.condition}" if place.share else "")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _escape(text: str) -> str:
    return text.replace("|", "\\|")

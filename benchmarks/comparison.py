"""Figures of the comparisons in results/comparison, results/shift and results/contamination, for the docs.

Nothing is run here: `kalmanclip compare` makes the records (see docs/results.md).
"""

from __future__ import annotations

import statistics
from functools import cache

from benchmarks import table as files
from benchmarks.table import SETS, markdown, shots_head, span
from kalmanclip.data.corruptions import CORRUPTIONS
from kalmanclip.experiments.cells import Cell, Grid, Place
from kalmanclip.experiments.report import by_backbone
from kalmanclip.experiments.select import Selection, choose
from kalmanclip.experiments.table import MEASURES, Column, Measure, Table

DEFAULT = "kalman"
NAMES = {
    DEFAULT: "**kalman (default)**",
    "kalman no crops": "kalman, no crops",
    "kalman-head": "kalman, preset `head`",
    "kalman-paper": "kalman, preset `paper`",
    "kalman-paper-literal": "kalman, preset `paper-literal`",
    "zero_shot": "zero-shot",
    "linear_probe": "linear probe",
    "linear_probe centre crops": "linear probe, no crops",
    "gda": "GDA",
    "tip_adapter": "Tip-Adapter",
    "tip_adapter_f": "Tip-Adapter-F",
    "clip_adapter": "CLIP-Adapter",
    "lp_plus_plus": "LP++",
    "ape": "APE",
    "ape_t": "APE-T",
    "clip_lora": "CLIP-LoRA",
    "clip_svd": "CLIP-SVD",
    "coop": "CoOp",
    "proker": "ProKeR",
    "timo": "TIMO",
    "timo_s": "TIMO-S",
}
"""What the docs call the labels of records; others are shown as they are."""


def means(measure: str, *shots: str) -> str:
    """Every method, mean over the data sets, by number of shots (all, or those given)."""
    return _drawn(_table(grid(), measure, _averages(grid(), shots)))


def overview(*shots: str) -> str:
    """Accuracy / NLL, mean over the data sets; the best at the most shots first, variants of the default left out."""
    columns = _averages(grid(), shots)
    accuracy, nll = (_table(grid(), measure, columns) for measure in ("accuracy", "nll"))
    own = [row for row in grid().rows if row == DEFAULT or grid().methods[row] != DEFAULT]
    ranked = sorted(own, key=lambda row: -(grid().average(row, columns[-1].places).mean() or 0))

    def text(row: str, column: Column) -> str:
        cell = grid().average(row, column.places)
        right, loss = cell.mean("accuracy"), cell.mean("nll")
        if right is None or loss is None:
            return "not run"
        bold = "**" if row in accuracy.best(column) & nll.best(column) else ""
        return f"{bold}{100 * right:.1f} / {loss:.2f}{bold}{_share(cell, _seeds(grid(), column.places))}"

    heads = ["method", *(column.title for column in columns)]
    return markdown(heads, [[called(row), *(text(row, column) for column in columns)] for row in ranked])


def summary() -> str:
    """In how many columns the default is the best, alone or with others: means over data sets, and single ones."""
    best, single = {}, {}
    for measure in ("accuracy", "nll", "ece"):
        for counts, columns in ((best, _averages(grid(), ())), (single, _columns(grid()))):
            table = _table(grid(), measure, columns)
            won = sum(DEFAULT in table.best(column) for column in table.columns)
            counts[measure] = f"{won} of {len(table.columns)}"
    return (
        f"- **Means over the data sets**: the default has the highest accuracy at {best['accuracy']} numbers of shots, "
        f"the lowest NLL at {best['nll']},\n  the lowest calibration error at {best['ece']}.\n"
        f"- **Data set by data set** it has the highest accuracy in {single['accuracy']} cells, the lowest NLL in "
        f"{single['nll']}, the lowest calibration error in {single['ece']}."
    )


def losses(measure: str) -> str:
    """Every data set and number of shots where another method is better than the default, and by how much.

    Differences are taken seed by seed, over the seeds that both have.
    """
    shown, lines = _measure(measure), []
    for place in _own(grid()):
        ours = grid().cell(DEFAULT, place)
        behind = []
        for row in grid().rows:
            differences = _differences(grid().cell(row, place), ours, shown)
            gain = statistics.fmean(differences) if differences else 0.0
            if shown.round(gain) > 0:
                std = f" ± {shown.show(statistics.stdev(differences))}" if len(differences) > 1 else ""
                share = _share(grid().cell(row, place), len(ours.seeds))
                behind.append((gain, f"{called(row)} by {shown.show(gain)}{std}{share}"))
        number = ours.mean(measure)
        if behind and number is not None:
            said = "; ".join(text for _, text in sorted(behind, reverse=True))
            lines.append([f"{SETS.get(place.data, place.data)}, {shots_head(place.shots)}", shown.show(number), said])
    if not lines:
        return "In no data set, at no number of shots, is another method better."
    heads = ["data set", f"default: {shown.title[0].lower()}{shown.title[1:]}", "better: by how much, ± over seeds"]
    return markdown(heads, lines, left=1).replace("---: | ---: |", "---: | --- |")


def mean(measure: str, row: str, *shots: str) -> str:
    """The mean over the data sets: one number, or the least and the largest over numbers of shots."""
    shown, columns = _measure(measure), _averages(grid(), shots)
    found = [grid().average(row, column.places).mean(measure) for column in columns]
    return span((shown.scale * number for number in found if number is not None), shown.digits)


def gain(measure: str, row: str, other: str, *shots: str) -> str:
    """By how much one method is better than another in the mean: the least and the largest over numbers of shots."""
    shown, columns = _measure(measure), _averages(grid(), shots)
    pairs = [[grid().average(name, column.places).mean(measure) for name in (row, other)] for column in columns]
    return span((shown.scale * shown.sign * (a - b) for a, b in pairs if None not in (a, b)), shown.digits)  # type: ignore[operator]


def shift(*shots: str) -> str:
    """Accuracy under shift, mean over the shifted test sets."""
    shifted = grid("shift")
    places = [place for place in shifted.places if place.shift]
    return _drawn(_table(shifted, "accuracy", _averages(shifted, shots, places)))


def shift_by_domain(*shots: str) -> str:
    """Accuracy of the default less zero-shot's, by shifted test set."""
    shifted, lines = grid("shift"), []
    numbers = [int(number) for number in shots] or sorted({place.shots for place in shifted.places})
    for name in dict.fromkeys(place.shift for place in shifted.places):
        places = [Place(data, k, shift=name) for data in {p.data for p in shifted.places} for k in numbers]
        pairs = [[shifted.cell(row, place).mean() for row in (DEFAULT, "zero_shot")] for place in places]
        gains = [f"{100 * (a - b):+.1f}".replace("-", "−") for a, b in pairs if a is not None and b is not None]
        lines.append([name.replace("_", " ") or "not shifted", *gains])
    return markdown(["default less zero-shot, in points", *map(shots_head, numbers)], lines)


def shift_better() -> str:
    """The methods that are better than the default under shift, in the mean over the shifted test sets."""
    shifted = grid("shift")
    columns = _averages(shifted, (), [place for place in shifted.places if place.shift])
    ours = [shifted.average(DEFAULT, column.places).mean() for column in columns]
    said = []
    for column, own in zip(columns, ours, strict=True):
        found = {row: shifted.average(row, column.places).mean() for row in shifted.rows}
        better = [called(row) for row, value in found.items() if None not in (value, own) and value > own]  # type: ignore[operator]
        said.append(f"*{column.title}*: {'; '.join(better) or 'none'}")
    return ". ".join(said)


def contamination() -> str:
    """Accuracy by the share of corrupted training images."""
    spoilt = grid("contamination")
    columns = [Column((f"{100 * place.share:g} %",), (place,)) for place in sorted(_own(spoilt))]
    return _drawn(_table(spoilt, "accuracy", columns))


def contaminated_gain(row: str, other: str) -> str:
    """By how many points of accuracy one row is above another: the least and the largest over the shares."""
    spoilt = grid("contamination")
    pairs = [[spoilt.cell(name, place).mean() for name in (row, other)] for place in _own(spoilt)]
    return span((100 * (a - b) for a, b in pairs if None not in (a, b)), sign=True)  # type: ignore[operator]


def corruptions() -> str:
    """How many corruptions there are for training images."""
    return str(len(CORRUPTIONS))


def called(row: str) -> str:
    """What the docs call a label."""
    if row.startswith("kalman alpha "):
        return row.replace("kalman ", "kalman, ")
    for suffix in (" as published", " at most 2000 iterations"):
        if row.endswith(suffix):
            return f"{NAMES.get(row.removesuffix(suffix), row)},{suffix}"
    return NAMES.get(row, row)


@cache
def grid(store: str = "comparison") -> Grid:
    """The cells of a store in results/ that were measured with `tiny`."""
    return by_backbone(choose(files.RESULTS / store, Selection(models=("tiny",))).records)["tiny"]


def _measure(name: str) -> Measure:
    return next(measure for measure in MEASURES if measure.metric == name)


def _own(cells: Grid) -> list[Place]:
    """Places on the data sets' own test images."""
    order = list(SETS)
    own = [place for place in cells.places if not place.shift]
    return sorted(own, key=lambda place: (order.index(place.data) if place.data in SETS else len(order), place.shots))


def _columns(cells: Grid) -> list[Column]:
    return [Column((place.data, shots_head(place.shots)), (place,)) for place in _own(cells)]


def _averages(cells: Grid, shots: tuple[str, ...], places: list[Place] | None = None) -> list[Column]:
    """One column for each number of shots: the mean over all places with so many."""
    places = _own(cells) if places is None else places
    numbers = [int(number) for number in shots] or sorted({place.shots for place in places})
    return [Column((shots_head(k),), tuple(place for place in places if place.shots == k)) for k in numbers]


def _table(cells: Grid, measure: str, columns: list[Column]) -> Table:
    return Table(measure, cells, columns, _measure(measure))


def _drawn(table: Table) -> str:
    def text(row: str, column: Column) -> str:
        return f"**{table.text(row, column)}**" if row in table.best(column) else table.text(row, column)

    heads = ["method", *(column.title for column in table.columns)]
    return markdown(heads, [[called(row), *(text(row, column) for column in table.columns)] for row in table.rows])


def _differences(cell: Cell, ours: Cell, measure: Measure) -> list[float]:
    """By how much a method is better than the default, seed by seed."""
    theirs, own = cell.values.get(measure.metric, {}), ours.values.get(measure.metric, {})
    pairs = [(theirs[seed], own[seed]) for seed in theirs if seed in own]
    return [measure.sign * (a - b) for a, b in pairs if a is not None and b is not None]


def _seeds(cells: Grid, places: tuple[Place, ...]) -> int:
    return max(len(cells.average(row, places).seeds) for row in cells.rows)


def _share(cell: Cell, wanted: int) -> str:
    return "" if len(cell.seeds) == wanted else f" ({len(cell.seeds)} of {wanted} seeds)"

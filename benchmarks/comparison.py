"""Figures of the comparisons in results/, for the docs; a figure's ``study`` names the file, without .jsonl.

Nothing is run here: `kalmanclip compare` makes the records (see docs/results.md and docs/results-tiny.md).
"""

from __future__ import annotations

import statistics
from functools import cache

import pandas as pd

from benchmarks import table as files
from benchmarks.table import SETS, markdown, shots_head, span
from kalmanclip.data.corruptions import CORRUPTIONS
from kalmanclip.errors import DataError
from kalmanclip.experiments.aggregate import Cell, Place, places_of, to_frame
from kalmanclip.experiments.figure import Picture
from kalmanclip.experiments.render import Measure, Table, title_of
from kalmanclip.experiments.report import MEASURES, Column, draw_comparison, make_table
from kalmanclip.experiments.store import Selection, choose

RESIDUALS, JOINT = "class_residuals", "joint"
OWN = (RESIDUALS, "kalman", JOINT)
"""This package's methods: what is not among them is a rival."""

BRIER = Measure("brier", "Brier score (less is better)", digits=3, sign=-1)
SECONDS = Measure("seconds", "Seconds of a run", digits=0, sign=-1)

NAMES = {
    "class_residuals no crops": "class residuals, no crops",
    RESIDUALS: "class residuals",
    JOINT: "joint",
    "class_residuals alone": "class residuals, no generative classifier",
    "kalman-head": "kalman, preset `head`",
    "kalman-paper": "kalman, preset `paper`",
    "kalman-paper-literal": "kalman, preset `paper-literal`",
    "kalman-paper-tuned": "kalman, preset `paper-tuned`",
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


def means(measure: str, study: str = "comparison") -> str:
    """Every method, mean over the data sets, by number of shots."""
    return _drawn(_table(results(study), measure, _averages(results(study), ())))


def overview(study: str = "comparison") -> str:
    """Accuracy / NLL, mean over the data sets; the best at the most shots first; no variants of class residuals."""
    frame = results(study)
    accuracy, nll = (_table(frame, measure, _averages(frame, ())) for measure in ("accuracy", "nll"))
    methods, last = methods_of(frame), len(accuracy.columns) - 1
    default = default_of(accuracy)
    kept = [i for i, (row,) in enumerate(accuracy.rows) if row == RESIDUALS or methods[row] != RESIDUALS]
    ranked = sorted(kept, key=lambda row: -(accuracy.cell(row, last).mean or 0))

    def text(row: int, column: int) -> str:
        right, loss = accuracy.cell(row, column), nll.cell(row, column)
        if right.mean is None or loss.mean is None:
            return "not run"
        bold = "**" if row in accuracy.best(column) & nll.best(column) else ""
        most = max(accuracy.cell(i, column).seeds for i in range(len(accuracy.rows)))
        return f"{bold}{100 * right.mean:.1f} / {loss.mean:.2f}{bold}{_share(right.seeds, most)}"

    heads = ["method", *map(title_of, accuracy.columns)]
    columns = range(len(accuracy.columns))
    lines = [[called(accuracy.rows[row][0], default), *(text(row, column) for column in columns)] for row in ranked]
    return markdown(heads, lines)


def summary(study: str = "comparison") -> str:
    """In how many columns the default is the best, alone or with others: means over data sets, and single ones."""
    best, single, frame, fewer = {}, {}, results(study), False
    for measure in ("accuracy", "nll", "ece"):
        for counts, columns in ((best, _averages(frame, ())), (single, _columns(frame))):
            table = _table(frame, measure, columns)
            ours = table.rows.index((default_of(table),))
            won = sum(ours in table.best(column) for column in range(len(table.columns)))
            counts[measure] = f"{won} of {len(table.columns)}"
            fewer |= any(0 < cell.seeds < table.cell(ours, j).seeds for (_, j), cell in table.cells.items())
    return (
        f"- **Means over the data sets**: the default has the highest accuracy at {best['accuracy']} numbers of shots, "
        f"the lowest NLL at {best['nll']},\n  the lowest calibration error at {best['ece']}.\n"
        f"- **Data set by data set** it has the highest accuracy in {single['accuracy']} cells, the lowest NLL in "
        f"{single['nll']}, the lowest calibration error in {single['ece']}."
        + (
            "\n- A number over fewer seeds than the default's does not compete; the lists below have it."
            if fewer
            else ""
        )
    )


def losses(measure: str, study: str = "comparison") -> str:
    """Every data set and number of shots where another method is better than the default, and by how much.

    Differences are taken seed by seed, over the seeds that both have.
    """
    frame = results(study)
    shown, lines, columns = _measure(measure), [], _columns(frame)
    table = _table(frame, measure, columns)
    default = table.rows.index((default_of(table),))
    for j, column in enumerate(columns):
        ours, behind = table.cell(default, j), []
        for i, (row,) in enumerate(table.rows):
            theirs = table.cell(i, j)
            gains = [shown.sign * apart for apart in _apart(theirs, ours)]
            gain = statistics.fmean(gains) if gains else 0.0
            if shown.round(gain) > 0:
                std = f" ± {shown.show(statistics.stdev(gains))}" if len(gains) > 1 else ""
                behind.append((gain, f"{called(row)} by {shown.show(gain)}{std}{_share(len(gains), ours.seeds)}"))
        if behind and ours.mean is not None:
            said = "; ".join(text for _, text in sorted(behind, reverse=True))
            (place,) = column.places
            name = f"{SETS.get(place.data, place.data)}, {shots_head(place.shots)}"
            lines.append([name, shown.show(ours.mean), said])
    if not lines:
        return "In no data set, at no number of shots, is another method better."
    heads = ["data set", f"default: {shown.title[0].lower()}{shown.title[1:]}", "better: by how much, ± over seeds"]
    return markdown(heads, lines, left=1).replace("---: | ---: |", "---: | --- |")


def mean(measure: str, row: str, study: str = "comparison", *shots: str) -> str:
    """The mean over the data sets: one number, or the least and the largest over numbers of shots."""
    shown, frame = _measure(measure), results(study)
    found = (cell.mean for cell in _cells(frame, measure, row, _averages(frame, shots)))
    return span((shown.scale * number for number in found if number is not None), shown.digits)


def gain(measure: str, row: str, other: str, study: str = "comparison", *shots: str) -> str:
    """By how much one method is better than another in the mean: the least and the largest over numbers of shots."""
    shown, frame = _measure(measure), results(study)
    gains = _gains(frame, measure, row, other, _averages(frame, shots))
    return span((shown.scale * shown.sign * gain for gain in gains), shown.digits)


def seconds(study: str = "comparison") -> str:
    """Seconds of a run, mean over data sets and seeds."""
    frame = results(study)
    return _drawn(make_table("", frame, _averages(frame, ()), SECONDS), plain=True)


def shift(study: str = "shift") -> str:
    """Accuracy under shift, mean over the shifted test sets."""
    return _drawn(_table(results(study), "accuracy", _shifted(results(study))))


def shift_by_domain(study: str = "shift") -> str:
    """Accuracy of the default less zero-shot's, by shifted test set."""
    frame, lines = results(study), []
    places = places_of(frame)
    default = default_of(_table(frame, "accuracy", _shifted(frame)))
    shots = sorted({place.shots for place in places})
    for name in dict.fromkeys(place.shift for place in places):
        gains = (
            _gains(frame, "accuracy", default, "zero_shot", [column])
            for column in _averages(frame, tuple(map(str, shots)), [place for place in places if place.shift == name])
        )
        shown = [span((100 * gain for gain in found), sign=True) if found else "-" for found in gains]
        lines.append([name.replace("_", " ") or "not shifted", *shown])
    return markdown(["default less zero-shot, in points", *map(shots_head, shots)], lines)


def shift_better(study: str = "shift") -> str:
    """The methods that are better than the default under shift, in the mean over the shifted test sets."""
    table, said = _table(results(study), "accuracy", _shifted(results(study))), []
    default = table.rows.index((default_of(table),))
    for column, heads in enumerate(table.columns):
        ours, better = table.cell(default, column), []
        for i, (row,) in enumerate(table.rows):
            theirs = table.cell(i, column)
            apart = _apart(theirs, ours)
            if apart and statistics.fmean(apart) > 0:
                better.append(called(row) + _share(len(apart), ours.seeds))
        said.append(f"*{title_of(heads)}*: {'; '.join(better) or 'none'}")
    return ". ".join(said)


def contamination() -> str:
    """Accuracy by the share of corrupted training images."""
    spoilt = results("contamination")
    return _drawn(_table(spoilt, "accuracy", _by_share(spoilt)))


def contaminated_gain(row: str, other: str) -> str:
    """By how many points of accuracy one row is above another: the least and the largest over the shares."""
    spoilt = results("contamination")
    return span((100 * d for d in _gains(spoilt, "accuracy", row, other, _by_share(spoilt))), sign=True)


def pictures() -> dict[str, Picture]:
    """Accuracy against shots, by the names of the files in docs/assets."""
    frames = {study: results(study) for study in ("comparison", "comparison-vitb16")}
    return {
        study: draw_comparison(frame.assign(row=[called(row).replace("`", "") for row in frame["row"]]))
        for study, frame in frames.items()
    }


def corruptions() -> str:
    """How many corruptions there are for training images."""
    return str(len(CORRUPTIONS))


def default_of(table: Table) -> str:
    """The row of the default: `joint` where it was measured, on a GPU; without one, class residuals alone."""
    return JOINT if (JOINT,) in table.rows else RESIDUALS


def called(row: str, default: str = "") -> str:
    """What the docs call a label, the default's in bold."""
    if row == default:
        return f"**{NAMES[row]} (default)**"
    if row.startswith(f"{RESIDUALS} alpha "):
        return row.replace(f"{RESIDUALS} ", "class residuals, ")
    for suffix in (" as published", " at most 2000 iterations"):
        if row.endswith(suffix):
            return f"{NAMES.get(row.removesuffix(suffix), row)},{suffix}"
    return NAMES.get(row, row)


@cache
def results(study: str) -> pd.DataFrame:
    """The frame of results/STUDY.jsonl, which are of one model."""
    path = files.RESULTS / f"{study}.jsonl"
    frame = to_frame(choose(path, Selection()).records)
    if frame["model"].nunique() != 1:
        raise DataError(f"{path} has results of several models. Keep those of each in a file of its own.")
    return frame


def methods_of(frame: pd.DataFrame) -> dict[str, str]:
    """The method of every row."""
    return dict(zip(frame["row"], frame["method"], strict=True))


def _measure(name: str) -> Measure:
    return next(measure for measure in (*MEASURES, BRIER) if measure.metric == name)


def _own(frame: pd.DataFrame) -> list[Place]:
    """Places on the data sets' own test images."""
    order = list(SETS)
    own = [place for place in places_of(frame) if not place.shift]
    return sorted(own, key=lambda place: (order.index(place.data) if place.data in SETS else len(order), place.shots))


def _columns(frame: pd.DataFrame) -> list[Column]:
    return [Column((place.data, shots_head(place.shots)), (place,)) for place in _own(frame)]


def _by_share(frame: pd.DataFrame) -> list[Column]:
    return [Column((f"{100 * place.share:g} %",), (place,)) for place in sorted(_own(frame))]


def _shifted(frame: pd.DataFrame) -> list[Column]:
    return _averages(frame, (), [place for place in places_of(frame) if place.shift])


def _averages(frame: pd.DataFrame, shots: tuple[str, ...], places: list[Place] | None = None) -> list[Column]:
    """One column for each number of shots: the mean over all places with so many."""
    places = _own(frame) if places is None else places
    numbers = [int(number) for number in shots] or sorted({place.shots for place in places})
    return [Column((shots_head(k),), tuple(place for place in places if place.shots == k)) for k in numbers]


def _table(frame: pd.DataFrame, measure: str, columns: list[Column]) -> Table:
    return make_table(measure, frame, columns, _measure(measure))


def _cells(frame: pd.DataFrame, measure: str, row: str, columns: list[Column]) -> list[Cell]:
    """Of one row, by column."""
    table = _table(frame[frame["row"] == row], measure, columns)
    found = {heads: table.cell(0, j) for j, heads in enumerate(table.columns)}
    return [found.get(column.heads, Cell()) for column in columns]


def _gains(frame: pd.DataFrame, measure: str, row: str, other: str, columns: list[Column]) -> list[float]:
    """One row's numbers less another's, by column: means over the seeds that both have, where there are any."""
    pairs = zip(*(_cells(frame, measure, name, columns) for name in (row, other)), strict=True)
    return [statistics.fmean(apart) for one, two in pairs if (apart := _apart(one, two))]


def _apart(one: Cell, two: Cell) -> list[float]:
    """One cell's numbers less another's, seed by seed, of the seeds that both have."""
    return [number - two.by_seed[seed] for seed, number in one.by_seed.items() if seed in two.by_seed]


def _drawn(table: Table, plain: bool = False) -> str:
    """All rows and columns; ``plain``: without deviations over the seeds, and nothing bold."""

    def text(row: int, column: int) -> str:
        cell = table.cell(row, column)
        if plain and cell.mean is not None:
            return table.measure.show(cell.mean)
        return f"**{table.text(row, column)}**" if not plain and row in table.best(column) else table.text(row, column)

    columns = range(len(table.columns))
    default = default_of(table)
    lines = [[called(row, default), *(text(i, column) for column in columns)] for i, (row,) in enumerate(table.rows)]
    return markdown(["method", *map(title_of, table.columns)], lines)


def _share(seeds: int, wanted: int) -> str:
    return "" if seeds == wanted else f" ({seeds} of {wanted} seeds)"

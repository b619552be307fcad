"""Figures of the comparisons in results/{comparison,shift}[-vitb16].jsonl and contamination.jsonl, for the docs.

Nothing is run here: `kalmanclip compare` makes the records (see docs/results.md).
"""

from __future__ import annotations

import statistics
from functools import cache

import pandas as pd

from benchmarks import table as files
from benchmarks.table import SETS, markdown, shots_head, span
from kalmanclip.data.corruptions import CORRUPTIONS
from kalmanclip.experiments.aggregate import Place, places_of, to_frame
from kalmanclip.experiments.figure import Picture
from kalmanclip.experiments.render import Measure, Table, title_of
from kalmanclip.experiments.report import MEASURES, Column, draw_comparison, make_table
from kalmanclip.experiments.store import Selection, choose

RESIDUALS, JOINT = "class_residuals", "joint"
OWN = (RESIDUALS, "kalman", JOINT)
"""This package's methods: what is not among them is a rival."""

BRIER = Measure("brier", "Brier score (less is better)", digits=3, sign=-1)

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
    """Accuracy / NLL, mean over the data sets; the best at the most shots first, variants of the default left out."""
    frame = results(study)
    accuracy, nll = (_table(frame, measure, _averages(frame, ())) for measure in ("accuracy", "nll"))
    methods, last = methods_of(frame), len(accuracy.columns) - 1
    default = default_of(accuracy)
    own = [i for i, (row,) in enumerate(accuracy.rows) if row in (default, RESIDUALS) or methods[row] not in OWN]
    ranked = sorted(own, key=lambda row: -(accuracy.cell(row, last).mean or 0))

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
    best, single, frame = {}, {}, results(study)
    for measure in ("accuracy", "nll", "ece"):
        for counts, columns in ((best, _averages(frame, ())), (single, _columns(frame))):
            table = _table(frame, measure, columns)
            ours = table.rows.index((default_of(table),))
            won = sum(ours in table.best(column) for column in range(len(table.columns)))
            counts[measure] = f"{won} of {len(table.columns)}"
    return (
        f"- **Means over the data sets**: the default has the highest accuracy at {best['accuracy']} numbers of shots, "
        f"the lowest NLL at {best['nll']},\n  the lowest calibration error at {best['ece']}.\n"
        f"- **Data set by data set** it has the highest accuracy in {single['accuracy']} cells, the lowest NLL in "
        f"{single['nll']}, the lowest calibration error in {single['ece']}."
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
            gains = [shown.sign * (theirs.by_seed[s] - ours.by_seed[s]) for s in theirs.by_seed if s in ours.by_seed]
            gain = statistics.fmean(gains) if gains else 0.0
            if shown.round(gain) > 0:
                std = f" ± {shown.show(statistics.stdev(gains))}" if len(gains) > 1 else ""
                behind.append((gain, f"{called(row)} by {shown.show(gain)}{std}{_share(theirs.seeds, ours.seeds)}"))
        if behind and ours.mean is not None:
            said = "; ".join(text for _, text in sorted(behind, reverse=True))
            (place,) = column.places
            name = f"{SETS.get(place.data, place.data)}, {shots_head(place.shots)}"
            lines.append([name, shown.show(ours.mean), said])
    if not lines:
        return "In no data set, at no number of shots, is another method better."
    heads = ["data set", f"default: {shown.title[0].lower()}{shown.title[1:]}", "better: by how much, ± over seeds"]
    return markdown(heads, lines, left=1).replace("---: | ---: |", "---: | --- |")


def mean(measure: str, row: str, *shots: str) -> str:
    """The mean over the data sets: one number, or the least and the largest over numbers of shots."""
    shown, found = (
        _measure(measure),
        _means(results("comparison"), measure, row, _averages(results("comparison"), shots)),
    )
    return span((shown.scale * number for number in found if number is not None), shown.digits)


def gain(measure: str, row: str, other: str, *shots: str, study: str = "comparison") -> str:
    """By how much one method is better than another in the mean: the least and the largest over numbers of shots."""
    shown, columns = _measure(measure), _averages(results(study), shots)
    one, two = (_means(results(study), measure, name, columns) for name in (row, other))
    return span((shown.scale * shown.sign * d for d in _less(one, two)), shown.digits)


def gain_vitb16(measure: str, row: str, other: str, *shots: str) -> str:
    """The same on the real image tower."""
    return gain(measure, row, other, *shots, study="comparison-vitb16")


def seconds(study: str) -> str:
    """Seconds of a fit, mean over data sets and seeds."""
    frame = results(study)
    by_shots = frame[(frame["status"] == "done") & (frame["shift"] == "")].pivot_table("seconds", "row", "shots")
    default = default_of(_table(frame, "accuracy", _averages(frame, ())))
    lines = [
        [called(row, default), *("-" if number != number else f"{number:.0f}" for number in by_shots.loc[row])]
        for row in dict.fromkeys(frame["row"])
    ]
    return markdown(["method", *map(shots_head, by_shots.columns)], lines)


def shift(*shots: str, study: str = "shift") -> str:
    """Accuracy under shift, mean over the shifted test sets."""
    return _drawn(_table(results(study), "accuracy", _shifted(*shots, study=study)))


def shift_vitb16(*shots: str) -> str:
    """The same on the real image tower."""
    return shift(*shots, study="shift-vitb16")


def shift_by_domain_vitb16(*shots: str) -> str:
    """Accuracy of the default less zero-shot's, by shifted test set, on the real image tower."""
    return shift_by_domain(*shots, study="shift-vitb16")


def shift_by_domain(*shots: str, study: str = "shift") -> str:
    """Accuracy of the default less zero-shot's, by shifted test set."""
    frame, lines = results(study), []
    places = places_of(frame)
    default = default_of(_table(frame, "accuracy", _shifted(*shots, study=study)))
    numbers = [int(number) for number in shots] or sorted({place.shots for place in places})
    for name in dict.fromkeys(place.shift for place in places):
        columns = [Column((p.data, str(k)), (p,)) for k in numbers for p in places if (p.shift, p.shots) == (name, k)]
        one, two = (_means(frame, "accuracy", row, columns) for row in (default, "zero_shot"))
        gains = [f"{100 * d:+.1f}".replace("-", "−") for d in _less(one, two)]
        lines.append([name.replace("_", " ") or "not shifted", *gains])
    return markdown(["default less zero-shot, in points", *map(shots_head, numbers)], lines)


def shift_better() -> str:
    """The methods that are better than the default under shift, in the mean over the shifted test sets."""
    table, said = _table(results("shift"), "accuracy", _shifted()), []
    default = table.rows.index((default_of(table),))
    for column, heads in enumerate(table.columns):
        own = table.cell(default, column).mean or 0.0
        better = [called(row) for i, (row,) in enumerate(table.rows) if (table.cell(i, column).mean or 0.0) > own]
        said.append(f"*{title_of(heads)}*: {'; '.join(better) or 'none'}")
    return ". ".join(said)


def contamination() -> str:
    """Accuracy by the share of corrupted training images."""
    spoilt = results("contamination")
    return _drawn(_table(spoilt, "accuracy", _by_share(spoilt)))


def contaminated_gain(row: str, other: str) -> str:
    """By how many points of accuracy one row is above another: the least and the largest over the shares."""
    spoilt = results("contamination")
    one, two = (_means(spoilt, "accuracy", name, _by_share(spoilt)) for name in (row, other))
    return span((100 * d for d in _less(one, two)), sign=True)


def figure() -> Picture:
    """Accuracy against shots, as the docs show it."""
    return draw_comparison(results("comparison"))


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
    """The frame of results/STUDY.jsonl: of one model, or of what was measured with `tiny`."""
    models = () if study.endswith("vitb16") else ("tiny",)
    return to_frame(choose(files.RESULTS / f"{study}.jsonl", Selection(models=models)).records)


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


def _shifted(*shots: str, study: str = "shift") -> list[Column]:
    frame = results(study)
    return _averages(frame, shots, [place for place in places_of(frame) if place.shift])


def _averages(frame: pd.DataFrame, shots: tuple[str, ...], places: list[Place] | None = None) -> list[Column]:
    """One column for each number of shots: the mean over all places with so many."""
    places = _own(frame) if places is None else places
    numbers = [int(number) for number in shots] or sorted({place.shots for place in places})
    return [Column((shots_head(k),), tuple(place for place in places if place.shots == k)) for k in numbers]


def _table(frame: pd.DataFrame, measure: str, columns: list[Column]) -> Table:
    return make_table(measure, frame, columns, _measure(measure))


def _means(frame: pd.DataFrame, measure: str, row: str, columns: list[Column]) -> list[float | None]:
    """Of one row, by column."""
    table = _table(frame[frame["row"] == row], measure, columns)
    found = {heads: table.cell(0, j).mean for j, heads in enumerate(table.columns)}
    return [found.get(column.heads) for column in columns]


def _less(one: list[float | None], two: list[float | None]) -> list[float]:
    """Differences where both are known."""
    return [a - b for a, b in zip(one, two, strict=True) if a is not None and b is not None]


def _drawn(table: Table) -> str:
    def text(row: int, column: int) -> str:
        return f"**{table.text(row, column)}**" if row in table.best(column) else table.text(row, column)

    columns = range(len(table.columns))
    default = default_of(table)
    lines = [[called(row, default), *(text(i, column) for column in columns)] for i, (row,) in enumerate(table.rows)]
    return markdown(["method", *map(title_of, table.columns)], lines)


def _share(seeds: int, wanted: int) -> str:
    return "" if seeds == wanted else f" ({seeds} of {wanted} seeds)"

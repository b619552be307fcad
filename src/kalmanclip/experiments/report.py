"""What a comparison leaves for people and programs: table.csv, table.md, results.jsonl, figure.png, figure.svg."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from kalmanclip.errors import DataError
from kalmanclip.experiments.aggregate import Cell, Place, fill_cells, places_of, to_csv, to_frame
from kalmanclip.experiments.base_to_new import HARMONIC, NEW
from kalmanclip.experiments.figure import Picture, draw_lines
from kalmanclip.experiments.render import Measure, Table, escape, escape_latex, title_of, to_latex, to_markdown
from kalmanclip.experiments.store import Record, read_jsonl, write_jsonl
from kalmanclip.files import write_atomic
from kalmanclip.metrics import BINS

RESULTS = "results.jsonl"
"""The file of a report with one line per run."""
AVERAGE = "average"
OURS = "class_residuals"
"""The method whose shortcomings every table spells out."""
ACCURACY = Measure("accuracy", "Accuracy in %", " points", 100)
MEASURES = (
    ACCURACY,
    Measure("top5_accuracy", "Top-5 accuracy in %", " points", 100),
    Measure("nll", "Negative log-likelihood (less is better)", digits=3, sign=-1),
    Measure("ece", f"Expected calibration error in %, {BINS} bins (less is better)", " points", 100, sign=-1),
)
CAPTION = "mean ± standard deviation over seeds. The best of a column is bold."


class Column(NamedTuple):
    """One column of a table: what stands above it, line by line, and what it is of; several places are averaged."""

    heads: tuple[str, ...]
    places: tuple[Place, ...]


def make_table(title: str, frame: pd.DataFrame, columns: Iterable[Column], measure: Measure = ACCURACY) -> Table:
    """Return one table of a frame of results with one backbone; rows and columns without anything are left out."""
    columns, rows = list(columns), list(dict.fromkeys(frame["row"]))
    wanted = [
        {"i": i, "j": j, "row": row, **place._asdict()}
        for i, row in enumerate(rows)
        for j, column in enumerate(columns)
        for place in column.places
    ]
    cells = fill_cells(frame, wanted, measure.metric)
    across = sorted({i for i, _ in cells})
    down = sorted({j for (_, j), cell in cells.items() if cell.mean is not None or cell.reasons})
    return Table(
        title,
        ("method",),
        [(rows[i],) for i in across],
        [columns[j].heads for j in down],
        {(across.index(i), down.index(j)): cell for (i, j), cell in cells.items() if j in down},
        measure,
    )


def make_tables(frame: pd.DataFrame) -> list[Table]:
    """Return all tables that a comparison with one backbone has numbers for: measures, shifts, and contamination."""
    places = places_of(frame)
    own = [place for place in places if not place.shift]
    clean = _columns([place for place in own if not place.share])
    tables = [make_table(measure.title, frame, clean, measure) for measure in MEASURES]
    moved = [place for place in places if place.shift and not place.share]
    new = {NEW: "Accuracy in % on new classes", HARMONIC: "Harmonic mean of base and new accuracy in %"}
    for name, title in new.items():
        tables.append(make_table(title, frame, _columns([place for place in moved if place.shift == name])))
    shifts = _columns([place for place in moved if place.shift not in new], shifted=True)
    tables.append(make_table("Accuracy in % under distribution shift", frame, shifts))
    if any(place.share for place in own):
        spoilt = _columns(own, conditions=True)
        tables.append(make_table("Accuracy in % with corrupted training images", frame, spoilt))

    def has_content(table: Table) -> bool:
        defined = any(cell.mean is not None for cell in table.cells.values())
        return bool(table.columns) and (defined or table.measure is ACCURACY)

    return [table for table in tables if has_content(table)]


def remark(frame: pd.DataFrame, table: Table) -> str:
    """Return on which columns the paper's method is not the best, and by how much; empty if it is no row."""
    methods = dict(zip(frame["row"], frame["method"], strict=True))
    rows = [titles[0] for titles in table.rows]
    own = [i for i, row in enumerate(rows) if methods[row] == OURS]
    if not own or len(rows) < 2:
        return ""
    ours = rows.index(OURS) if OURS in rows else own[0]
    behind, unknown, measure = [], [], table.measure
    for column, heads in enumerate(table.columns):
        numbers, best = table.numbers(column), table.best(column)
        if ours not in numbers:
            unknown.append(title_of(heads))
            continue
        gap = round(abs(numbers[ours] - numbers[min(best)]), measure.digits)
        if gap:
            leaders = " and ".join(rows[i] for i in sorted(best))
            behind.append(f"{title_of(heads)} ({gap:.{measure.digits}f}{measure.unit} behind {leaders})")
    known = len(table.columns) - len(unknown)
    if behind:
        sentence = f"{rows[ours]} is not the best on {len(behind)} of {known} columns: {'; '.join(behind)}."
    else:
        sentence = f"{rows[ours]} is the best, alone or with others, on {known} of {known} columns."
    return sentence + (f" It has no complete result on: {'; '.join(unknown)}." if unknown else "")


def report_markdown(frame: pd.DataFrame) -> str:
    """Return all tables for people, with what they mean for the paper's method beneath, and what failed."""
    lines = []
    for model, part in frame.groupby("model", sort=False):
        lines += [f"# Comparison with {escape(model)}", "", f"On the test images: {CAPTION}"]
        for table in make_tables(part):
            lines += ["", f"## {table.title}", "", to_markdown(table)]
            lines += ["", escape(sentence)] if (sentence := remark(part, table)) else []
        failed = part[(part["status"] == "failed") & (part["shift"] == "")]
        lines += ["", "## Failed", ""] if len(failed) else []
        for run in failed.itertuples():
            where = f"{run.data}, {run.shots}-shot"
            where += f", {Place(run.data, run.shots, run.share, run.damage).condition}" if run.share else ""
            lines.append(f"- {escape(f'{run.row} on {where}, seed {run.seed}: {run.reason}')}")
        lines.append("")
    return "\n".join(lines)


def report_latex(frame: pd.DataFrame) -> str:
    """Return the same tables for LaTeX."""
    lines = [r"% Needs \usepackage{booktabs}.", ""]
    for model, part in frame.groupby("model", sort=False):
        for table in make_tables(part):
            lines.append(to_latex(table, f"{model}, {CAPTION}"))
            lines += [escape_latex(sentence), ""] if (sentence := remark(part, table)) else []
    return "\n".join(lines)


def write_report(folder: Path, records: Sequence[Record]) -> pd.DataFrame:
    """Write all files of the report into ``folder`` and return the frame of results.

    With several backbones each has figures of its own, such as figure_RN50-openai.png.
    """
    frame = to_frame(records)
    write_jsonl(folder / RESULTS, records)
    write_atomic(folder / "table.csv", to_csv(frame), DataError)
    write_atomic(folder / "table.md", report_markdown(frame), DataError)
    for model, part in frame.groupby("model", sort=False):
        name = "figure" if frame["model"].nunique() == 1 else "figure_" + re.sub(r"[^\w.-]+", "-", model)
        draw_comparison(part).save(folder / name)
    return frame


def report_is_fuller(folder: Path, records: Sequence[Record]) -> int:
    """Return how many runs the report in a folder is of that are not among these records; 0 without a report."""
    if not (folder / RESULTS).exists():
        return 0
    before, _ = read_jsonl(folder / RESULTS)
    return len({record["address"] for record in before} - {record["address"] for record in records})


def draw_comparison(frame: pd.DataFrame) -> Picture:
    """Draw the figure of the few-shot literature: accuracy against shots, the average first, then every data set.

    Runs with corrupted training images are shown only where there are no others.
    """
    own = [place for place in places_of(frame) if not place.shift]
    panels: dict[str, list[Place]] = {}
    for place in [place for place in own if not place.share] or own:
        title = f"{place.data}, {place.condition}" if place.share else place.data
        panels.setdefault(title, []).append(place)
    shots = sorted({place.shots for places in panels.values() for place in places})
    columns = [Column((title, str(p.shots)), (p,)) for title, places in panels.items() for p in places]
    for k in shots if len(panels) > 1 else ():
        found = [place for places in panels.values() for place in places if place.shots == k]
        if len(found) == len(panels):
            columns.insert(0, Column((f"{AVERAGE} of {len(panels)}", str(k)), tuple(found)))
    table = make_table("", frame, columns)
    lines: dict[str, dict[str, dict[float, Cell]]] = {}
    for j, (title, number) in enumerate(table.columns):
        for i, (row,) in enumerate(table.rows):
            percent = {seed: 100 * value for seed, value in table.cell(i, j).by_seed.items()}
            lines.setdefault(title, {}).setdefault(row, {})[int(number)] = Cell(percent)
    return draw_lines("Accuracy against images per class, a panel per data set", lines)


def _columns(places: Sequence[Place], shifted: bool = False, conditions: bool = False) -> list[Column]:
    """Return columns of these places, data set by data set, then their averages for every number of shots."""

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

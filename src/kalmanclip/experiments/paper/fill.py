"""From records to a filled table of the paper, and that as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from kalmanclip.experiments.aggregate import Cell, fill_cells, to_frame
from kalmanclip.experiments.figure import Picture, draw_bars, draw_lines
from kalmanclip.experiments.paper.findings import RULE
from kalmanclip.experiments.paper.printed import READINGS
from kalmanclip.experiments.paper.study import ZERO_SHOT, Form, Sets, Study, title_of
from kalmanclip.experiments.render import Table, escape, to_markdown
from kalmanclip.experiments.spec import Run
from kalmanclip.experiments.store import Record

_LEAST = 0.9
CRITERION = (
    "A run counts as diverged if its numbers broke down (scores that are not finite, or no step that could be taken), "
    f"or if it ends with less than {_LEAST:.0%} of the zero-shot accuracy and a larger negative log-likelihood than "
    "zero-shot: it knows less than before it learned."
)
NOT_RUN = "not run yet"


@dataclass(frozen=True)
class Sheet:
    """One table or figure of the paper, filled in.

    Attributes:
        study: what it is of.
        form: what its rows and columns are about.
        table: the numbers.
        findings: whether what the paper says about it holds here, one sentence each.
        missing: data sets that could not run, and why.
        pictures: drawn from the same numbers.
        runs: how many runs it is made of, of which so many are done or failed.
    """

    study: Study
    form: Form
    table: Table
    findings: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    pictures: tuple[Picture, ...] = ()
    runs: int = 0
    done: int = 0
    failed: int = 0

    def reasons(self) -> list[str]:
        """Return why numbers are missing, every reason once with the data sets that it is the reason for."""
        found: dict[str, list[str]] = {}
        for name, reason in self.missing.items():
            found.setdefault(reason, []).append(name)
        for _, cell in sorted(self.table.cells.items()):
            if cell.missing:
                found.setdefault(cell.missing, [])
        return [f"{', '.join(names)}: {reason}" if names else reason for reason, names in found.items()]

    def progress(self) -> str:
        """Return how many runs are behind it."""
        return f"{self.done} of {self.runs} runs done" + (f", {self.failed} failed" if self.failed else "")

    def stems(self) -> list[str]:
        """Return the names, without suffix, of the files of its pictures: "figure2", "figure2-2", ..."""
        return [self.study.name + (f"-{n}" if n > 1 else "") for n in range(1, len(self.pictures) + 1)]


def fill(
    study: Study,
    sets: Sets,
    records: Sequence[Record],
    missing: Mapping[str, str] | None = None,
    planned: Sequence[Run] = (),
) -> Sheet:
    """Return the filled sheet of a study.

    Args:
        study: what is shown.
        sets: its data sets with the names of their shifts, also those that are not here.
        records: of its runs, under the names of the plan; runs without a record are shown as missing.
        missing: by name of a data set or shift, why it is not here.
        planned: all its runs.
    """
    missing = missing or {}
    learned = {record["run"]["data"] for record in records if record["label"] != ZERO_SHOT}
    # what could stand in but was not run fills no rows with dashes
    idle = [name for name in sets if name not in study.sets and study.others != "beside" and name not in learned]
    frame = _judged(study, to_frame([record for record in records if record["run"]["data"] not in idle]))
    form = study.form(study, {name: shifts for name, shifts in sets.items() if name not in idle})
    missing = {**missing, **dict.fromkeys(idle, "could stand in; not run")}
    table = Table(
        study.title,
        form.row_heads,
        [row.titles for row in form.rows],
        [column.titles for column in form.columns],
        _cells(study, form, frame, missing),
        grouped=form.row_heads[0] == "data set",
    )
    runs = frame if frame.empty else frame[frame["shift"] == ""]
    failed = 0 if frame.empty else int(((runs["status"] == "failed") & runs["accuracy"].isna()).sum())
    absent = {title_of(name): reason for name, reason in missing.items() if name in {*sets, *study.shifts}}
    count = sum(run.data not in idle for run in planned)
    sheet = Sheet(study, form, table, missing=absent, runs=count, done=len(runs) - failed, failed=failed)
    if not sheet.done:
        return sheet
    sheet = replace(sheet, findings=tuple(study.findings(sheet)))
    return replace(sheet, pictures=tuple(study.draw(sheet)) if study.draw else ())


def _judged(study: Study, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with ``value``, in percent or points, and with the status "diverged" where a run did."""
    if frame.empty:
        return frame
    start = frame[(frame["label"] == ZERO_SHOT) & (frame["status"] == "done") & (frame["shift"] == "")]
    start = start.drop_duplicates(["data", "seed"]).set_index(["data", "seed"])[["accuracy", "nll"]]
    frame = frame.join(start.add_suffix("_before"), on=["data", "seed"])
    frame["value"] = 100 * (frame["accuracy"] - (frame["accuracy_before"] if study.gain else 0))
    if study.gain:
        lost = (frame["status"] == "done") & frame["accuracy_before"].isna()
        frame.loc[lost, ["status", "reason"]] = ["failed", f"{ZERO_SHOT} is missing"]
    if study.criterion:
        worse = frame["accuracy"] < _LEAST * frame["accuracy_before"]
        unlearned = (frame["label"] != ZERO_SHOT) & worse & (frame["nll"] > frame["nll_before"])
        frame.loc[unlearned | (frame["error"] == "NumericalError"), "status"] = "diverged"
    return frame


def _cells(study: Study, form: Form, frame: pd.DataFrame, missing: Mapping[str, str]) -> dict[tuple[int, int], Cell]:
    places = {(i, j): form.at(i, j) for i in range(len(form.rows)) for j in range(len(form.columns))}
    names = ("label", "data", "shots", "share")
    wanted = [
        {"i": i, "j": j, **{name: getattr(at, name) for name in names}, "shift": shift}
        for (i, j), at in places.items()
        for shift in at.shifts
    ]
    found = fill_cells(frame, wanted, "value")
    cells = {}
    for place, at in places.items():
        cell = found.get(place, Cell())
        # one failure of a cell is given where it has nothing else
        why = "" if cell.seeds or cell.diverged else next(iter(cell.reasons.values()), missing.get(at.data, NOT_RUN))
        cells[place] = replace(cell, printed=study.printed(at), missing=why)
    return cells


def sheet_markdown(sheet: Sheet) -> str:
    """Return a section: title, findings, caption, the table, pictures (as files beside it), and what is missing."""
    caption = [*sheet.study.caption, *((RULE,) if any("±" in finding for finding in sheet.findings) else ())]
    lines = [f"## {escape(sheet.study.title)}", "", *(f"- {escape(finding)}" for finding in sheet.findings)]
    lines += [line for paragraph in caption for line in ("", escape(paragraph))]
    lines += ["", "Mean ± standard deviation, the best of a column bold. In brackets: the paper's, and the difference."]
    lines += ["", to_markdown(sheet.table)]
    for stem, picture in zip(sheet.stems(), sheet.pictures, strict=True):
        lines += ["", f"![{escape(picture.title)}]({stem}.png)"]
    reasons = sheet.reasons()
    lines += ["", "What is missing:", "", *(f"- {escape(reason)}" for reason in reasons)] if reasons else []
    lines += ["", f"Diverged: {escape(CRITERION)}"] if sheet.study.criterion else []
    return "\n".join([*lines, "", f"{sheet.progress()}."]) + "\n"


def figure_2(sheet: Sheet) -> list[Picture]:
    """Draw a panel per data set: accuracy against shots. What the paper has and we have not is shown, too."""
    panels: dict[str, dict[str, dict[float, Cell]]] = {}
    for column, (data,) in enumerate(sheet.table.columns):
        for row, line in enumerate(sheet.form.rows):
            cell, label = sheet.table.cell(row, column), line.fixes["label"]
            if cell.mean is not None or cell.printed is not None:
                # what learns nothing is the same at every number of shots
                shots = sheet.study.shots if label == ZERO_SHOT else (line.fixes["shots"],)
                panels.setdefault(data, {}).setdefault(label, {}).update(dict.fromkeys(shots, cell))
    title = "Accuracy against images per class, a panel per data set"
    return [draw_lines(title, panels, ours=READINGS)] if panels else []


def figure_3(sheet: Sheet) -> list[Picture]:
    """Draw bars: gains over zero-shot, a picture for each of our readings."""
    drawn = []
    for column, (label,) in enumerate(sheet.table.columns):
        cells = {name: sheet.table.cell(row, column) for row, (name,) in enumerate(sheet.table.rows)}
        if any(cell.mean is not None for cell in cells.values()):
            drawn.append(draw_bars(f"Gain over zero-shot of {label}, by data set", cells))
    return drawn

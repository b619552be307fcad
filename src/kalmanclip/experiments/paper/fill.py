"""From records to a filled sheet."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kalmanclip.experiments.cells import share_of
from kalmanclip.experiments.paper.forms import ZERO_SHOT, title_of
from kalmanclip.experiments.paper.gaps import RULE
from kalmanclip.experiments.paper.sheet import Entry, Sheet
from kalmanclip.experiments.paper.study import At, Study
from kalmanclip.experiments.run import Run
from kalmanclip.experiments.sources import Source

Record = Mapping[str, Any]

_KEPT = 0.9
CRITERION = (
    "A run counts as diverged if its numbers broke down (scores that are not finite, or no step that could be taken), "
    f"or if it ends with less than {_KEPT:.0%} of the zero-shot accuracy and a larger negative log-likelihood than "
    "zero-shot: it knows less than before it learned."
)
NOT_RUN = "not run yet"


@dataclass(frozen=True)
class _Key:
    label: str
    data: str
    shots: int
    share: float


def fill(
    study: Study,
    sets: Mapping[str, Source | None],
    records: Sequence[Record],
    missing: Mapping[str, str],
    planned: Sequence[Run],
) -> Sheet:
    """The sheet of a study.

    Args:
        study: what is shown.
        sets: its data sets; None for those that are not here.
        records: of its runs, under the names of the plan; runs without a record are shown as missing.
        missing: by name of a data set or shift, why it is not here.
        planned: all its runs.
    """
    learned = {record["run"]["data"] for record in records if record["label"] != ZERO_SHOT}
    # what could stand in but was not run fills no rows with dashes
    idle = [name for name in sets if name not in study.sets and study.others != "beside" and name not in learned]
    results = _Results([record for record in records if record["run"]["data"] not in idle], study.criterion)
    missing = {**missing, **dict.fromkeys(idle, "could stand in; not run")}
    shown = {name: source for name, source in sets.items() if name not in idle}
    shifts = {
        name: [shift.name for shift in source.shifts] if source else list(study.shifts)
        for name, source in shown.items()
    }
    form = study.form(study, shifts)
    entries = {}
    for i, row in enumerate(form.rows):
        for j, column in enumerate(form.columns):
            at = At(**{**row.fixes, **column.fixes})
            absent = missing.get(at.data, "") if sets.get(at.data) is None else ""
            entry = Entry(missing=absent) if absent else results.entry(at)
            entries[i, j] = replace(entry, printed=study.printed(at))
    wanted = {*sets, *study.shifts}
    sheet = Sheet(
        name=study.name,
        title=study.title,
        caption=study.caption,
        row_heads=form.row_heads,
        rows=tuple(row.titles for row in form.rows),
        columns=tuple(", ".join(column.titles) for column in form.columns),
        entries=entries,
        missing={title_of(name): reason for name, reason in missing.items() if name in wanted},
        criterion=CRITERION if study.criterion else "",
        runs=sum(run.data not in idle for run in planned),
        done=results.done,
        failed=results.failed,
        seconds=results.seconds,
    )
    findings = tuple(study.findings(sheet)) if results.done else ()
    rule = (RULE,) if any("±" in finding for finding in findings) else ()
    sheet = replace(sheet, findings=findings, caption=sheet.caption + rule)
    return replace(sheet, pictures=tuple(study.draw(sheet)) if study.draw and results.done else ())


class _Results:
    """The records of a study, by what they are about and by seed."""

    def __init__(self, records: Sequence[Record], criterion: bool) -> None:
        self._found: dict[_Key, dict[int, Record]] = {}
        self._zero_shot: dict[str, dict[int, Record]] = {}
        self._criterion = criterion
        self.done = self.failed = 0
        self.seconds = 0.0
        for record in records:
            run = record["run"]
            key = _Key(record["label"], run["data"], run["shots"], share_of(record))
            self._found.setdefault(key, {})[run["seed"]] = record
            if record["label"] == ZERO_SHOT:
                self._zero_shot.setdefault(run["data"], {})[run["seed"]] = record
            broke = record["status"] == "failed" and not self._broke_down(record)
            self.done += not broke
            self.failed += broke
            self.seconds += sum(record.get("seconds", {}).values())

    def entry(self, at: At) -> Entry:
        records = self._found.get(_Key(at.label, at.data, at.shots, at.share), {})
        values: dict[int, float] = {}
        diverged, reasons = 0, []
        for seed, record in records.items():
            if self._diverged(record, self._zero_shot.get(at.data, {}).get(seed)):
                diverged += 1
            elif record["status"] == "done":
                before = self._zero_shot.get(at.data, {}).get(seed)
                if not at.gain:
                    values[seed] = _accuracy(record, at.shifts)
                elif before is not None and before["status"] == "done":
                    values[seed] = _accuracy(record, at.shifts) - _accuracy(before, at.shifts)
                else:
                    reasons.append(f"{ZERO_SHOT} is missing")
            elif record["status"] == "failed":
                reasons.append(str(record["reason"]))
        if not values:
            reason = "" if diverged else next(iter(reasons), NOT_RUN)
            return Entry(seeds=diverged, diverged=diverged, missing=reason)
        std = statistics.stdev(values.values()) if len(values) > 1 else None
        return Entry(statistics.fmean(values.values()), std, len(values) + diverged, diverged, by_seed=values)

    def _diverged(self, record: Record, before: Record | None) -> bool:
        if not self._criterion or record["status"] == "failed":
            return self._broke_down(record)
        if before is None or before["status"] != "done" or record is before:
            return False
        now, then = record["metrics"], before["metrics"]
        return bool(now["accuracy"] < _KEPT * then["accuracy"] and now["nll"] > then["nll"])

    def _broke_down(self, record: Record) -> bool:
        """Whether a run failed in a way that is a finding about the method."""
        return self._criterion and record["status"] == "failed" and record.get("error") == "NumericalError"


def _accuracy(record: Record, shifts: Sequence[str]) -> float:
    """In percent; the mean over several test sets."""
    parts = [record["shifts"][shift] if shift else record["metrics"] for shift in shifts]
    return 100 * statistics.fmean(part["accuracy"] for part in parts)

"""From records to a frame of results, and from a frame to cells: what was measured in a place, over the seeds."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pandas as pd

from kalmanclip.config import flatten
from kalmanclip.data.corruptions import SEVERITIES
from kalmanclip.experiments.store import Record, label_of, share_of

METRICS = ("accuracy", "top5_accuracy", "nll", "ece", "brier", "failure_auroc")
PLACE = ["data", "shots", "share", "damage", "shift"]


class Place(NamedTuple):
    """Where something is measured: a data set at K shots, with a share of corrupted training images.

    Attributes:
        damage: how they are corrupted, where it is not as usual.
        shift: the name of the extra test set; empty for the data set's own test images.
    """

    data: str
    shots: int
    share: float = 0.0
    damage: str = ""
    shift: str = ""

    @property
    def condition(self) -> str:
        """What happened to the training images, in words."""
        return f"{100 * self.share:g} % corrupted" + (f" ({self.damage})" if self.damage else "")


@dataclass(frozen=True)
class Cell:
    """One cell of a table, over the seeds.

    Attributes:
        by_seed: the numbers of the seeds that are done; NaN where the metric is not defined.
        reasons: why other seeds failed, by seed.
        diverged: how many further seeds diverged, where that is asked.
        printed: what the paper has in this cell: a number, a word such as "Diverge", or None.
        missing: why there is no number; empty where there is one, or where none is wanted.
    """

    by_seed: Mapping[int, float] = field(default_factory=dict)
    reasons: Mapping[int, str] = field(default_factory=dict)
    diverged: int = 0
    printed: float | str | None = None
    missing: str = ""

    @property
    def seeds(self) -> int:
        """How many are done."""
        return len(self.by_seed)

    @property
    def mean(self) -> float | None:
        """Over the done seeds; None without any, or where the metric is not defined on all of them."""
        mean = statistics.fmean(self.by_seed.values()) if self.by_seed else float("nan")
        return None if mean != mean else mean

    @property
    def std(self) -> float | None:
        """The sample's standard deviation (n - 1) over the done seeds; None with fewer than two."""
        return None if self.mean is None or self.seeds < 2 else statistics.stdev(self.by_seed.values())

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's; None unless both are numbers."""
        if self.mean is None or not isinstance(self.printed, (int, float)):
            return None
        return self.mean - self.printed


def to_frame(records: Sequence[Record]) -> pd.DataFrame:
    """Return one line per run and test set, in the order of the records, shifts after the test images they belong to.

    Columns: ``model``, ``label``, ``method``, ``row`` (the label, with the options in which records of one label
    differ), those of `Place`, ``seed``, ``status``, ``reason``, ``error``, ``seconds``, ``address``, ``code`` and
    `METRICS`. Where several records are of the same row, place and seed (with and without shifts, say), one counts.
    """
    rows, names = _row_names(records), _data_names(records)
    lines = [
        {
            "model": record["run"]["model"],
            "label": label_of(record),
            "method": record["run"]["method"],
            "row": row,
            **place._asdict(),
            "seed": record["run"]["seed"],
            "status": record["status"],
            "reason": record.get("reason", ""),
            "error": record.get("error", ""),
            "seconds": sum(record["seconds"].values()) if "seconds" in record else None,
            "address": record.get("address", ""),
            "code": record.get("code", {}).get("source", ""),
            "rank": (record["status"] == "done", len(record.get("shifts", ()))),
            **{metric: _metrics(record, place.shift).get(metric) for metric in METRICS},
        }
        for record, row, data in zip(records, rows, names, strict=True)
        for place in _places(record, data)
    ]
    frame = pd.DataFrame(lines)
    if frame.empty:
        return frame
    frame[list(METRICS)] = frame[list(METRICS)].astype(float)
    # of duplicates, those with most to say come last, and count
    ranked = frame.sort_values(["rank", "address"], kind="stable")
    return ranked.drop_duplicates(["model", "row", *PLACE, "seed"], keep="last").sort_index().drop(columns="rank")


def places_of(frame: pd.DataFrame) -> list[Place]:
    """Return the places of a frame, in its order."""
    return [Place(*values) for values in frame[PLACE].drop_duplicates().itertuples(index=False)]


def fill_cells(frame: pd.DataFrame, wanted: Iterable[Mapping[str, Any]], value: str) -> dict[tuple[int, int], Cell]:
    """Return cells by row and column number.

    Args:
        frame: of results.
        wanted: what the cells are made of: row ``i``, column ``j``, and the values that lines of the frame must have.
            Where a cell has several entries it is their mean, seed by seed, over the seeds that are done in all.
        value: the column with the numbers.
    """
    asked = pd.DataFrame(list(wanted))
    if asked.empty or frame.empty:
        return {}
    lines = asked.merge(frame, on=[name for name in asked if name not in ("i", "j")])
    entries = asked.groupby(["i", "j"]).size()
    done = lines[lines["status"] == "done"].groupby(["i", "j", "seed"])[value]
    values: dict[tuple[int, int], dict[int, float]] = {}
    for (i, j, seed), numbers in done:
        if len(numbers) == entries[i, j]:
            values.setdefault((i, j), {})[seed] = statistics.fmean(numbers)
    reasons: dict[tuple[int, int], dict[int, str]] = {}
    for line in lines[lines["status"] == "failed"].sort_values("seed").itertuples():
        reasons.setdefault((line.i, line.j), {})[line.seed] = line.reason
    diverged = lines[lines["status"] == "diverged"].groupby(["i", "j"])["seed"].nunique()
    known = [*values, *reasons, *diverged.index]
    return {at: Cell(values.get(at, {}), reasons.get(at, {}), int(diverged.get(at, 0))) for at in dict.fromkeys(known)}


def to_csv(frame: pd.DataFrame) -> str:
    """Return one line per model, place and row: seeds, mean and deviation of every metric, and why runs failed."""
    by = ["model", *PLACE, "row"]
    done = frame[frame["status"] == "done"]
    table = frame[by].drop_duplicates().set_index(by)
    table["seeds"] = done.groupby(by).size()
    failed = frame[frame["status"] == "failed"].copy()
    failed["reasons"] = [
        f"seed {s}: {' '.join(r.split())}" for s, r in zip(failed["seed"], failed["reason"], strict=True)
    ]
    table["failed"] = failed.groupby(by).size()
    table = table.fillna(0).astype({"seeds": int, "failed": int})
    for metric in METRICS:
        groups = done.groupby(by)[metric]
        whole = groups.count() == groups.size()  # defined for all seeds
        table[f"{metric}_mean"], table[f"{metric}_std"] = groups.mean().where(whole), groups.std().where(whole)
    table["reasons"] = failed.groupby(by)["reasons"].agg("; ".join)
    names = {"share": "corrupted", "row": "method"}
    text: str = table.reset_index().rename(columns=names).to_csv(index=False, lineterminator="\n")
    return text


def _metrics(record: Record, shift: str) -> Mapping[str, Any]:
    if record["status"] != "done":
        return {}
    metrics: Mapping[str, Any] = record["shifts"][shift] if shift else record["metrics"]
    return metrics


def _places(record: Record, data: str) -> list[Place]:
    run = record["run"]
    spoilt = run.get("contamination") or {}
    damage = []
    if spoilt and spoilt["severities"] != list(SEVERITIES):
        damage.append(f"severity {', '.join(map(str, spoilt['severities']))}")
    if spoilt and spoilt["seed"] != run["seed"]:
        damage.append(f"seed {spoilt['seed']}")
    common = (data, run["shots"], share_of(record), ", ".join(damage))
    measured = dict.fromkeys((*run.get("shifts", {}), *record.get("shifts", {})))
    return [Place(*common, shift=shift) for shift in ("", *measured)]


def _row_names(records: Sequence[Record]) -> list[str]:
    """Return the label of every record; where records of one label differ in options, these are added to it.

    Options that the variant sets by data set count where they differ on the same one.
    """
    options = [_options(record) for record in records]
    alike: dict[tuple[str, str], list[tuple[str, dict[str, Any]]]] = {}
    for record, own in zip(records, options, strict=True):
        known = alike.setdefault((record["run"]["model"], label_of(record)), [])
        if (entry := (record["run"]["data"], own)) not in known:
            known.append(entry)
    names = []
    for record, own in zip(records, options, strict=True):
        data, by_data, label = record["run"]["data"], record.get("by_data", ()), label_of(record)
        known = alike[record["run"]["model"], label]
        varying = [
            o for o in own if any(other.get(o) != own[o] for place, other in known if place == data or o not in by_data)
        ]
        shown = ", ".join(f"{o}={own[o]}" for o in varying)
        names.append(f"{label} ({shown})" if shown else label)
    return names


def _options(record: Record) -> dict[str, Any]:
    """Return the options of a run by dotted name, without the seed where it is the run's."""
    flat = {name: value for name, value in flatten(record["run"]["config"]).items() if value != {}}
    seed = record["run"]["seed"]  # of a part of the method, too
    return {name: value for name, value in flat.items() if (name.rpartition(".")[2], value) != ("seed", seed)}


def _data_names(records: Sequence[Record]) -> list[str]:
    """Return the name of every record's data set; different ones of one name, or with other prompts, get a number."""
    runs = [record["run"] for record in records]
    marks = [hashlib.sha256(f"{r['fingerprint']} {r['templates']}".encode()).hexdigest()[:6] for r in runs]
    found: dict[tuple[str, str], set[str]] = {}
    for run, mark in zip(runs, marks, strict=True):
        found.setdefault((run["model"], run["data"]), set()).add(mark)
    return [
        run["data"] if len(found[run["model"], run["data"]]) == 1 else f"{run['data']} #{mark}"
        for run, mark in zip(runs, marks, strict=True)
    ]

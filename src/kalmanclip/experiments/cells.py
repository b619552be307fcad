"""From records to cells: what a row of the table measured in a place, over the seeds."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kalmanclip.config import flatten
from kalmanclip.data.corruptions import SEVERITIES

METRICS = ("accuracy", "top5_accuracy", "nll", "ece", "brier", "failure_auroc")

Record = dict[str, Any]


def label_of(record: Mapping[str, Any]) -> str:
    """What tables call the method of a run; results from before there were labels have the method's name only."""
    label: str = record.get("label") or record["run"]["method"]
    return label


def share_of(record: Mapping[str, Any]) -> float:
    """The share of the training images that were corrupted."""
    share: float = (record["run"].get("contamination") or {}).get("share", 0.0)
    return share


@dataclass(frozen=True, order=True)
class Place:
    """Where something is measured.

    Attributes:
        data: the data set's name.
        shots: K.
        share: of the training images that are corrupted.
        damage: how, where it is not as usual.
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
    """One row in one place, or averaged over several, over the seeds.

    Attributes:
        values: by metric and seed, for the seeds that are done; None where a metric is not defined.
        reasons: why the other seeds failed, by seed.
    """

    values: Mapping[str, Mapping[int, float | None]] = field(default_factory=dict)
    reasons: Mapping[int, str] = field(default_factory=dict)

    @property
    def seeds(self) -> list[int]:
        """Those that are done."""
        return list(self.values.get(METRICS[0], {}))

    def mean(self, metric: str = "accuracy") -> float | None:
        """Over the done seeds; None without any, or where the metric is not defined on all of them."""
        values = self._numbers(metric)
        return statistics.fmean(values) if values else None

    def std(self, metric: str = "accuracy") -> float | None:
        """The sample's standard deviation (n - 1) over the done seeds; None with fewer than two."""
        values = self._numbers(metric)
        return statistics.stdev(values) if len(values) > 1 else None

    def _numbers(self, metric: str) -> list[float]:
        values = self.values.get(metric, {}).values()
        numbers = [value for value in values if value is not None]
        return numbers if len(numbers) == len(values) else []


class Grid:
    """The cells of a comparison with one backbone, by row and place.

    Args:
        records: as `run_one` makes them, with one backbone. Where several are of the same row, place and seed (with
            and without shifts, say), one of them counts.

    Attributes:
        rows: labels, in the order of the records.
        methods: the method of each row.
        places: in the order of the records; shifts come after the test images they belong to.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        # those with most to say last, so that they are the ones that count
        ranked = sorted(records, key=lambda r: (r["status"] == "done", len(r.get("shifts", ())), r["address"]))
        name_row, name_data = _row_names(records), _data_names(records)
        self.methods = {name_row(record): record["run"]["method"] for record in records}
        self.rows = list(self.methods)
        self._found: dict[tuple[str, Place], dict[int, Record]] = {}
        for record in ranked:
            for place in _places(record, name_data(record)):
                self._found.setdefault((name_row(record), place), {})[record["run"]["seed"]] = record
        order = (place for record in records for place in _places(record, name_data(record)))
        self.places = list(dict.fromkeys(order))

    def cell(self, row: str, place: Place) -> Cell:
        """One of them; empty if nothing was measured there."""
        records = dict(sorted(self._found.get((row, place), {}).items()))
        done = {seed: _metrics(record, place.shift) for seed, record in records.items() if record["status"] == "done"}
        failed = {seed: record["reason"] for seed, record in records.items() if record["status"] == "failed"}
        values = {metric: {seed: numbers.get(metric) for seed, numbers in done.items()} for metric in METRICS}
        return Cell(values, failed)

    def average(self, row: str, places: Sequence[Place]) -> Cell:
        """The mean over places, seed by seed; for seeds that are done in all of them."""
        cells = [self.cell(row, place) for place in places]
        if len(cells) == 1:
            return cells[0]
        common = [seed for seed in cells[0].seeds if all(seed in cell.seeds for cell in cells)]
        values = {
            metric: {seed: _mean(cell.values[metric][seed] for cell in cells) for seed in common} for metric in METRICS
        }
        return Cell(values, {seed: reason for cell in cells for seed, reason in cell.reasons.items()})


def _metrics(record: Record, shift: str) -> Mapping[str, float | None]:
    metrics: Mapping[str, float | None] = record["shifts"][shift] if shift else record["metrics"]
    return metrics


def _mean(values: Iterable[float | None]) -> float | None:
    found = list(values)
    numbers = [value for value in found if value is not None]
    return statistics.fmean(numbers) if len(numbers) == len(found) else None


def _places(record: Record, data: str) -> list[Place]:
    run = record["run"]
    spoilt = run.get("contamination") or {}
    damage = []
    if spoilt and spoilt["severities"] != list(SEVERITIES):
        damage.append(f"severity {', '.join(map(str, spoilt['severities']))}")
    if spoilt and spoilt["seed"] != run["seed"]:
        damage.append(f"seed {spoilt['seed']}")
    common = (data, run["shots"], share_of(record), ", ".join(damage))
    return [Place(*common, shift=shift) for shift in ("", *run.get("shifts", {}))]


def _row_names(records: Sequence[Record]) -> Callable[[Record], str]:
    """The label of a record; where records of one label have different options, these are added to it.

    Options that the row sets by data set count where they differ on the same one.
    """

    options: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {}
    for record in records:
        flat, data = _options(record), record["run"]["data"]
        options.setdefault(label_of(record), {})[json.dumps([data, flat], sort_keys=True)] = data, flat

    def name(record: Record) -> str:
        own, data, by_data = _options(record), record["run"]["data"], record.get("by_data", ())
        known = options[label_of(record)].values()
        varying = [
            o for o in own if any(other.get(o) != own[o] for place, other in known if place == data or o not in by_data)
        ]
        shown = ", ".join(f"{o}={own[o]}" for o in varying)
        return f"{label_of(record)} ({shown})" if shown else label_of(record)

    return name


def _options(record: Record) -> dict[str, Any]:
    """The options of a run by dotted name, without the seed where it is the run's."""
    run = record["run"]
    flat = {name: value for name, value in flatten(run["config"]).items() if value != {}}
    if flat.get("seed") == run["seed"]:
        del flat["seed"]
    return flat


def _data_names(records: Sequence[Record]) -> Callable[[Record], str]:
    """The data set of a record; different ones of one name, or with different prompts, are told apart by a number."""

    def identity(record: Record) -> str:
        run = record["run"]
        return hashlib.sha256(f"{run['fingerprint']} {run['templates']}".encode()).hexdigest()[:6]

    found: dict[str, set[str]] = {}
    for record in records:
        found.setdefault(record["run"]["data"], set()).add(identity(record))

    def name(record: Record) -> str:
        data: str = record["run"]["data"]
        return data if len(found[data]) == 1 else f"{data} #{identity(record)}"

    return name

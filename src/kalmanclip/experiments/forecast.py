"""How long runs that are still to be done will take, by the times of those that are done."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kalmanclip.experiments.spec import Run
from kalmanclip.experiments.store import Store


@dataclass(frozen=True)
class Forecast:
    """What is still to be done of some runs.

    Attributes:
        runs: how many there are.
        open: how many of them are to be done.
        seconds: that these will take, one after the other; None: nothing like some of them was done yet.
    """

    runs: int
    open: int
    seconds: float | None


def forecast(runs: Iterable[Run], store: Store) -> dict[str, Forecast]:
    """Return forecasts by the label of the method; ``store``: with what is done."""
    runs = list({run.address: run for run in runs}.values())
    records = store.records() if store.folder.is_dir() else []
    known = [record for record in records if record["status"] == "done" and record.get("seconds")]
    found: dict[str, Forecast] = {}
    for label in dict.fromkeys(run.label for run in runs):
        own = [run for run in runs if run.label == label]
        left = [run for run in own if store.record(run) is None]
        times = [_seconds(run, known) for run in left]
        whole = None if None in times else sum(time for time in times if time is not None)
        found[label] = Forecast(len(own), len(left), whole)
    return found


def together(parts: Iterable[Forecast]) -> Forecast:
    """Return the sum of forecasts."""
    parts = list(parts)
    times = [part.seconds for part in parts]
    whole = None if None in times else sum(time for time in times if time is not None)
    return Forecast(sum(part.runs for part in parts), sum(part.open for part in parts), whole)


def _seconds(run: Run, known: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the median time of the runs most like this one: of its method and backbone, its data, its shots."""
    alike = [r for r in known if (r["run"]["method"], r["run"]["model"]) == (run.method, run.model)]
    if not alike:
        return None

    def distance(record: Mapping[str, Any]) -> tuple[bool, float]:
        other = record["run"]
        return other["fingerprint"] != run.fingerprint, abs(math.log(other["shots"] / run.shots))

    nearest = min(map(distance, alike))
    return statistics.median(sum(r["seconds"].values()) for r in alike if distance(r) == nearest)

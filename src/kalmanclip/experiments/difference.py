"""Two stores compared: the same runs with other numbers, the same places with other options, and what one lacks."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kalmanclip.config import flatten
from kalmanclip.experiments.cells import label_of, share_of
from kalmanclip.experiments.store import Record

Changes = Mapping[str, tuple[Any, Any]]
"""By name, what it was and what it is."""
ABSENT = "absent"
"""What stands in changes for an option that one of two runs does not have."""


@dataclass(frozen=True)
class Pair:
    """One run in both stores, or two runs that stand for each other.

    Attributes:
        a: the record in the first store.
        b: that in the second.
    """

    a: Record
    b: Record

    @property
    def label(self) -> str:
        """What the first store calls the method."""
        return label_of(self.a)

    @cached_property
    def metrics(self) -> Changes:
        """By name, the numbers of both that both have: "nll", and "nll on sketch" for a shift.

        Empty unless both are done. A metric that is not defined on the test images is None.
        """
        numbers = [_numbers(record) for record in (self.a, self.b)]
        return {name: (value, numbers[1][name]) for name, value in numbers[0].items() if name in numbers[1]}

    def change(self, metric: str = "accuracy") -> float | None:
        """By how much a metric is more in the second; None where it is not known in both."""
        a, b = self.metrics.get(metric, (None, None))
        return None if a is None or b is None else b - a

    def different(self, tolerance: float = 0.0) -> Changes:
        """The metrics that differ by more than a tolerance, or are defined in one only; and the status, if it does.

        Seconds are no result: they never count.
        """
        changed = {name: (a, b) for name, (a, b) in self.metrics.items() if not _close(a, b, tolerance)}
        states = self.a["status"], self.b["status"]
        return changed if states[0] == states[1] else {"status": states}

    @cached_property
    def run(self) -> Changes:
        """What differs in what was run, by dotted name: options of the method, templates, backbone, ..."""
        return _changes(_asked(self.a), _asked(self.b))

    @cached_property
    def circumstances(self) -> Changes:
        """What differs in what they ran with: the code, packages, the device, ..."""
        return _changes(*(flatten({"code": r.get("code"), **r.get("environment", {})}) for r in (self.a, self.b)))

    def seconds(self) -> tuple[float, float]:
        """How long learning and predicting took."""
        a, b = (sum(record.get("seconds", {}).values()) for record in (self.a, self.b))
        return a, b


@dataclass(frozen=True)
class Summary:
    """A group of pairs in one line.

    Attributes:
        label: of the method.
        pairs: all of the group, whether they differ or not.
        different: how many of them do.
        changes: what differs in what was run, the same for all of them.
    """

    label: str
    pairs: Sequence[Pair]
    different: int
    changes: Changes

    def mean(self, metric: str) -> float | None:
        """The mean change, where it is known."""
        known = [change for pair in self.pairs if (change := pair.change(metric)) is not None]
        return statistics.fmean(known) if known else None

    def largest(self, metric: str = "accuracy") -> float | None:
        """The change that is largest in either direction."""
        known = [change for pair in self.pairs if (change := pair.change(metric)) is not None]
        return max(known, key=abs) if known else None

    def seconds(self) -> tuple[float, float]:
        """How long all of them took."""
        a, b = zip(*(pair.seconds() for pair in self.pairs), strict=True)
        return sum(a), sum(b)


class Difference:
    """What two sets of records have in common, and what they have not.

    Runs are the same if their addresses are: everything a result depends on besides the code. Of the others, two
    that are called the same on the same data set, shots, seed and share of corrupted images stand for each other:
    somebody has changed an option.

    Args:
        first: records of one store.
        second: records of the other.
        tolerance: metrics may differ by so much and still be the same.

    Attributes:
        common: the same run in both.
        replaced: other runs that stand for each other.
        only_first: runs that nothing in the second stands for.
        only_second: and the other way round.
    """

    def __init__(self, first: Sequence[Record], second: Sequence[Record], tolerance: float = 0.0) -> None:
        self.tolerance = tolerance
        there = {record["address"]: record for record in second}
        here = {record["address"] for record in first}
        self.common = [Pair(record, there[record["address"]]) for record in first if record["address"] in there]
        rest = [r for r in first if r["address"] not in there], [r for r in second if r["address"] not in here]
        self.replaced = _stand_ins(*rest)
        taken = {id(record) for pair in self.replaced for record in (pair.a, pair.b)}
        self.only_first, self.only_second = ([r for r in records if id(r) not in taken] for records in rest)

    @cached_property
    def different(self) -> list[Pair]:
        """The same runs whose results differ: first those done in one store only, then by how much."""

        def size(pair: Pair) -> tuple[Any, ...]:
            changes = pair.different(self.tolerance).values()
            known = [abs(b - a) for a, b in changes if isinstance(a, float) and isinstance(b, float)]
            # an accuracy and a likelihood have no common scale: the accuracy counts, the others break ties
            return len(known) < len(changes), abs(pair.change() or 0.0), max(known, default=0.0)

        return sorted((pair for pair in self.common if pair.different(self.tolerance)), key=size, reverse=True)

    @property
    def same(self) -> bool:
        """Whether both hold the same runs with the same results, within the tolerance."""
        return not (self.different or self.replaced or self.only_first or self.only_second)

    def circumstances(self) -> dict[str, int]:
        """What the same runs were made with that differs, and how often; most often first."""
        return dict(Counter(name for pair in self.common for name in pair.circumstances).most_common())

    def rows(self) -> list[Summary]:
        """The same runs by method, in the order of the records."""
        return self._summaries(self.common, options=False)

    def replaced_rows(self) -> list[Summary]:
        """The runs that stand for each other by method and by what differs in what was run."""
        return self._summaries(self.replaced, options=True)

    def _summaries(self, pairs: Iterable[Pair], options: bool) -> list[Summary]:
        groups: dict[tuple[str, str], list[Pair]] = {}
        for pair in pairs:
            groups.setdefault((pair.label, repr(sorted(pair.run.items())) if options else ""), []).append(pair)
        return [
            Summary(label, group, sum(bool(p.different(self.tolerance)) for p in group), group[0].run)
            for (label, _), group in groups.items()
        ]


def _stand_ins(first: Sequence[Record], second: Sequence[Record]) -> list[Pair]:
    """Records of the same place, each with the one that was run most like it; none is used twice."""
    there: dict[tuple[Any, ...], list[Record]] = {}
    for record in second:
        there.setdefault(_place(record), []).append(record)
    candidates = [Pair(record, other) for record in first for other in there.get(_place(record), ())]
    # the sort is stable, so equally good ones pair up in the order of the records
    candidates.sort(key=lambda pair: ("model" in pair.run, len(pair.run)))
    found: dict[int, Pair] = {}
    used: set[int] = set()
    for pair in candidates:
        if id(pair.a) not in found and id(pair.b) not in used:
            found[id(pair.a)] = pair
            used.add(id(pair.b))
    return [found[id(record)] for record in first if id(record) in found]


def _place(record: Record) -> tuple[Any, ...]:
    run = record["run"]
    return label_of(record), run["data"], run["shots"], run["seed"], share_of(record)


def _asked(record: Record) -> dict[str, Any]:
    """All that makes the address, by dotted name; options of the method go without a prefix."""
    run = {name: value for name, value in record["run"].items() if name not in ("data", "config")}
    flat = flatten(run) | flatten(record["run"]["config"])
    return {name: value for name, value in flat.items() if value != {}}


def _numbers(record: Record) -> dict[str, float | None]:
    """The metrics that are single numbers, those on shifts as well."""
    if record["status"] != "done":
        return {}
    tables = {"": record["metrics"]} | {f" on {name}": table for name, table in record.get("shifts", {}).items()}
    return {
        metric + where: None if value is None else float(value)
        for where, table in tables.items()
        for metric, value in table.items()
        if value is None or isinstance(value, (int, float))
    }


def _changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> Changes:
    both = {name: (a.get(name, ABSENT), b.get(name, ABSENT)) for name in {**a, **b}}
    return {name: (one, other) for name, (one, other) in both.items() if one != other}


def _close(a: float | None, b: float | None, tolerance: float) -> bool:
    return a is b if a is None or b is None else abs(b - a) <= tolerance

"""Two sets of results compared, as a merge of two frames: what changed, what was run otherwise, and what one lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from kalmanclip.config import flatten
from kalmanclip.experiments.store import Record, label_of, share_of, single_numbers

ABSENT = "absent"
"""What stands in changes for an option that one of two runs does not have."""
PLACE = ["label", "data", "shots", "seed", "share"]


@dataclass(frozen=True)
class Difference:
    """What two sets of records have in common, and what they have not.

    Runs are the same if their addresses are: everything a result depends on besides the code. Of the others, two
    that are called the same on the same data set, shots, seed and share of corrupted images stand for each other:
    somebody has changed an option.

    Attributes:
        common: the same run in both, a line each: what identifies it, ``status_a``, ``status_b``, ``seconds_a``,
            ``seconds_b``, ``made`` (what it ran with that differs) and ``differs`` (whether the results do).
        replaced: other runs that stand for each other, likewise, with ``run``: what differs in what was run.
        only_a: runs of the first that nothing in the second stands for.
        only_b: and the other way round.
        metrics: of all these pairs, by ``address_a``, ``address_b`` and ``metric``: ``a``, ``b``, ``change`` and
            ``differs``. Metrics that one of them did not measure are not compared.
    """

    common: pd.DataFrame
    replaced: pd.DataFrame
    only_a: pd.DataFrame
    only_b: pd.DataFrame
    metrics: pd.DataFrame

    @property
    def same(self) -> bool:
        """Whether both hold the same runs with the same results, within the tolerance."""
        lonely = len(self.replaced) + len(self.only_a) + len(self.only_b)
        return not lonely and not self.common["differs"].any()

    def different(self) -> pd.DataFrame:
        """Return the same runs whose results differ: first those done in one only, then by how much."""
        found = self.common[self.common["differs"]].copy()
        changed = self.metrics[self.metrics["differs"]]
        undefined = set(changed[changed["change"].isna()]["address_a"])
        accuracy = self.changes(found, "accuracy").abs().fillna(0.0)
        largest = changed.groupby("address_a")["change"].agg(lambda change: change.abs().max())
        found["first"] = (found["status_a"] != found["status_b"]) | found["address_a"].isin(undefined)
        # an accuracy and a likelihood have no common scale: the accuracy counts, the others break ties
        found["accuracy"], found["largest"] = accuracy, found["address_a"].map(largest).astype(float).fillna(0.0)
        return found.sort_values(["first", "accuracy", "largest"], ascending=False, kind="stable")

    def changes(self, pairs: pd.DataFrame, metric: str) -> pd.Series:
        """Return by how much a metric is more in the second, for these pairs; NaN where it is not known in both."""
        change = self.metrics[self.metrics["metric"] == metric].set_index("address_a")["change"]
        return pairs["address_a"].map(change).astype(float)  # without any, the type would be that of the addresses

    def metrics_of(self, pair: Any, all_of_them: bool = False) -> dict[str, tuple[Any, Any]]:
        """Return the numbers of one pair, those that differ or all, by metric; where it is not the same, the status."""
        if pair.status_a != pair.status_b:
            return {} if all_of_them else {"status": (pair.status_a, pair.status_b)}
        own = self.metrics[self.metrics["address_a"] == pair.address_a]
        own = own if all_of_them else own[own["differs"]]
        numbers = own[["a", "b"]].astype(object).where(own[["a", "b"]].notna(), None)
        return dict(zip(own["metric"], numbers.itertuples(index=False, name=None), strict=True))

    def made_with(self) -> dict[str, int]:
        """Return what the same runs were made with that differs, and how often; most often first."""
        return dict(Counter(name for names in self.common["made"] for name in names).most_common())


def compare_results(first: Sequence[Record], second: Sequence[Record], tolerance: float = 0.0) -> Difference:
    """Compare two sets of records.

    Args:
        first: records of one store.
        second: records of the other.
        tolerance: metrics may differ by so much and still be the same. Seconds are no result: they never count.
    """
    a, b = _runs(first), _runs(second)
    identity = [*PLACE, "model"]
    common = a.merge(b.drop(columns=identity), on="address", suffixes=("_a", "_b"))
    common["address_a"] = common["address_b"] = common["address"]
    rest_a, rest_b = a[~a["address"].isin(b["address"])], b[~b["address"].isin(a["address"])]
    replaced = _stand_ins(rest_a, rest_b)
    common["run"] = [{} for _ in range(len(common))]
    for pairs in (common, replaced):
        made = (_changes(x, y) for x, y in zip(pairs["made_a"], pairs["made_b"], strict=True))
        # slim records do not say everything: what only one of them knows is no difference
        pairs["made"] = [{name: both for name, both in found.items() if ABSENT not in both} for found in made]
    pairs = pd.concat([common, replaced])[["address_a", "address_b"]]
    metrics = pairs.merge(_metrics(first, "a"), on="address_a").merge(_metrics(second, "b"), on=["address_b", "metric"])
    metrics["change"] = metrics["b"] - metrics["a"]
    metrics["differs"] = ~((metrics["change"].abs() <= tolerance) | (metrics["a"].isna() & metrics["b"].isna()))
    other = set(metrics[metrics["differs"]]["address_a"])
    for frame in (common, replaced):
        frame["differs"] = frame["address_a"].isin(other) | (frame["status_a"] != frame["status_b"])
    only_a = rest_a[~rest_a["address"].isin(replaced["address_a"])]
    only_b = rest_b[~rest_b["address"].isin(replaced["address_b"])]
    return Difference(common, replaced, only_a, only_b, metrics)


def _runs(records: Sequence[Record]) -> pd.DataFrame:
    columns = [*PLACE, "model", "address", "status", "seconds", "asked", "made"]
    lines = []
    for record in records:
        run = record["run"]
        place = [label_of(record), run["data"], run["shots"], run["seed"], share_of(record), run["model"]]
        made = flatten({"code": record.get("code"), **record.get("environment", {})})
        seconds = sum(record.get("seconds", {}).values())
        lines.append([*place, record["address"], record["status"], seconds, _asked(record), made])
    return pd.DataFrame(lines, columns=columns)


def _metrics(records: Sequence[Record], side: str) -> pd.DataFrame:
    """Return the metrics that are single numbers, a line each: "nll", and "nll on sketch" for a shift."""
    lines = [
        (record["address"], metric + (f" on {shift}" if shift else ""), value)
        for record in records
        if record["status"] == "done"
        for shift, table in {"": record["metrics"], **record.get("shifts", {})}.items()
        for metric, value in single_numbers(table).items()
    ]
    return pd.DataFrame(lines, columns=[f"address_{side}", "metric", side]).astype({side: float})


def _stand_ins(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Return runs of the same place, each with the one that was run most like it; none is used twice."""
    pairs = first.merge(second, on=PLACE, suffixes=("_a", "_b"))
    pairs["model"] = pairs["model_a"]
    pairs["run"] = [_changes(a, b) for a, b in zip(pairs["asked_a"], pairs["asked_b"], strict=True)]
    pairs["rank"] = [("model" in run, len(run)) for run in pairs["run"]]
    taken: set[str] = set()
    chosen = []
    for pair in pairs.sort_values("rank", kind="stable").itertuples():
        if not taken & {pair.address_a, pair.address_b}:
            taken |= {pair.address_a, pair.address_b}
            chosen.append(pair.Index)
    return pairs.loc[sorted(chosen)]


def _asked(record: Record) -> dict[str, Any]:
    """Return all that makes the address, by dotted name; options of the method go without a prefix."""
    run = {name: value for name, value in record["run"].items() if name not in ("data", "config")}
    flat = flatten(run) | flatten(record["run"]["config"])
    return {name: value for name, value in flat.items() if value != {}}


def _changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    both = {name: (a.get(name, ABSENT), b.get(name, ABSENT)) for name in {**a, **b}}
    return {name: (one, other) for name, (one, other) in both.items() if one != other}

"""What ``kalmanclip results diff`` says: for people the most important first, for programs everything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kalmanclip.cli.console import listing, note, say, some

if TYPE_CHECKING:
    from kalmanclip.experiments.difference import Changes, Difference, Pair, Summary
    from kalmanclip.experiments.store import Record

_SHOWN = 20
_METRICS = {"accuracy": ("accuracy", 100, 2), "nll": ("NLL", 1, 4), "ece": ("ECE", 100, 2)}
"""What is shown of a change: by metric, its name, and as how many parts of one with how many digits."""
_CHANGES = tuple(f"{name} {'change' if scale == 1 else 'points'}" for name, scale, _ in _METRICS.values())


def print_difference(difference: Difference, a: Path, b: Path) -> None:
    """Prints what two stores have in common and what they have not, changes from ``a`` to ``b``."""
    common, different = len(difference.common), len(difference.different)
    say(f"A is {a}, B is {b}. Changes are from A to B, means over runs.")
    equal = f"{common - different} of them with the same results" if different else "all with the same results"
    say(f"{common} runs are in both, {equal}." if common else "No run is in both.")
    if made := difference.circumstances():
        said = some([f"{name} ({count} runs)" for name, count in made.items()])
        say(f"They were not made with the same: {said}.")
    if different:
        _say_table("The same runs by method", _rows(difference.rows()))
        _say_table("The same runs with other results, largest first", _pairs(difference))
        if different > _SHOWN:
            note(f"and {different - _SHOWN} more; --json lists all of them")
    if difference.replaced:
        _say_table("The same label, data set, shots and seed, run otherwise", _replaced(difference.replaced_rows()))
    for name, records in (("A", difference.only_first), ("B", difference.only_second)):
        if records:
            _say_table(f"Only in {name}: {len(records)} runs", _lonely(records))
    say("The same." if difference.same else "Different.")


def as_json(difference: Difference) -> dict[str, Any]:
    """All of it as plain JSON values."""
    return {
        "same": difference.same,
        "tolerance": difference.tolerance,
        "common": len(difference.common),
        "different": [
            _identity(pair.a) | {"changes": _plain(pair.different(difference.tolerance)), "seconds": pair.seconds()}
            for pair in difference.different
        ],
        "rows": [_summary(row) | {"different": row.different} for row in difference.rows()],
        "replaced": [
            _identity(pair.a)
            | {"other_address": pair.b["address"], "run": _plain(pair.run), "metrics": _plain(pair.metrics)}
            for pair in difference.replaced
        ],
        "replaced_rows": [_summary(row) | {"run": _plain(row.changes)} for row in difference.replaced_rows()],
        "only_in_a": [_identity(record) for record in difference.only_first],
        "only_in_b": [_identity(record) for record in difference.only_second],
        "made_with_other": difference.circumstances(),
    }


def _identity(record: Record) -> dict[str, Any]:
    from kalmanclip.experiments.cells import label_of, share_of

    run = record["run"]
    names = ("data", "shots", "seed", "model")
    shown = {"label": label_of(record), **{name: run[name] for name in names}, "share": share_of(record)}
    return shown | {"status": record["status"], "address": record["address"]}


def _summary(row: Summary) -> dict[str, Any]:
    a, b = row.seconds()
    means = {metric: row.mean(metric) for metric in _METRICS}
    return {"label": row.label, "runs": len(row.pairs), "mean_change": means, "seconds": {"a": a, "b": b}}


def _plain(changes: Changes) -> dict[str, Any]:
    return {name: {"a": a, "b": b} for name, (a, b) in changes.items()}


def _say_table(title: str, table: Any) -> None:
    say()
    say(title, style="bold")
    say(table)


def _rows(rows: Sequence[Summary]) -> Any:
    numbers = ("runs", "other results", *_CHANGES, "largest accuracy points", "seconds A", "seconds B")
    table = listing("method", *numbers, right=numbers)
    for row in rows:
        means = [_change(row.mean(metric), metric) for metric in _METRICS]
        seconds = [f"{value:.1f}" for value in row.seconds()]
        largest = _change(row.largest(), "accuracy")
        table.add_row(row.label, str(len(row.pairs)), str(row.different), *means, largest, *seconds)
    return table


def _pairs(difference: Difference) -> Any:
    numbers = ("shots", "seed", "corrupted", "accuracy A", "accuracy B", *_CHANGES)
    table = listing("method", "data", *numbers, "also different", right=numbers)
    for pair in difference.different[:_SHOWN]:
        changes = [_change(pair.change(metric), metric) for metric in _METRICS]
        others = [name for name in pair.different(difference.tolerance) if name not in (*_METRICS, "status")]
        table.add_row(*_place(pair), *_accuracies(pair), *changes, some(others))
    return table


def _place(pair: Pair) -> list[str]:
    seen = _identity(pair.a)
    return [seen["label"], seen["data"], str(seen["shots"]), str(seen["seed"]), f"{100 * seen['share']:g} %"]


def _accuracies(pair: Pair) -> list[str]:
    done = (record["metrics"]["accuracy"] if record["status"] == "done" else None for record in (pair.a, pair.b))
    return ["failed" if value is None else f"{100 * value:.2f} %" for value in done]


def _replaced(rows: Sequence[Summary]) -> Any:
    numbers = ("runs", *_CHANGES, "largest accuracy points")
    table = listing("method", *numbers, "what is not the same", right=numbers)
    for row in rows:
        means = [_change(row.mean(metric), metric) for metric in _METRICS]
        what = some([f"{name}: {_brief(a)} → {_brief(b)}" for name, (a, b) in row.changes.items()])
        table.add_row(row.label, str(len(row.pairs)), *means, _change(row.largest(), "accuracy"), what)
    return table


def _lonely(records: Sequence[Record]) -> Any:
    """By method, which runs they are."""
    table = listing("method", "runs", "data", "shots", "seeds", "corrupted", right=("runs",))
    groups: dict[str, list[dict[str, Any]]] = {}
    for seen in map(_identity, records):
        groups.setdefault(seen["label"], []).append(seen)
    for label, group in groups.items():
        each = [_list(seen[name] for seen in group) for name in ("data", "shots", "seed")]
        shares = some([f"{100 * share:g} %" for share in sorted({seen["share"] for seen in group})])
        table.add_row(label, str(len(group)), *each, shares)
    return table


def _list(values: Iterable[Any]) -> str:
    return some([str(value) for value in sorted(set(values))])


def _brief(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _change(value: float | None, metric: str) -> str:
    """A change with its sign; one too small for the usual digits is not shown as none."""
    if value is None:
        return "-"
    _, scale, digits = _METRICS[metric]
    shown = f"{scale * value:+.{digits}f}"
    return f"{scale * value:+.1e}" if value and not float(shown) else shown

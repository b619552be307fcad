"""Results as one file per study, for git: one line per run, slim, sorted, the same bytes for the same results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kalmanclip.errors import DataError
from kalmanclip.experiments.spec import address_of
from kalmanclip.files import write_atomic

Record = dict[str, Any]

FORMAT = 1
"""Of a record; one of another format is made again."""

_RUN: dict[str, type] = {"data": str, "fingerprint": str, "templates": list, "method": str, "config": dict}
_RUN |= {"shots": int, "seed": int, "model": str}
_KEPT = ("format", "label", "by_data", "studies", "run", "code", "status", "reason", "error")


def label_of(record: Mapping[str, Any]) -> str:
    """Return what tables call the method of a run; results from before there were labels have its name only."""
    label: str = record.get("label") or record["run"]["method"]
    return label


def share_of(record: Mapping[str, Any]) -> float:
    """Return the share of the training images that were corrupted."""
    share: float = (record["run"].get("contamination") or {}).get("share", 0.0)
    return share


def is_whole(record: Any) -> bool:
    """Return whether something read from a file is a record, of a run that is done or has failed."""
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        return False
    run = record.get("run")
    if not isinstance(run, dict) or any(not isinstance(run.get(name), kind) for name, kind in _RUN.items()):
        return False
    if record.get("status") == "failed":
        return isinstance(record.get("reason"), str)
    metrics = record.get("metrics")
    known = isinstance(metrics, dict) and isinstance(metrics.get("accuracy"), float)
    return record.get("status") == "done" and known


def slim(record: Mapping[str, Any]) -> Record:
    """Return what identifies the run, its metrics and seconds: no draws, environments, tracebacks or long tables."""
    line = {name: record[name] for name in _KEPT if name in record}
    if "study" in record and "studies" not in record:
        line["studies"] = {record["study"]: label_of(record)}
    if "metrics" in record:
        line["metrics"] = _numbers(record["metrics"])
    if record.get("shifts"):
        line["shifts"] = {name: _numbers(metrics) for name, metrics in record["shifts"].items()}
    if "seconds" in record:
        line["seconds"] = {name: float(f"{value:.4g}") for name, value in record["seconds"].items()}
    return line


def to_jsonl(records: Iterable[Mapping[str, Any]]) -> str:
    """Return the text of a file of results."""

    def key(record: Mapping[str, Any]) -> tuple[Any, ...]:
        run = record["run"]
        where = run["model"], run["data"], share_of(record), run["shots"], label_of(record), run["seed"]
        return (*where, address_of(run))

    return "".join(json.dumps(slim(r), sort_keys=True, ensure_ascii=False) + "\n" for r in sorted(records, key=key))


def write_jsonl(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write a file of results, completely or not at all."""
    write_atomic(path, to_jsonl(records), DataError)


def read_jsonl(path: Path) -> tuple[list[Record], list[str]]:
    """Return the records of such a file, in the order of its lines, and the names of the lines that hold none."""
    records, damaged = [], []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"The results in {path} cannot be read: {error}.") from error
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            record = None
        if is_whole(record):
            records.append(record | {"address": address_of(record["run"])})
        else:
            damaged.append(f"{path.name} line {number}")
    return records, damaged


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the metrics that are single numbers."""
    return {name: value for name, value in metrics.items() if value is None or isinstance(value, (int, float))}

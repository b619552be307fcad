"""Results on disk: a folder with one file per run, or one file with a line per run; reading, choosing, locking."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from filelock import FileLock, Timeout

from kalmanclip.config import check_type
from kalmanclip.errors import ConfigError, DataError
from kalmanclip.experiments.spec import Run, address_of
from kalmanclip.files import read_json, remove_abandoned, write_atomic, write_json_atomic
from kalmanclip.methods import METHODS

Record = dict[str, Any]

FORMAT = 1
"""Of a record; one of another format is made again."""

_FILE = re.compile(r"[0-9a-f]{64}\.json")
_SLIM = ("format", "label", "by_data", "studies", "run", "code", "status", "reason", "error")


class _Metrics(TypedDict, total=False):
    accuracy: float
    top5_accuracy: float | None
    nll: float | None
    ece: float | None
    brier: float | None
    failure_auroc: float | None


class _Contamination(TypedDict, total=False):
    share: float
    severities: list[int]
    seed: int | None


class _PlainRun(TypedDict):
    data: str
    fingerprint: str
    templates: list[str]
    method: str
    config: dict
    shots: int
    seed: int
    model: str


class _Run(_PlainRun, total=False):
    contamination: _Contamination
    shifts: dict[str, str]
    base_to_new: bool


class _Required(TypedDict):
    format: int
    status: str
    run: _Run


class _Schema(_Required, total=False):
    """What every record holds, besides what nothing reads again."""

    label: str
    by_data: list[str]
    study: str
    studies: dict[str, str]
    code: dict[str, str]
    environment: dict
    reason: str
    error: str
    seconds: dict[str, float]
    metrics: _Metrics
    shifts: dict[str, _Metrics]


def label_of(record: Mapping[str, Any]) -> str:
    """Return what tables call the method of a run; results from before there were labels have its name only."""
    label: str = record.get("label") or record["run"]["method"]
    return label


def share_of(record: Mapping[str, Any]) -> float:
    """Return the share of the training images that were corrupted."""
    share: float = (record["run"].get("contamination") or {}).get("share", 0.0)
    return share


def single_numbers(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the metrics that are single numbers; None where one is not defined."""
    return {name: value for name, value in metrics.items() if value is None or isinstance(value, (int, float))}


class Store:
    """A folder of results, each complete or absent, in a file named by the run's address.

    Several processes may use it at once, and stores are merged by copying their files.

    Args:
        folder: where they lie; it must exist.
        also: further results, only read: folders, or files with one line per run. What is done there need not be done
            again.
    """

    def __init__(self, folder: str | os.PathLike[str], also: Iterable[str | os.PathLike[str]] = ()) -> None:
        self.folder = Path(folder)
        self.also = tuple(Path(other) for other in also)
        remove_abandoned(self.folder)
        lists = [read_jsonl(path) for path in self.also if path.is_file()]
        self._lines = {record["address"]: record for records, _ in lists for record in records}
        self._damaged_lines = [name for _, damaged in lists for name in damaged]

    def path(self, run: Run) -> Path:
        """Return the file of a run."""
        return self.folder / f"{run.address}.json"

    def record(self, run: Run) -> Record | None:
        """Return the record of a run, done or failed; None where it is missing, damaged, or another run's."""
        folders = (self.folder, *(other for other in self.also if not other.is_file()))
        found = [*(_read(folder / self.path(run).name) for folder in folders), self._lines.get(run.address)]
        own = [record for record in found if record is not None and address_of(record["run"]) == run.address]
        return next((record for record in own if record["status"] == "done"), own[0] if own else None)

    def finished(self, run: Run) -> Record | None:
        """Return the record of a run that is done; None also for one that has failed."""
        record = self.record(run)
        return record if record is not None and record["status"] == "done" else None

    def damaged(self, runs: Iterable[Run]) -> list[str]:
        """Return the names of files of these runs, and of lines of further results, that hold no whole record."""
        files = [path.name for path in map(self.path, runs) if path.exists() and _read(path) is None]
        return files + self._damaged_lines

    def save(self, run: Run, record: Record) -> None:
        """Write the record of a run, completely or not at all."""
        write_json_atomic(self.path(run), record, DataError)

    def records(self) -> list[Record]:
        """Return all records, whoever planned them, in the order of their addresses; damaged ones are left out."""
        return self.contents()[0]

    def contents(self) -> tuple[list[Record], list[str]]:
        """Return all records as `records` does, and the names of files that should hold one but do not."""
        records, damaged = [], []
        for path in sorted(path for path in self.folder.iterdir() if _FILE.fullmatch(path.name)):
            record = _read(path)
            if record is not None and address_of(record["run"]) == path.stem:
                records.append(record | {"address": path.stem})
            else:
                damaged.append(path.name)
        return records, damaged


class Locks:
    """The locks on runs that this process holds in one folder; a context manager that releases all of them at the end.

    With them each run is done by one of several processes, perhaps on several computers. A lock is a hidden file that
    the operating system unlocks when its process ends, be it by ``kill -9``. Locks save work; they do not guard
    results: two processes that do the same run write the same record, each completely.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._held: dict[str, FileLock] = {}

    def __enter__(self) -> Locks:
        for path in list(self.folder.glob(".*.lock")):  # what killed processes left behind
            if self.acquire(address := path.stem.removeprefix(".")):
                self.release(address)
        return self

    def __exit__(self, *error: object) -> None:
        for address in list(self._held):
            self.release(address)

    def acquire(self, address: str) -> bool:
        """Lock a run; return False if somebody has it."""
        lock = FileLock(self.folder / f".{address}.lock")
        try:
            self.folder.stat()  # FileLock would make the folder
            lock.acquire(blocking=False)
        except Timeout:
            return False
        except OSError as error:
            raise DataError(f"Cannot write to {self.folder}: {error.strerror}. Choose another folder.") from error
        self._held[address] = lock
        return True

    def release(self, address: str) -> None:
        """Unlock a run that this process has locked."""
        lock = self._held.pop(address)
        with suppress(OSError):
            Path(lock.lock_file).unlink()  # while it is locked, so never the file of another's lock
        lock.release()


def _read(path: Path) -> Record | None:
    try:
        record = read_json(path, DataError) if path.exists() else None
    except DataError:
        return None  # to be made again
    return record if _is_whole(record) else None


def _is_whole(record: Any) -> bool:
    """Return whether something read from a file is a record, of a run that is done or has failed."""
    try:
        check_type(record, _Schema, "the record")
    except ConfigError:
        return False
    if record["format"] != FORMAT:
        return False
    if record["status"] == "failed":
        return "reason" in record
    tables = [record.get("metrics", {}), *record.get("shifts", {}).values()]
    return record["status"] == "done" and all(0 <= table.get("accuracy", -1) <= 1 for table in tables)


def slim(record: Mapping[str, Any]) -> Record:
    """Return what identifies the run, its metrics and seconds: no draws, environments, tracebacks or long tables."""
    line = {name: record[name] for name in _SLIM if name in record}
    if "study" in record and "studies" not in record:
        line["studies"] = {record["study"]: label_of(record)}
    if "metrics" in record:
        line["metrics"] = single_numbers(record["metrics"])
    if record.get("shifts"):
        line["shifts"] = {name: single_numbers(metrics) for name, metrics in record["shifts"].items()}
    if "seconds" in record:
        line["seconds"] = {name: float(f"{value:.4g}") for name, value in record["seconds"].items()}
    return line


def to_jsonl(records: Iterable[Mapping[str, Any]]) -> str:
    """Return the text of a file for git: a slim line per run, sorted, the same bytes for the same results."""

    def key(record: Mapping[str, Any]) -> tuple[Any, ...]:
        return (*_place(record), label_of(record), record["run"]["seed"], address_of(record["run"]))

    return "".join(json.dumps(slim(r), sort_keys=True, ensure_ascii=False) + "\n" for r in sorted(records, key=key))


def write_jsonl(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write a file of results, completely or not at all."""
    write_atomic(path, to_jsonl(records), DataError)


def read_jsonl(path: Path) -> tuple[list[Record], list[str]]:
    """Return the records of such a file, in the order of its lines, and the names of the lines that hold none."""
    records, damaged = [], []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"The results in {path} cannot be read: {error}.") from error
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if _is_whole(record):
            records.append(record | {"address": address_of(record["run"])})
        else:
            damaged.append(f"{path.name} line {number}")
    return records, damaged


_VALUE: dict[str, Callable[[Record], Any]] = {
    "data": lambda record: record["run"]["data"],
    "methods": label_of,
    "shots": lambda record: record["run"]["shots"],
    "seeds": lambda record: record["run"]["seed"],
    "models": lambda record: record["run"]["model"],
    "shares": share_of,
    "statuses": lambda record: record["status"],
}


@dataclass(frozen=True)
class Selection:
    """Which runs are meant: those that have one of the values of every field; an empty field asks for nothing.

    Attributes:
        data: names of data sets.
        methods: labels (`label_of`).
        shots: K.
        seeds: of the draws.
        models: names of backbones, as records have them.
        shares: of corrupted training images, 0 for clean ones.
        statuses: "done", "failed".
    """

    data: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    shots: tuple[int, ...] = ()
    seeds: tuple[int, ...] = ()
    models: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()
    statuses: tuple[str, ...] = ()

    def wants(self, record: Record) -> bool:
        """Return whether the run is meant."""
        return all(not getattr(self, name) or value(record) in getattr(self, name) for name, value in _VALUE.items())

    def unknown(self, records: Sequence[Record]) -> list[str]:
        """Return what is asked for that none of the records has, in sentences: it may be misspelled."""
        sentences = []
        for name, value in _VALUE.items():
            there = sorted({value(record) for record in records})
            if absent := [wanted for wanted in getattr(self, name) if wanted not in there]:
                title = name if name != "methods" else "methods (labels)"
                sentences.append(f"None of the {title} is {_join(absent)}; there are: {_join(there)}.")
        return sentences


@dataclass(frozen=True)
class Chosen:
    """What was meant of a store.

    Attributes:
        path: its folder or file.
        records: of the runs, `in_order`.
        damaged: names of its files or lines that hold no whole record.
        unknown: what no run of the store has, in sentences.
    """

    path: Path
    records: list[Record]
    damaged: list[str]
    unknown: list[str]

    def remarks(self) -> list[str]:
        """Return what people should know who see some of the store only."""
        sentences = [f"{self.path}: {sentence}" for sentence in self.unknown]
        if self.damaged:
            sentences.append(f"{self.path}: {remark_damaged(self.damaged)}")
        return sentences

    def nothing(self) -> DataError:
        """Return the error for those who need at least one run."""
        why = " ".join(self.unknown) or "No run has all of it together."
        return DataError(f"{self.path} holds no such results. {why} Choose less narrowly, or run the comparison first.")


def remark_damaged(names: Sequence[str]) -> str:
    """Return what people should know about records that cannot be used."""
    shown = _join(names[:3]) + (", ..." if len(names) > 3 else "")
    return (
        f"{len(names)} records are damaged, or of another version, and left out: {shown}. "
        "The comparison that made them makes them again."
    )


def read_results(path: Path) -> tuple[list[Record], list[str]]:
    """Return the records in a folder or a ``.jsonl`` file, and the names of files or lines that are damaged.

    Raises:
        DataError: there is neither, or no record in it.
    """
    if not path.exists():
        raise DataError(f"There is no folder {path}. Give the folder, or the .jsonl file, of an earlier comparison.")
    try:
        records, damaged = read_jsonl(path) if path.is_file() else Store(path).contents()
    except OSError as error:
        raise DataError(f"The folder {path} cannot be read: {error.strerror}. Change its permissions.") from error
    if not records:
        more = f" that can be read, only {len(damaged)} damaged records" if damaged else ""
        raise DataError(
            f"{path} holds no results{more}. Give the folder that a comparison wrote, with one file per run (64 digits "
            "and .json), or a .jsonl file with one line per run."
        )
    return records, damaged


def find_results(path: Path, selection: Selection) -> Chosen:
    """Return what is meant of the results in a folder or file, perhaps nothing."""
    records, damaged = read_results(path)
    wanted = in_order([record for record in records if selection.wants(record)])
    return Chosen(path, wanted, damaged, selection.unknown(records))


def choose(path: Path, selection: Selection) -> Chosen:
    """Return what is meant of the results in a folder or file, at least one run.

    Raises:
        DataError: there are no results, or nothing of them is meant.
    """
    chosen = find_results(path, selection)
    if not chosen.records:
        raise chosen.nothing()
    return chosen


def in_order(records: Iterable[Record]) -> list[Record]:
    """Return records of unknown order as a comparison would have planned them: the paper's method first."""
    ranks = {name: rank for rank, name in enumerate(METHODS)}

    def key(record: Record) -> tuple[Any, ...]:
        method, label = record["run"]["method"], label_of(record)
        return (*_place(record), ranks.get(method, len(ranks)), label != method, label, record["run"]["seed"])

    return sorted(records, key=key)


def _place(record: Mapping[str, Any]) -> tuple[Any, ...]:
    run = record["run"]
    return run["model"], run["data"], share_of(record), run["shots"]


def _join(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))

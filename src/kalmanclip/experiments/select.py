"""Which runs of a store, or of a file with one line per run, are meant: one choice for all that reads results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kalmanclip.errors import DataError
from kalmanclip.experiments.jsonl import Record, label_of, read_jsonl, share_of
from kalmanclip.experiments.store import Store
from kalmanclip.methods import METHODS


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
        return all(not wanted or _VALUE[name](record) in wanted for name, wanted in self._asked())

    def unknown(self, records: Sequence[Record]) -> list[str]:
        """Return what is asked for that none of the records has, in sentences: it may be misspelled."""
        said = []
        for name, wanted in self._asked():
            there = sorted({_VALUE[name](record) for record in records})
            if absent := [value for value in wanted if value not in there]:
                called = name if name != "methods" else "methods (labels)"
                said.append(f"None of the {called} is {_join(absent)}; there are: {_join(there)}.")
        return said

    def _asked(self) -> list[tuple[str, tuple[Any, ...]]]:
        return [(field.name, getattr(self, field.name)) for field in fields(self)]


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
        said = [f"{self.path}: {sentence}" for sentence in self.unknown]
        if self.damaged:
            names = _join(self.damaged[:3]) + (", ..." if len(self.damaged) > 3 else "")
            said.append(
                f"{self.path}: {len(self.damaged)} records are damaged, or of another version, and left out: {names}. "
                "The comparison that made them makes them again."
            )
        return said

    def nothing(self) -> DataError:
        """Return the error for those who need at least one run."""
        why = " ".join(self.unknown) or "No run has all of it together."
        return DataError(f"{self.path} holds no such results. {why} Choose less narrowly, or run the comparison first.")


def read_results(path: Path) -> tuple[list[Record], list[str]]:
    """Return the records in a folder or a ``.jsonl`` file, and the names of files or lines that are damaged.

    Raises:
        DataError: there is neither, or no record in it.
    """
    if not path.exists():
        raise DataError(f"There is no folder {path}. Give the folder, or the .jsonl file, of an earlier comparison.")
    if path.is_file():
        records, damaged = read_jsonl(path)
    else:
        try:
            records, files = Store(path).contents()
        except OSError as error:
            raise DataError(f"The folder {path} cannot be read: {error.strerror}. Change its permissions.") from error
        damaged = [file.name for file in files]
    if not records:
        more = f" that can be read, only {len(damaged)} damaged records" if damaged else ""
        raise DataError(
            f"{path} holds no results{more}. Give the folder that a comparison wrote, with one file per run (64 digits "
            "and .json), or a .jsonl file with one line per run."
        )
    return records, damaged


def find_results(path: Path, selection: Selection) -> Chosen:
    """Return what is meant of the results in a folder or file, perhaps nothing.

    Raises:
        DataError: there are no results.
    """
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


def in_order(records: Sequence[Record]) -> list[Record]:
    """Return records of unknown order as a comparison would have planned them: the paper's method first."""
    methods = list(METHODS)

    def key(record: Record) -> tuple[Any, ...]:
        run, label = record["run"], label_of(record)
        rank = methods.index(run["method"]) if run["method"] in methods else len(methods)
        where = run["model"], run["data"], share_of(record), run["shots"]
        return (*where, rank, label != run["method"], label, run["seed"])

    return sorted(records, key=key)


def _join(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))

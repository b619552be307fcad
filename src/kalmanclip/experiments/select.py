"""Which of a store's runs are meant: one choice for whatever is listed, drawn, exported or compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kalmanclip.errors import DataError
from kalmanclip.experiments.cells import label_of, share_of
from kalmanclip.experiments.report import in_order
from kalmanclip.experiments.store import Record, Store


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
        """Whether the run is meant."""
        return all(not wanted or _VALUE[name](record) in wanted for name, wanted in self._asked())

    def unknown(self, records: Sequence[Record]) -> list[str]:
        """What is asked for that none of the records has, in sentences: it may be misspelled."""
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
        folder: where it lies.
        records: of the runs, `in_order`.
        damaged: files of the store that hold no whole record.
        unknown: what no run of the store has, in sentences.
    """

    folder: Path
    records: list[Record]
    damaged: list[Path]
    unknown: list[str]

    def remarks(self) -> list[str]:
        """What people should know who see some of the store only."""
        said = [f"{self.folder}: {sentence}" for sentence in self.unknown]
        if self.damaged:
            names = _join([path.name for path in self.damaged[:3]]) + (", ..." if len(self.damaged) > 3 else "")
            said.append(
                f"{self.folder}: {len(self.damaged)} files are damaged, or of another version, and left out: {names}. "
                "The comparison that made them makes them again."
            )
        return said

    def nothing(self) -> DataError:
        """The error for those who need at least one run."""
        why = " ".join(self.unknown) or "No run has all of it together."
        return DataError(
            f"{self.folder} holds no such results. {why} Choose less narrowly, or run the comparison first."
        )


def find_results(folder: Path, selection: Selection) -> Chosen:
    """What is meant of the store in a folder, perhaps nothing.

    Raises:
        DataError: there is no store.
    """
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder}. Give the folder that an earlier comparison wrote.")
    try:
        records, damaged = Store(folder).contents()
    except OSError as error:
        raise DataError(f"The folder {folder} cannot be read: {error.strerror}. Change its permissions.") from error
    if not records:
        more = f" that can be read, only {len(damaged)} damaged files" if damaged else ""
        raise DataError(
            f"{folder} holds no results{more}. Give the folder that a comparison wrote, "
            "with one file per run (64 digits and .json)."
        )
    wanted = in_order([record for record in records if selection.wants(record)])
    return Chosen(folder, wanted, damaged, selection.unknown(records))


def choose(folder: Path, selection: Selection) -> Chosen:
    """What is meant of the store in a folder, at least one run.

    Raises:
        DataError: there is no store, or nothing in it is meant.
    """
    chosen = find_results(folder, selection)
    if not chosen.records:
        raise chosen.nothing()
    return chosen


def _join(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))

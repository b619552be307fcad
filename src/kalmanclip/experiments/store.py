"""Results on disk: one file per run, named by the run's address, complete or absent."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kalmanclip.errors import DataError
from kalmanclip.experiments.jsonl import is_whole, read_jsonl
from kalmanclip.experiments.spec import Run, address_of
from kalmanclip.files import read_json, remove_abandoned, write_json_atomic

Record = dict[str, Any]

_NAME = re.compile(r"[0-9a-f]{64}\.json")


class Store:
    """A folder of results. Several processes may use it at once, and stores are merged by copying their files.

    Args:
        folder: where they lie; it must exist.
        also: further results, only read: folders, or files with one line per run (`jsonl`). What is done there need
            not be done again.
    """

    def __init__(self, folder: str | os.PathLike[str], also: Iterable[str | os.PathLike[str]] = ()) -> None:
        self.folder = Path(folder)
        self.also = tuple(Path(other) for other in also)
        remove_abandoned(self.folder)
        self._lines = {r["address"]: r for path in self.also if path.is_file() for r in read_jsonl(path)[0]}

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

    def save(self, run: Run, record: Record) -> None:
        """Write the record of a run, completely or not at all."""
        write_json_atomic(self.path(run), record, DataError)

    def records(self) -> list[Record]:
        """Return all records, whoever planned them, in the order of their addresses; damaged ones are left out."""
        return self.contents()[0]

    def contents(self) -> tuple[list[Record], list[Path]]:
        """Return all records as `records` does, and the files that are named like a record but hold none."""
        records, damaged = [], []
        for path in sorted(path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)):
            record = _read(path)
            if record is not None and address_of(record["run"]) == path.stem:
                records.append(record)
            else:
                damaged.append(path)
        return records, damaged


def _read(path: Path) -> Record | None:
    if not path.exists():
        return None
    try:
        record = read_json(path, DataError)
    except DataError:
        return None  # to be made again
    return record if is_whole(record) else None

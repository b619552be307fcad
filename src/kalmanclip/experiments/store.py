"""Results on disk: one file per run, named by the run's address, complete or absent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kalmanclip.errors import DataError
from kalmanclip.experiments.execute import FORMAT
from kalmanclip.experiments.run import Run
from kalmanclip.files import read_json, write_json_atomic


class Store:
    """A folder of results.

    Args:
        folder: where they lie; it must exist.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def path(self, run: Run) -> Path:
        """The file of a run."""
        return self.folder / f"{run.address}.json"

    def finished(self, run: Run) -> dict[str, Any] | None:
        """The record of a run that is done; None where it is missing, damaged, failed, or another run's."""
        path = self.path(run)
        if not path.exists():
            return None
        try:
            record = read_json(path, DataError)
        except DataError:
            return None  # to be made again
        return record if _is_whole(record, run) else None

    def save(self, run: Run, record: dict[str, Any]) -> None:
        """Writes the record of a run, completely or not at all."""
        write_json_atomic(self.path(run), record, DataError)


def _is_whole(record: Any, run: Run) -> bool:
    if not isinstance(record, dict) or record.get("format") != FORMAT or record.get("status") != "done":
        return False
    metrics = record.get("metrics")
    known = isinstance(metrics, dict) and isinstance(metrics.get("accuracy"), float)
    return known and "task" in record and record.get("run") == run.to_dict()

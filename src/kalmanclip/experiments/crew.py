"""The workers of a pool at work: runs whose worker dies go to another one, up to a number of attempts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Generic

from kalmanclip.errors import KalmanClipError
from kalmanclip.experiments.execute import failure
from kalmanclip.experiments.pool import AnyWorker, Arguments, Pool, WorkerDied
from kalmanclip.experiments.spec import Run


class Crew(Generic[AnyWorker]):
    """Gives runs to workers and collects their records.

    Args:
        pool: where workers come from.
        attempts: how often a run is started whose worker dies.
    """

    def __init__(self, pool: Pool[AnyWorker], attempts: int) -> None:
        self.pool, self.attempts = pool, attempts
        self._doing: dict[AnyWorker, Arguments | None] = {}  # None: it is not ready yet
        self._idle: list[AnyWorker] = []
        self._again: list[Arguments] = []  # their worker died
        self._deaths: Counter[str] = Counter()
        self._false_starts = 0

    @property
    def busy(self) -> bool:
        """Whether runs that were given are not finished."""
        return bool(self._again) or any(self._doing.values())

    @property
    def has_time(self) -> bool:
        """Whether a run that is given now is started now."""
        return len(self._idle) > len(self._again)

    def give(self, arguments: Arguments) -> None:
        """Lets a worker do a run; only when there is one that has time."""
        worker = self._idle.pop()
        worker.give(arguments)
        self._doing[worker] = arguments

    def fit(self, still_to_come: int) -> None:
        """Starts again what died, hires as many workers as there is room and use for, and ends those without use.

        Args:
            still_to_come: how many runs have not been given yet.
        """
        while self._again and self._idle:
            self.give(self._again.pop())
        useful = still_to_come + len(self._again)
        while self._idle and not useful:
            self._idle.pop().end()  # others may have use for what it holds
        waiting = len(self._idle) + sum(arguments is None for arguments in self._doing.values())
        room = self.pool.size() - len(self._doing) - len(self._idle)
        for _ in range(min(room, useful - waiting)):
            self._doing[self.pool.hire()] = None

    def collect(self, seconds: float) -> Iterator[tuple[Run, dict[str, Any]]]:
        """Runs that are finished, and their records, waiting for some seconds at most.

        Raises:
            KalmanClipError: workers die before they are ready, one after the other.
        """
        if not self._doing:
            time.sleep(seconds)
            return
        for worker in self.pool.wait(list(self._doing), seconds):
            arguments = self._doing.pop(worker)
            try:
                record = worker.answer()
            except WorkerDied as death:
                worker.end()
                record = self._after(death, arguments)
            else:
                self._idle.append(worker)
                self._false_starts = 0
            if arguments is not None and record is not None:
                yield arguments[0], record

    def close(self) -> None:
        """Ends all workers now."""
        for worker in (*self._doing, *self._idle):
            worker.end()

    def _after(self, death: WorkerDied, arguments: Arguments | None) -> dict[str, Any] | None:
        """What becomes of the run of a dead worker: its record if it has none of its attempts left."""
        if arguments is None:
            self._false_starts += 1
            if self._false_starts >= self.attempts:
                raise KalmanClipError(f"Worker processes die before they do anything: {death}, {self.pool.advice}.")
            return None
        run, source = arguments[:2]
        self._deaths[run.address] += 1
        if (times := self._deaths[run.address]) < self.attempts:
            self._again.append(arguments)
            return None
        often = "once" if times == 1 else f"{times} times"
        return failure(run, source, f"Its worker process died {often}: {death}, {self.pool.advice} and --retry-failed.")

"""One table or figure of the paper, filled in: our numbers beside the printed ones, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Entry:
    """One cell, numbers in percent (or in points, where the sheet is about gains).

    Attributes:
        mean: ours, over the seeds that are done; None where there is none.
        std: ours, over the seeds; None with fewer than two.
        seeds: how many are done.
        diverged: how many of them diverged (see `Sheet.criterion`); they do not count in the mean.
        printed: the paper's own: a number, a word such as "Diverge", or None where it printed nothing.
        missing: why there is no number of ours; empty where there is one, or where none is wanted.
        by_seed: the numbers behind the mean.
    """

    mean: float | None = None
    std: float | None = None
    seeds: int = 0
    diverged: int = 0
    printed: float | str | None = None
    missing: str = ""
    by_seed: Mapping[int, float] = field(default_factory=dict)

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's; None unless both are numbers."""
        if self.mean is None or not isinstance(self.printed, (int, float)):
            return None
        return self.mean - self.printed


@dataclass(frozen=True)
class Picture:
    """A figure, drawn.

    Attributes:
        title: what it shows, also for those who cannot see it.
        svg: an SVG document.
        png: the same as PNG.
    """

    title: str
    svg: str
    png: bytes


@dataclass(frozen=True)
class Sheet:
    """One table or figure of the paper with our numbers.

    Attributes:
        name: "table1", "figure2", ...: the command's word for it.
        title: one line.
        caption: what the paper shows there, and what differs here; paragraphs.
        row_heads: what the columns of row titles are called, such as ("method", "shots").
        rows: the titles of every row, as many as ``row_heads``.
        columns: the titles of the columns of numbers.
        entries: by row and column number.
        findings: whether what the paper says about it holds here, one sentence each.
        missing: columns (or rows) that could not run, and why.
        criterion: when a run counts as diverged; empty if that is not asked.
        pictures: drawn from the same numbers.
        runs: how many runs it is made of.
        done: how many of them are done.
        failed: how many of them failed.
        seconds: that fitting and predicting took in all, wherever the runs were done.
    """

    name: str
    title: str
    caption: tuple[str, ...]
    row_heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    columns: tuple[str, ...]
    entries: Mapping[tuple[int, int], Entry]
    findings: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    criterion: str = ""
    pictures: tuple[Picture, ...] = ()
    runs: int = 0
    done: int = 0
    failed: int = 0
    seconds: float = 0.0

    def entry(self, row: int, column: int) -> Entry:
        """A cell; empty where nothing was asked for."""
        return self.entries.get((row, column), Entry())

    def best(self, column: int) -> set[int]:
        """The rows with our highest number in a column, as shown to one digit.

        Rows of different data sets do not compete, and a row without rivals does not win.
        """
        shown: dict[str, dict[int, float]] = {}
        for row, titles in enumerate(self.rows):
            mean = self.entry(row, column).mean
            if mean is not None:
                group = titles[0] if self.row_heads[0] == "data set" else ""
                shown.setdefault(group, {})[row] = round(mean, 1)
        rivals = [group for group in shown.values() if len(group) > 1]
        return {row for group in rivals for row, mean in group.items() if mean == max(group.values())}

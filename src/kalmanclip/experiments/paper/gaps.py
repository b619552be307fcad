"""Differences of two rows, with their noise: what a verdict of `findings` rests on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kalmanclip.experiments.aggregate import Cell
from kalmanclip.experiments.paper.study import Line
from kalmanclip.experiments.render import number, signed

if TYPE_CHECKING:
    from kalmanclip.experiments.paper.fill import Sheet

NEAR = 1.0
"""Points within which two methods are called comparable, and within which one seed alone says nothing."""
NOISE = 0.5
"""Points below which nobody can tell which of two settings is better, however small their spread."""
RULE = (
    "Differences of two rows are means over the seeds, each seed against itself, ± two standard errors. One counts if "
    f"it is larger than that and than {NOISE:g} points; otherwise it is noise."
)


class Gap(NamedTuple):
    """One row minus another.

    Attributes:
        mean: in points.
        noise: two standard errors; None with fewer than two seeds.
    """

    mean: float
    noise: float | None = None

    @property
    def sign(self) -> int:
        """1 or -1 where the difference counts, 0 where it is noise."""
        least = NEAR if self.noise is None else max(NOISE, self.noise)
        return 0 if abs(self.mean) <= least else 1 if self.mean > 0 else -1

    def __str__(self) -> str:
        return signed(self.mean) + ("" if self.noise is None else f" ± {number(self.noise)}")


def gap(one: Cell, other: Cell) -> Gap | None:
    """Return the difference of two cells, seed by seed where both have the seed; None unless both have a number."""
    if one.mean is None or other.mean is None:
        return None
    apart = [value - other.by_seed[seed] for seed, value in one.by_seed.items() if seed in other.by_seed]
    if not apart:
        return Gap(one.mean - other.mean)
    mean = statistics.fmean(apart)
    return Gap(mean, 2 * statistics.stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else None)


def average(gaps: Sequence[Gap]) -> Gap:
    """Return the mean of differences on different data sets, whose seeds have nothing to do with each other."""
    known = [g.noise for g in gaps if g.noise is not None]
    noise = math.hypot(*known) / len(gaps) if len(known) == len(gaps) else None
    return Gap(statistics.fmean(g.mean for g in gaps), noise)


def judged(signs: Sequence[int], whole: int) -> str:
    """Return the verdict on "one row is above the other".

    Args:
        signs: of the data sets: `Gap.sign`, or who diverged.
        whole: the sign of the mean over them.
    """
    above, below = 1 in signs, -1 in signs
    if not above and not below:
        return "Not known"
    if not above:
        return "Does not hold"
    return "Holds" if whole > 0 and not below else "Holds in part"


class Comparison:
    """One row, or one for each number of shots, against another in all columns that both have.

    Attributes:
        gaps: where both have numbers.
        broken: where one diverged, in words.
        verdict: on "the first is above the second".
        whole: the mean difference; None without any.
    """

    def __init__(self, sheet: Sheet, a: str, b: str) -> None:
        self.gaps: list[Gap] = []
        self.broken: list[str] = []
        signs: list[int] = []
        rows, others = ({line.titles[1:]: n for n, line in _rows(sheet, label)} for label in (a, b))
        for more, row in rows.items():
            for column, (name,) in enumerate(sheet.table.columns):
                if more not in others:
                    continue
                one, other = sheet.table.cell(row, column), sheet.table.cell(others[more], column)
                apart = gap(one, other)
                if apart is not None:
                    self.gaps.append(apart)
                    signs.append(apart.sign)
                elif one.diverged or other.diverged:
                    where = " at ".join([name, *(f"{shots} shots" for shots in more)])
                    self.broken.append(f"{a if one.mean is None else b} diverged on {where}")
                    signs.append(-1 if one.mean is None else 1)
        self.whole = average(self.gaps) if self.gaps else None
        self.verdict = judged(signs, self.whole.sign if self.whole else max(signs, default=0))

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return bool(self.gaps or self.broken)

    @property
    def lead(self) -> float:
        """The mean difference; infinite where only divergence tells the rows apart."""
        return self.whole.mean if self.whole else math.inf

    def sentence(self, claim: str) -> list[str]:
        """Return the finding; none where nothing was measured."""
        if not self.known:
            return []
        left_out = "; ".join(self.broken)
        if self.whole is None:
            return [f"{self.verdict}: {claim}: {left_out}."]
        where = f" ({spanned(g.mean for g in self.gaps)} by cell)" if len(self.gaps) > 1 else ""
        more = f"; not counting that {left_out}" if left_out else ""
        return [f"{self.verdict}: {claim}: by {self.whole} points in the mean{where}{more}."]


def spanned(values: Iterable[float]) -> str:
    """Return the smallest to the largest difference, in words."""
    found = list(values)
    low, high = signed(min(found)), signed(max(found))
    return low if low == high else f"{low} to {high}"


def _rows(sheet: Sheet, label: str) -> list[tuple[int, Line]]:
    """Return the rows of a variant with their numbers."""
    return [(n, line) for n, line in enumerate(sheet.form.rows) if line.fixes["label"] == label]

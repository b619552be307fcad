"""Which of the paper's claims hold here: sentences computed from a filled sheet, never written by hand.

A finding begins with its verdict ("Holds", "Holds in part", "Does not hold", "Not known") and a colon. Claims are
judged by the paper's method alone (variants of the families `READINGS`) against its own baselines, differences as
`RULE` says.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kalmanclip.experiments.aggregate import Cell
from kalmanclip.experiments.paper.printed import BASELINES, PAPER, READINGS, TABLE_3_GAIN
from kalmanclip.experiments.paper.study import ZERO_SHOT
from kalmanclip.experiments.render import number, signed

if TYPE_CHECKING:
    from kalmanclip.experiments.paper.fill import Sheet

LONGER = f"{PAPER} (10 passes)"
NEAR = 1.0
"""Points within which two methods are called comparable, and within which one seed alone says nothing."""
NOISE = 0.5
"""Points below which nobody can tell which of two settings is better, however small their spread."""
RULE = (
    "Differences of two rows are means over the seeds, each seed against itself, ± two standard errors. One counts if "
    f"it is larger than that and than {NOISE:g} points; otherwise it is noise."
)


class Gap(NamedTuple):
    """One row minus another, in points; the noise is two standard errors, None with fewer than two seeds."""

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
    """Return the verdict on "one row is above the other", given the signs of all data sets and that of their mean."""
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
        rows, others = (
            {line.titles[1:]: n for n, line in enumerate(sheet.form.rows) if line.fixes["label"] == label}
            for label in (a, b)
        )
        for more, row in rows.items():
            for column, (name,) in enumerate(sheet.table.columns if more in others else ()):
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


def table_1(sheet: Sheet) -> list[str]:
    """Superior or comparable to the baselines in every few-shot scenario?"""
    sentences = []
    for ours in READINGS:
        best, near, cells = _wins(sheet, ours, lambda cell: cell.mean)
        if cells:
            verdict = _verdict(near == cells, 2 * near >= cells)
            sentences.append(
                f"{verdict}: {ours} is superior or comparable to the paper's baselines: the best in {best} of {cells} "
                f"cells, at most {NEAR:g} point behind in {near}."
            )
    # the paper has one row of its own, which stands beside all readings
    best, _, cells = _wins(sheet, READINGS[0], lambda cell: cell.printed if isinstance(cell.printed, float) else None)
    return (
        [*sentences, f"In the paper's own table its method is the best in {best} of {cells} cells."]
        if cells
        else sentences
    )


def figure_2(sheet: Sheet) -> list[str]:
    """Does accuracy grow with the number of images?"""
    sentences = []
    for ours in READINGS:
        rows = {line.fixes["shots"]: row for row, line in enumerate(sheet.form.rows) if line.fixes["label"] == ours}
        few, many = min(rows), max(rows)
        gains = [
            last - first
            for column in range(len(sheet.table.columns))
            if (first := sheet.table.cell(rows[few], column).mean) is not None
            and (last := sheet.table.cell(rows[many], column).mean) is not None
        ]
        if gains:
            verdict = _verdict(min(gains) > NEAR, max(gains) > NEAR)
            sentences.append(
                f"{verdict}: the accuracy of {ours} grows with the number of images: from {few} to {many} per class by "
                f"{spanned(gains)} points."
            )
    return sentences


def figure_3(sheet: Sheet) -> list[str]:
    """Does it improve on zero-shot everywhere? (The paper: by 2.7 to 46 points.)"""
    sentences = []
    for column, line in enumerate(sheet.form.columns):
        cells = {name: sheet.table.cell(row, column) for row, (name,) in enumerate(sheet.table.rows)}
        gains = {name: cell for name, cell in cells.items() if cell.mean is not None}
        if gains and line.fixes["family"] in READINGS:
            ranked = sorted(gains, key=lambda name: gains[name].mean or 0.0)
            low, high = ranked[0], ranked[-1]
            verdict = _verdict((gains[low].mean or 0.0) > NEAR, (gains[high].mean or 0.0) > NEAR)
            sentences.append(
                f"{verdict}: {line.fixes['label']} improves on zero-shot on every data set that was run ({len(gains)} "
                f"of {len(sheet.table.rows)}): by {_shown(gains[low], signed)} ({low}) to "
                f"{_shown(gains[high], signed)} points ({high})."
            )
    return sentences


def table_2(sheet: Sheet) -> list[str]:
    """The best average under distribution shift?"""
    sentences = []
    for column, line in enumerate(sheet.form.columns):
        if len(line.fixes["shifts"]) == 1:
            continue
        cells = {row.fixes["label"]: sheet.table.cell(i, column) for i, row in enumerate(sheet.form.rows)}
        rivals = {label: cells[label].mean for label in BASELINES if cells[label].mean is not None}
        for ours in READINGS:
            if not rivals or cells[ours].mean is None:
                continue
            leader = max(rivals, key=lambda label: rivals[label] or 0.0)
            apart = gap(cells[ours], cells[leader])
            assert apart is not None
            sentences.append(
                f"{judged([apart.sign], apart.sign)}: {ours} has a higher {line.titles[0]} than the paper's baselines: "
                f"{_shown(cells[ours])} against {_shown(cells[leader])} of {leader}, a difference of {apart}."
            )
    return sentences


def table_3(sheet: Sheet) -> list[str]:
    """Does alpha help under contamination, and does it diverge where there is little of it?"""
    sentences, table = [], sheet.table
    groups: dict[tuple[str, str], dict[float, int]] = {}
    for row, line in enumerate(sheet.form.rows):
        if line.fixes["family"] in READINGS:
            groups.setdefault((line.titles[0], line.fixes["family"]), {})[line.fixes["setting"]] = row
    shares = [title for (title,) in table.columns]
    for (data, family), rows in groups.items():
        last, none, largest = len(shares) - 1, min(rows), max(rows)
        cells = [
            {alpha: cell for alpha, row in rows.items() if (cell := table.cell(row, column)).mean is not None}
            for column in range(len(shares))
        ]
        measured = [column for column, found in enumerate(cells) if none in found and len(found) > 1]
        if not measured:
            continue
        where = f"{family} on {data}"
        if last in measured:
            found = cells[last]
            gains = {
                alpha: apart
                for alpha, cell in found.items()
                if alpha != none and (apart := gap(cell, found[none])) is not None
            }
            best = max(gains, key=lambda alpha: gains[alpha].mean)
            strongest = gains.get(largest)
            moved = "has no number" if strongest is None else f"moves the accuracy by {strongest} points"
            signs = [apart.sign for apart in gains.values()]
            sentences.append(
                f"{judged(signs, strongest.sign if strongest else 0)}: with {shares[last]} corrupted images a large "
                f"alpha helps ({where}): against alpha 0 ({_shown(found[none])}), alpha {largest:g} {moved}; the best "
                f"on the test images, alpha {best:g} ({_shown(found[best])}), by {gains[best]}. The paper's numbers: "
                f"{signed(TABLE_3_GAIN)}."
            )
        broken = [
            (alpha, column)
            for alpha, row in rows.items()
            for column in range(len(shares))
            if table.cell(row, column).diverged
        ]
        # where the paper has it: a large alpha and few corrupted images
        there = [place for place in broken if place[0] >= 0.5 and place[1] < last - 1]
        listed = "; ".join(f"alpha {alpha:g} with {shares[column]}" for alpha, column in broken)
        sentences.append(
            f"{_verdict(bool(there), False)}: a large alpha diverges where few images are corrupted ({where}): "
            + (f"runs that diverged: {listed}." if broken else "no run diverged.")
        )
    return sentences


def table_4(sheet: Sheet) -> list[str]:
    """Is beta best between 0.95 and 0.99?"""
    rows = {line.fixes["setting"]: row for row, line in enumerate(sheet.form.rows) if line.fixes["family"] == PAPER}
    gaps, listed = [], []
    for column, (name,) in enumerate(sheet.table.columns):
        cells = {beta: cell for beta, row in rows.items() if (cell := sheet.table.cell(row, column)).mean is not None}
        inside = _best({beta: cell for beta, cell in cells.items() if beta >= 0.95})
        outside = _best({beta: cell for beta, cell in cells.items() if beta < 0.95})
        if inside is None or outside is None:
            continue
        apart = gap(cells[inside], cells[outside])
        assert apart is not None
        gaps.append(apart)
        listed.append(f"{name} {inside:.2f} against {outside:.2f}, {apart}{'' if apart.sign else ', noise'}")
    if not gaps:
        return []
    return [
        f"{judged([g.sign for g in gaps], average(gaps).sign)}: a beta from 0.95 to 0.99 is best ({PAPER}): the best "
        f"of these against the best below: {'; '.join(listed)}."
    ]


def _claims(*claims: tuple[str, str, str]) -> Callable[[Sheet], list[str]]:
    """Return the findings of claims that one row is above another: (the one, the other, the claim in words)."""
    return lambda sheet: [s for a, b, claim in claims for s in Comparison(sheet, a, b).sentence(claim)]


_DIAG, _FLATTEN = "diag (similarities) prior", "flatten (similarities) prior"
_READ_AS_PROBABILITY = "diag is better than flatten, diag read as a probability among the batch's texts"
observation = _claims(
    *(
        (f"{_DIAG} {prior}", f"{_FLATTEN} {prior}", f"diag is better than flatten, read to the letter, prior {prior}")
        for prior in ("0.01", "0.1")
    ),
    ("diag (probability in the batch) prior 0.1", f"{_FLATTEN} 0.1", _READ_AS_PROBABILITY),
    (f"{_DIAG} 0.1", ZERO_SHOT, "the observation to the letter learns (prior 0.1)"),
)
noise = _claims(
    *(
        (f"method 2 with {kind} R", f"method 1 with {kind} R", f"method 2 is better than method 1 ({kind} R)")
        for kind in ("full", "exchangeable")
    ),
    (
        "method 2 with exchangeable R",
        "method 2 with full R",
        "an R that does not know positions is better than a full one",
    ),
)
regulation = _claims(
    *(
        (
            f"lambda on mean and covariance and noise at alpha {alpha}",
            f"lambda on mean and noise at alpha {alpha}",
            f"scaling the covariance, too (the prose), is better than leaving it out (Algorithm 1), alpha {alpha}",
        )
        for alpha in ("0.1", "1")
    )
)
_PRECISION, _COVARIANCE = "diagonal (precision)", "diagonal (covariance)"
belief = _claims(
    *(
        (richer, _PRECISION, f"{richer} is better than {_PRECISION}")
        for richer in ("block-diagonal", "low-rank plus diagonal", "dense")
    ),
    (_COVARIANCE, _PRECISION, f"of the two diagonal updates, {_COVARIANCE} is better than {_PRECISION}"),
)


def optimizer(sheet: Sheet) -> list[str]:
    """Does filtering beat first-order optimisation of the same parameters?"""
    passes = {v.label: v.setting for v in sheet.study.variants if v.family == "first-order"}
    rivals, longer = list(passes), [label for label, number in passes.items() if number is not None]
    # each against the filter that makes as many passes
    alike = {rival: Comparison(sheet, LONGER if rival in longer else PAPER, rival) for rival in rivals}
    known = {rival: comparison for rival, comparison in alike.items() if comparison.known}
    sentences = []
    if known:
        verdicts = [comparison.verdict for comparison in known.values()]
        some = any(verdict.startswith("Holds") for verdict in verdicts)
        whole = verdicts[0] if len(set(verdicts)) == 1 else "Holds in part" if some else "Does not hold"
        nearest = min(known, key=lambda rival: known[rival].lead)
        sentences.append(
            f"{whole}: filtering beats first-order optimisation of the same parameters, images and passes: it beats "
            f"{verdicts.count('Holds')} of {len(known)} optimisers; its lead is smallest over {nearest}."
        )
    for rival, comparison in known.items():
        sentences += comparison.sentence(f"{LONGER if rival in longer else PAPER} beats {rival}")
    return sentences + _claims(*((PAPER, rival, f"{PAPER}, with fewer passes, beats {rival}") for rival in longer))(
        sheet
    )


def _wins(sheet: Sheet, ours: str, of: Callable[[Cell], float | None]) -> tuple[int, int, int]:
    """Return in how many cells one of our rows is best, is near the best baseline, and how many there are."""
    best = near = cells = 0
    for row, line in enumerate(sheet.form.rows):
        if line.fixes["label"] != ours:
            continue
        baselines = [
            i
            for i, other in enumerate(sheet.form.rows)
            if other.fixes["label"] == ZERO_SHOT
            or (other.fixes["label"] in BASELINES and other.fixes["shots"] == line.fixes["shots"])
        ]
        for column in range(len(sheet.table.columns)):
            own = of(sheet.table.cell(row, column))
            others = [of(sheet.table.cell(i, column)) for i in baselines]
            rivals = [value for value in others if value is not None]
            if own is not None and rivals:
                cells += 1
                best += own >= max(rivals)
                near += own >= max(rivals) - NEAR
    return best, near, cells


def _shown(cell: Cell, show: Callable[[float], str] = number) -> str:
    """Return a cell's mean with its standard deviation."""
    assert cell.mean is not None
    return show(cell.mean) + ("" if cell.std is None else f" ± {number(cell.std)}")


def _best(found: Mapping[float, Cell]) -> float | None:
    """Return the setting with the highest mean."""
    return max(found, key=lambda value: found[value].mean or 0.0) if found else None


def _verdict(holds: bool, in_part: bool) -> str:
    return "Holds" if holds else "Holds in part" if in_part else "Does not hold"

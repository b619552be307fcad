"""Which of the paper's claims hold here: sentences computed from a filled sheet, never written by hand.

A finding begins with its verdict ("Holds", "Holds in part", "Does not hold", "Not known") and a colon.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from kalmanclip.experiments.paper.forms import ZERO_SHOT
from kalmanclip.experiments.paper.printed import OURS, TABLE_3_GAIN, setting
from kalmanclip.experiments.paper.sheet import Entry, Sheet
from kalmanclip.experiments.paper.shown import number, signed

_NEAR = 1.0
"""Points within which two methods are called comparable."""
_NOISE = 0.5
"""Points in the mean over data sets below which nobody can tell which of two settings is better."""


def table_1(sheet: Sheet) -> list[str]:
    """Superior or comparable to the baselines in every few-shot scenario?"""
    said = []
    for ours in _readings(sheet):
        best, near, cells = _wins(sheet, ours, lambda entry: entry.mean)
        if cells:
            verdict = _verdict(near == cells, 2 * near >= cells)
            said.append(
                f"{verdict}: {ours} is superior or comparable to the paper's baselines: the best in {best} of {cells} "
                f"cells, at most {_NEAR:g} point behind in {near}."
            )
    # the paper has one row of its own, which stands beside all readings
    best, _, cells = _wins(sheet, _readings(sheet)[0], _printed_number)
    return [*said, f"In the paper's own table its method is the best in {best} of {cells} cells."] if cells else said


def figure_2(sheet: Sheet) -> list[str]:
    """Does accuracy grow with the number of images?"""
    said = []
    for ours in _readings(sheet):
        rows = [titles for titles in sheet.rows if titles[0] == ours]
        gains = [
            last - first
            for column in range(len(sheet.columns))
            if (first := _mean(sheet, rows[0], column)) is not None
            and (last := _mean(sheet, rows[-1], column)) is not None
        ]
        if gains:
            verdict = _verdict(min(gains) > _NEAR, max(gains) > _NEAR)
            said.append(
                f"{verdict}: the accuracy of {ours} grows with the number of images: from {rows[0][1]} to "
                f"{rows[-1][1]} per class by {_range(gains)} points."
            )
    return said


def figure_3(sheet: Sheet) -> list[str]:
    """Does it improve on zero-shot everywhere? (The paper: by 2.7 to 46 points.)"""
    said = []
    for column, label in enumerate(sheet.columns):
        gains = {
            titles[0]: entry.mean
            for row, titles in enumerate(sheet.rows)
            if (entry := sheet.entry(row, column)).mean is not None
        }
        if gains:
            low, high = min(gains, key=gains.__getitem__), max(gains, key=gains.__getitem__)
            verdict = _verdict(gains[low] > _NEAR, gains[high] > _NEAR)
            said.append(
                f"{verdict}: {label} improves on zero-shot on every data set that was run ({len(gains)} of "
                f"{len(sheet.rows)}): by {signed(gains[low])} ({low}) to {signed(gains[high])} points ({high})."
            )
    return said


def table_2(sheet: Sheet) -> list[str]:
    """The best average under distribution shift?"""
    said = []
    for column, title in enumerate(sheet.columns):
        if not title.startswith("average"):
            continue
        means = {titles[0]: mean for titles in sheet.rows if (mean := _mean(sheet, titles, column)) is not None}
        rivals = {label: value for label, value in means.items() if not label.startswith(OURS)}
        for ours in (label for label in means if label.startswith(OURS)):
            if not rivals:
                continue
            leader = max(rivals, key=rivals.__getitem__)
            gap = means[ours] - rivals[leader]
            said.append(
                f"{_verdict(gap > 0, gap >= -_NEAR)}: {ours} has a higher {title} than the paper's baselines: "
                f"{number(means[ours])} against {number(rivals[leader])} of {leader}."
            )
    return said


def table_3(sheet: Sheet) -> list[str]:
    """Does alpha help under contamination, and does it diverge where there is little of it?"""
    said = []
    for group in dict.fromkeys(_group(titles) for titles in sheet.rows):
        rows = {setting(titles[1]): row for row, titles in enumerate(sheet.rows) if _group(titles) == group}
        last, none, largest = len(sheet.columns) - 1, min(rows), max(rows)
        means = [
            {alpha: mean for alpha, row in rows.items() if (mean := sheet.entry(row, column).mean) is not None}
            for column in range(len(sheet.columns))
        ]
        measured = [column for column, found in enumerate(means) if none in found and len(found) > 1]
        if not measured:
            continue
        where = " on ".join(reversed(group))
        if last in measured:
            gains = {alpha: mean - means[last][none] for alpha, mean in means[last].items() if alpha != none}
            best = max(gains, key=gains.__getitem__)
            strongest = gains.get(largest)
            moved = "has no number" if strongest is None else f"moves the accuracy by {signed(strongest)} points"
            said.append(
                f"{_verdict((strongest or 0.0) > _NEAR, gains[best] > _NEAR)}: with {sheet.columns[last]} corrupted "
                f"images a large alpha helps ({where}): against alpha 0, alpha {largest:g} {moved}; the best on the "
                f"test images, alpha {best:g}, by {signed(gains[best])}. The paper's numbers: {signed(TABLE_3_GAIN)}."
            )
        broken = [
            (alpha, column)
            for alpha, row in rows.items()
            for column in range(len(sheet.columns))
            if sheet.entry(row, column).diverged
        ]
        # where the paper has it: a large alpha and few corrupted images
        there = [place for place in broken if place[0] >= 0.5 and place[1] < len(sheet.columns) - 2]
        listed = "; ".join(f"alpha {alpha:g} with {sheet.columns[column]}" for alpha, column in broken)
        said.append(
            f"{_verdict(bool(there), False)}: a large alpha diverges where few images are corrupted ({where}): "
            + (f"runs that diverged: {listed}." if broken else "no run diverged.")
        )
    return said


def table_4(sheet: Sheet) -> list[str]:
    """Is beta best between 0.95 and 0.99?"""
    said = []
    for group in dict.fromkeys(titles[0].rsplit(" ", 1)[0] for titles in sheet.rows if titles[0].startswith(OURS)):
        best, spread = [], []
        for column in range(len(sheet.columns)):
            means = {
                setting(titles[0]): mean
                for titles in sheet.rows
                if titles[0].rsplit(" ", 1)[0] == group and (mean := _mean(sheet, titles, column)) is not None
            }
            if len(means) > 1:
                winner = max(means, key=means.__getitem__)
                best.append((sheet.columns[column], winner))
                spread.append(means[winner] - min(means.values()))
        if best:
            inside = [beta >= 0.95 for _, beta in best]
            listed = "; ".join(f"{beta:.2f} on {name}" for name, beta in best)
            said.append(
                f"{_verdict(all(inside), any(inside))}: a beta from 0.95 to 0.99 is best "
                f"({group.removesuffix(' beta')}): {listed}. Best and worst differ by {_range(spread)} points."
            )
    return said


def observation(sheet: Sheet) -> list[str]:
    """Is diag better than flatten?"""
    said = []
    for prior in ("0.01", "0.1"):
        said += _against(
            sheet,
            f"diag (similarities) prior {prior}",
            f"flatten (similarities) prior {prior}",
            f"diag is better than flatten, read to the letter, prior {prior}",
        )
    said += _against(
        sheet,
        "diag (probability in the batch) prior 0.1",
        "flatten (similarities) prior 0.1",
        "diag is better than flatten, diag read as a probability among the batch's texts",
    )
    return said + _against(
        sheet, "diag (similarities) prior 0.1", ZERO_SHOT, "the observation to the letter learns (prior 0.1)"
    )


def noise(sheet: Sheet) -> list[str]:
    """Method 2, the one of Algorithm 1, against method 1."""
    kinds = ("full", "exchangeable")
    pairs = [(f"method 2 with {kind} R", f"method 1 with {kind} R", kind) for kind in kinds]
    said = [s for a, b, kind in pairs for s in _against(sheet, a, b, f"method 2 is better than method 1 ({kind} R)")]
    a, b = (f"method 2 with {kind} R" for kind in reversed(kinds))
    return said + _against(sheet, a, b, "an R that does not know positions is better than a full one")


def regulation(sheet: Sheet) -> list[str]:
    """The prose against the algorithm."""
    return [
        s
        for alpha in ("0.1", "1")
        for s in _against(
            sheet,
            f"lambda on mean and covariance and noise at alpha {alpha}",
            f"lambda on mean and noise at alpha {alpha}",
            f"scaling the covariance, too (the prose), is better than leaving it out (Algorithm 1), alpha {alpha}",
        )
    ]


def belief(sheet: Sheet) -> list[str]:
    """Whether richer beliefs buy accuracy."""
    base = "diagonal (precision)"
    richer = [titles[0] for titles in sheet.rows if titles[0] not in (base, ZERO_SHOT)]
    claim = "the diagonal belief is no worse than"
    return [s for label in richer for s in _against(sheet, base, label, f"{claim} {label}", -_NOISE)]


def optimizer(sheet: Sheet) -> list[str]:
    """Does the filter beat first-order optimisation of the same parameters?"""
    return []


def _against(sheet: Sheet, a: str, b: str, claim: str, least: float = 0.0) -> list[str]:
    """Whether row ``a`` is above row ``b``, in the mean over the columns that both have."""
    gaps, broken = [], []
    for column in range(len(sheet.columns)):
        one, other = (_entry(sheet, (label,), column) for label in (a, b))
        if one.mean is not None and other.mean is not None:
            gaps.append(one.mean - other.mean)
        elif one.diverged or other.diverged:
            broken.append(f"{a if one.diverged else b} diverged on {sheet.columns[column]}")
    if not gaps:
        return [f"Not known: {claim}: {'; '.join(broken)}."] if broken else []
    mean = statistics.fmean(gaps)
    verdict = _verdict(mean > least and min(gaps) > -_NEAR, max(gaps) > _NEAR)
    if least == 0 and abs(mean) < _NOISE and max(map(abs, gaps)) < 2 * _NEAR:
        verdict = "Not known"
    more = f" {'; '.join(broken)}." if broken else ""
    return [f"{verdict}: {claim}: by {signed(mean)} points in the mean ({_range(gaps)} by data set).{more}"]


def _wins(sheet: Sheet, ours: str, of: Callable[[Entry], float | None]) -> tuple[int, int, int]:
    """In how many cells one of our rows is best, how many it is near the best baseline in, and of how many."""
    best = near = cells = 0
    for row, titles in enumerate(sheet.rows):
        if titles[0] != ours:
            continue
        baselines = [
            i for i, (label, k) in enumerate(sheet.rows) if not label.startswith(OURS) and k in ("", titles[1])
        ]
        for column in range(len(sheet.columns)):
            own = of(sheet.entry(row, column))
            others = [of(sheet.entry(i, column)) for i in baselines]
            rivals = [value for value in others if value is not None]
            if own is not None and rivals:
                cells += 1
                best += own >= max(rivals)
                near += own >= max(rivals) - _NEAR
    return best, near, cells


def _printed_number(entry: Entry) -> float | None:
    return entry.printed if isinstance(entry.printed, float) else None


def _readings(sheet: Sheet) -> list[str]:
    """The labels of the paper's method."""
    return list(dict.fromkeys(titles[0] for titles in sheet.rows if titles[0].startswith(OURS)))


def _entry(sheet: Sheet, titles: Sequence[str], column: int) -> Entry:
    rows = [row for row, other in enumerate(sheet.rows) if other == tuple(titles)]
    return sheet.entry(rows[0], column) if rows else Entry()


def _mean(sheet: Sheet, titles: Sequence[str], column: int) -> float | None:
    return _entry(sheet, titles, column).mean


def _group(titles: Sequence[str]) -> tuple[str, str]:
    """Data set and method, without the setting that the method's label ends with."""
    return titles[0], titles[1].rsplit(" ", 2)[0]


def _verdict(holds: bool, in_part: bool) -> str:
    return "Holds" if holds else "Holds in part" if in_part else "Does not hold"


def _range(values: Iterable[float]) -> str:
    found = list(values)
    low, high = signed(min(found)), signed(max(found))
    return low if low == high else f"{low} to {high}"

"""Which of the paper's claims hold here: sentences computed from a filled sheet, never written by hand.

A finding begins with its verdict ("Holds", "Holds in part", "Does not hold", "Not known") and a colon. Claims are
judged by the paper's method alone (rows that begin with `OURS`) against its own baselines, differences as in `gaps`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kalmanclip.experiments.paper.forms import ZERO_SHOT
from kalmanclip.experiments.paper.gaps import NEAR, Comparison, Gap, average, gap, judged, spanned
from kalmanclip.experiments.paper.printed import BASELINES, OURS, TABLE_3_GAIN, setting
from kalmanclip.experiments.paper.sheet import Entry, Sheet
from kalmanclip.experiments.paper.shown import number, signed

_FILTER = f"{OURS} (paper)"
_LONGER = f"{_FILTER} (10 passes)"


def table_1(sheet: Sheet) -> list[str]:
    """Superior or comparable to the baselines in every few-shot scenario?"""
    said = []
    for ours in _readings(sheet):
        best, near, cells = _wins(sheet, ours, lambda entry: entry.mean)
        if cells:
            verdict = _verdict(near == cells, 2 * near >= cells)
            said.append(
                f"{verdict}: {ours} is superior or comparable to the paper's baselines: the best in {best} of {cells} "
                f"cells, at most {NEAR:g} point behind in {near}."
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
            verdict = _verdict(min(gains) > NEAR, max(gains) > NEAR)
            said.append(
                f"{verdict}: the accuracy of {ours} grows with the number of images: from {rows[0][1]} to "
                f"{rows[-1][1]} per class by {spanned(gains)} points."
            )
    return said


def figure_3(sheet: Sheet) -> list[str]:
    """Does it improve on zero-shot everywhere? (The paper: by 2.7 to 46 points.)"""
    said = []
    for column, label in enumerate(sheet.columns):
        gains = {
            titles[0]: entry
            for row, titles in enumerate(sheet.rows)
            if (entry := sheet.entry(row, column)).mean is not None
        }
        if gains and label.startswith(OURS):
            ranked = sorted(gains, key=lambda name: gains[name].mean or 0.0)
            low, high = ranked[0], ranked[-1]
            verdict = _verdict((gains[low].mean or 0.0) > NEAR, (gains[high].mean or 0.0) > NEAR)
            said.append(
                f"{verdict}: {label} improves on zero-shot on every data set that was run ({len(gains)} of "
                f"{len(sheet.rows)}): by {_gain(gains[low])} ({low}) to {_gain(gains[high])} points ({high})."
            )
    return said


def table_2(sheet: Sheet) -> list[str]:
    """The best average under distribution shift?"""
    said = []
    for column, title in enumerate(sheet.columns):
        if not title.startswith("average"):
            continue
        found = {t[0]: e for row, t in enumerate(sheet.rows) if (e := sheet.entry(row, column)).mean is not None}
        rivals = {label: entry.mean or 0.0 for label, entry in found.items() if label in BASELINES}
        for ours in (label for label in found if label.startswith(OURS)):
            if not rivals:
                continue
            leader = max(rivals, key=rivals.__getitem__)
            apart = gap(found[ours], found[leader])
            assert apart is not None
            said.append(
                f"{judged([apart.sign], apart.sign)}: {ours} has a higher {title} than the paper's baselines: "
                f"{_shown(found[ours])} against {_shown(found[leader])} of {leader}, a difference of {apart}."
            )
    return said


def table_3(sheet: Sheet) -> list[str]:
    """Does alpha help under contamination, and does it diverge where there is little of it?"""
    said = []
    for group in dict.fromkeys(_group(titles) for titles in sheet.rows):
        if not group[1].startswith(OURS):
            continue
        rows = {setting(titles[1]): row for row, titles in enumerate(sheet.rows) if _group(titles) == group}
        last, none, largest = len(sheet.columns) - 1, min(rows), max(rows)
        entries = [
            {alpha: e for alpha, row in rows.items() if (e := sheet.entry(row, column)).mean is not None}
            for column in range(len(sheet.columns))
        ]
        measured = [column for column, found in enumerate(entries) if none in found and len(found) > 1]
        if not measured:
            continue
        where = " on ".join(reversed(group))
        if last in measured:
            found = entries[last]
            gains = {
                alpha: apart
                for alpha, entry in found.items()
                if alpha != none and (apart := gap(entry, found[none])) is not None
            }
            best = max(gains, key=lambda alpha: gains[alpha].mean)
            strongest = gains.get(largest)
            moved = "has no number" if strongest is None else f"moves the accuracy by {strongest} points"
            signs = [apart.sign for apart in gains.values()]
            said.append(
                f"{judged(signs, strongest.sign if strongest else 0)}: with {sheet.columns[last]} corrupted images a "
                f"large alpha helps ({where}): against alpha 0 ({_shown(found[none])}), alpha {largest:g} {moved}; the "
                f"best on the test images, alpha {best:g} ({_shown(found[best])}), by {gains[best]}. The paper's "
                f"numbers: {signed(TABLE_3_GAIN)}."
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
        gaps, listed = [], []
        for column, name in enumerate(sheet.columns):
            found = {
                setting(titles[0]): entry
                for row, titles in enumerate(sheet.rows)
                if titles[0].rsplit(" ", 1)[0] == group and (entry := sheet.entry(row, column)).mean is not None
            }
            inside = _best({beta: entry for beta, entry in found.items() if beta >= 0.95})
            outside = _best({beta: entry for beta, entry in found.items() if beta < 0.95})
            if inside is None or outside is None:
                continue
            apart = gap(found[inside], found[outside])
            assert apart is not None
            gaps.append(apart)
            noise = "" if apart.sign else ", noise"
            listed.append(f"{name} {inside:.2f} against {outside:.2f}, {apart}{noise}")
        if gaps:
            said.append(
                f"{_judged_all(gaps)}: a beta from 0.95 to 0.99 is best ({group.removesuffix(' beta')}): the best of "
                f"these against the best below: {'; '.join(listed)}."
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
    """Whether richer beliefs buy accuracy, and which of the two diagonal updates is better."""
    base, other = "diagonal (precision)", "diagonal (covariance)"
    richer = [titles[0] for titles in sheet.rows if titles[0] not in (base, other, ZERO_SHOT)]
    said = [s for label in richer for s in _against(sheet, label, base, f"{label} is better than {base}")]
    return said + _against(sheet, other, base, f"of the two diagonal updates, {other} is better than {base}")


def optimizer(sheet: Sheet) -> list[str]:
    """Does filtering beat first-order optimisation of the same parameters?"""
    labels = dict.fromkeys(titles[0] for titles in sheet.rows)
    rivals = [label for label in labels if not label.startswith(OURS) and label != ZERO_SHOT]
    longer = [label for label in rivals if "passes" in label]
    # each against the filter that makes as many passes
    alike = {rival: Comparison(sheet, _LONGER if rival in longer else _FILTER, rival) for rival in rivals}
    known = {rival: comparison for rival, comparison in alike.items() if comparison.known}
    said = []
    if known:
        verdicts = [comparison.verdict for comparison in known.values()]
        some = any(verdict.startswith("Holds") for verdict in verdicts)
        whole = verdicts[0] if len(set(verdicts)) == 1 else "Holds in part" if some else "Does not hold"
        nearest = min(known, key=lambda rival: known[rival].lead)
        said.append(
            f"{whole}: filtering beats first-order optimisation of the same parameters, images and passes: it beats "
            f"{verdicts.count('Holds')} of {len(known)} optimisers; its lead is smallest over {nearest}."
        )
    for rival, comparison in known.items():
        said += comparison.sentence(f"{_LONGER if rival in longer else _FILTER} beats {rival}")
    return said + [
        s for rival in longer for s in _against(sheet, _FILTER, rival, f"{_FILTER}, with fewer passes, beats {rival}")
    ]


def _against(sheet: Sheet, a: str, b: str, claim: str) -> list[str]:
    """Whether row ``a`` is above row ``b``, in the mean over the columns that both have."""
    return Comparison(sheet, a, b).sentence(claim)


def _wins(sheet: Sheet, ours: str, of: Callable[[Entry], float | None]) -> tuple[int, int, int]:
    """In how many cells one of our rows is best, how many it is near the best baseline in, and of how many."""
    best = near = cells = 0
    for row, titles in enumerate(sheet.rows):
        if titles[0] != ours:
            continue
        baselines = [i for i, (label, k) in enumerate(sheet.rows) if label in BASELINES and k in ("", titles[1])]
        for column in range(len(sheet.columns)):
            own = of(sheet.entry(row, column))
            others = [of(sheet.entry(i, column)) for i in baselines]
            rivals = [value for value in others if value is not None]
            if own is not None and rivals:
                cells += 1
                best += own >= max(rivals)
                near += own >= max(rivals) - NEAR
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


def _shown(entry: Entry) -> str:
    """A cell's mean with its standard deviation."""
    assert entry.mean is not None
    return number(entry.mean) + ("" if entry.std is None else f" ± {number(entry.std)}")


def _gain(entry: Entry) -> str:
    """The same for a cell that is a gain."""
    assert entry.mean is not None
    return signed(entry.mean) + ("" if entry.std is None else f" ± {number(entry.std)}")


def _best(found: Mapping[float, Entry]) -> float | None:
    """The setting with the highest mean."""
    return max(found, key=lambda value: found[value].mean or 0.0) if found else None


def _judged_all(gaps: Sequence[Gap]) -> str:
    return judged([g.sign for g in gaps], average(gaps).sign)


def _verdict(holds: bool, in_part: bool) -> str:
    return "Holds" if holds else "Holds in part" if in_part else "Does not hold"

"""The numbers that the paper prints, as it prints them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from kalmanclip.experiments.paper.study import SIX, ZERO_SHOT, At

OURS = "Ours"
LITERAL, PAPER = f"{OURS} (paper-literal)", f"{OURS} (paper)"
READINGS = (LITERAL, PAPER)
"""The families of variants that are the paper's method, one for each reading of it. What the paper does not describe,
this package's own presets included, is in other families: no number of the paper stands beside it, and no claim of the
paper is judged by it."""

BASELINES = (ZERO_SHOT, "CoOp", "CLIP-Adapter", "Tip-Adapter-F")
"""The labels of what the paper compares its method with."""

_TABLE_1 = {
    (ZERO_SHOT, 0): (60.33, 85.90, 77.32, 52.81, 42.15, 37.55),
    ("CoOp", 1): (57.44, 85.79, 74.32, 60.31, 44.31, 50.57),
    ("CoOp", 2): (58.47, 82.56, 72.52, 59.47, 45.19, 61.52),
    ("CoOp", 4): (60.07, 86.49, 73.37, 63.68, 53.45, 70.14),
    ("CoOp", 8): (62.13, 85.21, 71.76, 65.63, 59.94, 76.69),
    ("CoOp", 16): (63.11, 86.93, 74.58, 69.27, 63.56, 83.50),
    ("CLIP-Adapter", 1): (61.21, 85.87, 77.35, 61.27, 48.77, 62.39),
    ("CLIP-Adapter", 2): (61.52, 86.66, 77.70, 63.18, 52.39, 64.81),
    ("CLIP-Adapter", 4): (61.95, 87.27, 77.93, 65.85, 57.79, 74.30),
    ("CLIP-Adapter", 8): (62.79, 87.58, 78.08, 67.50, 61.44, 78.92),
    ("CLIP-Adapter", 16): (63.72, 87.80, 78.69, 69.55, 66.51, 85.47),
    ("Tip-Adapter-F", 1): (61.32, 87.00, 77.50, 58.75, 49.63, 59.53),
    ("Tip-Adapter-F", 2): (61.69, 87.04, 77.80, 60.47, 53.72, 66.17),
    ("Tip-Adapter-F", 4): (62.52, 87.54, 78.23, 64.30, 57.38, 74.04),
    ("Tip-Adapter-F", 8): (64.00, 88.08, 78.64, 68.27, 62.69, 77.91),
    ("Tip-Adapter-F", 16): (65.51, 89.69, 79.41, 72.18, 66.56, 84.51),
    (OURS, 1): (61.10, 86.77, 77.40, 60.97, 46.76, 55.97),
    (OURS, 2): (61.60, 87.89, 78.12, 64.10, 53.32, 63.13),
    (OURS, 4): (62.85, 88.10, 78.60, 65.80, 57.95, 73.81),
    (OURS, 8): (64.05, 88.27, 79.05, 69.84, 62.13, 77.94),
    (OURS, 16): (65.30, 89.23, 80.06, 72.95, 66.56, 83.89),
}
_FIVE = ("", "imagenet_v2", "imagenet_sketch", "imagenet_a", "imagenet_r")
_AVERAGE = "average"
_TABLE_2 = {
    ZERO_SHOT: (60.33, 53.62, 34.38, 21.64, 50.00, 43.99),
    "CoOp": (63.11, 54.84, 32.86, 22.14, 54.94, 45.58),
    "CLIP-Adapter": (63.72, 55.46, 36.87, 20.93, 58.94, 47.18),
    "Tip-Adapter-F": (65.51, 57.10, 36.18, 20.84, 60.33, 47.99),
    OURS: (65.30, 58.84, 37.38, 21.27, 61.90, 48.93),
}
SHARES = (0.01, 0.05, 0.10, 0.25, 0.50)
DIVERGED = "Diverge"
_TABLE_3: dict[float, tuple[float | str, ...]] = {
    0.0: (64.90, 63.45, 59.33, 48.03, 46.87),
    0.01: (64.59, 62.72, 60.62, 49.73, 47.45),
    0.1: (64.08, 64.67, 61.33, 52.01, 51.25),
    0.5: (DIVERGED, 64.80, 62.14, 55.90, 51.37),
    1.0: (DIVERGED, DIVERGED, DIVERGED, 56.97, 52.06),
}
TABLE_3_GAIN = float(_TABLE_3[1.0][-1]) - float(_TABLE_3[0.0][-1])
"""What the largest alpha gains in Table 3 where half of the images are corrupted."""
_TABLE_4: dict[float, tuple[float | str, ...]] = {
    0.99: (65.47, 85.24, 81.24, 70.30, 67.12, DIVERGED),
    0.98: (65.30, 89.23, 80.06, 72.95, 66.56, 83.89),
    0.95: (63.42, 85.35, 79.48, 74.08, 64.18, 84.60),
    0.90: (63.25, 88.57, 79.00, 73.90, 64.23, 85.30),
    0.85: (63.02, 86.53, 79.02, 72.80, 64.56, 87.00),
    0.80: (62.89, 84.16, 76.38, 71.45, 66.10, 86.68),
}
ALPHAS, BETAS = tuple(_TABLE_3), tuple(_TABLE_4)


def table_1(at: At) -> float | None:
    """Return a number of Table 1, and of Figure 2, which shows the same."""
    return _find(_TABLE_1, (_method(at), 0 if at.label == ZERO_SHOT else at.shots), SIX, at.data)


def figure_3(at: At) -> float | None:
    """Return a number of Figure 3: the paper gives it as a picture; six of its eleven bars follow from Table 1."""
    before, after = table_1(At(ZERO_SHOT, data=at.data)), table_1(at)
    return None if before is None or after is None else round(after - before, 2)


def table_2(at: At) -> float | None:
    """Return a number of Table 2; its last column is the average of the others."""
    column = _AVERAGE if set(at.shifts) == set(_FIVE) else at.shifts[0] if len(at.shifts) == 1 else None
    return _find(_TABLE_2, _method(at), (*_FIVE, _AVERAGE), column) if at.data == "imagenet" else None


def table_3(at: At) -> float | str | None:
    """Return a number of Table 3: rows by alpha."""
    own = at.family in READINGS and at.data == "imagenet"
    return _find(_TABLE_3, at.setting, SHARES, at.share) if own else None


def table_4(at: At) -> float | str | None:
    """Return a number of Table 4: rows by beta."""
    return _find(_TABLE_4, at.setting, SIX, at.data) if at.family in READINGS else None


def _method(at: At) -> str:
    return OURS if at.family in READINGS else at.label


T = TypeVar("T")


def _find(table: Mapping[Any, Sequence[T]], row: Any, columns: Sequence[Any], column: Any) -> T | None:
    return table[row][columns.index(column)] if row in table and column in columns else None

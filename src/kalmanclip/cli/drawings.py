"""Drawings of one evaluation: confusion matrix, reliability diagram, risk-coverage curve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kalmanclip.cli.screen import note
from kalmanclip.errors import ConfigError

_DRAWN = {"confusion": "Confusion matrix", "reliability": "Reliability diagram", "risk_coverage": "Risk and coverage"}


def drawings_at(output: Path | None, folder: Path | None) -> dict[str, Path]:
    """Where which drawing goes, by kind; refuses, before the work, a place that cannot be written to."""
    if output is None and folder is None:
        return {}
    from kalmanclip.pictures import check_picture_path

    found = {}
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise ConfigError(f"Cannot create the folder {folder}: {problem.strerror}. Choose another.") from problem
        found = {kind: folder / f"{kind}.png" for kind in ("confusion", "reliability", "risk_coverage")}
    if output is not None:
        found["confusion"] = output
    for path in found.values():
        check_picture_path(path)
    return found


def draw(drawings: dict[str, Path], result: dict[str, Any], names: list[str]) -> None:
    """Draws what is asked for of one set's result, as `evaluate` prints it in JSON."""
    if not drawings:
        return
    import numpy as np

    from kalmanclip.metrics import ReliabilityBin, RiskCoverage
    from kalmanclip.pictures import draw_confusion, draw_reliability, draw_risk_coverage

    for kind, path in drawings.items():
        if kind == "confusion":
            draw_confusion(path, np.asarray(result["confusion_matrix"]), names)
        elif kind == "reliability":
            draw_reliability(path, [ReliabilityBin(**row) for row in result["reliability"]], result["ece"])
        else:
            curve = result["risk_coverage"]
            points = RiskCoverage(np.array(curve["coverage"]), np.array(curve["risk"]))
            draw_risk_coverage(path, points, result["aurc"])
        note(f"{_DRAWN[kind]}: {path}")

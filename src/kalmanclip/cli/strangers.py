"""``kalmanclip evaluate --unknown``: are images of no known class told from the others?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kalmanclip.cli.common import naming_bad_images
from kalmanclip.cli.screen import bars, listing, percent, say
from kalmanclip.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from kalmanclip.estimator import KalmanCLIP


@dataclass(frozen=True)
class Strangers:
    """Images that show none of the classes, and what two scores say of them; the larger, the more familiar.

    Attributes:
        name: of the images.
        familiarity: (M,).
        mcm: (M,), the reference.
    """

    name: str
    familiarity: np.ndarray
    mcm: np.ndarray


def read_strangers(folders: Sequence[str], false_alarms: float) -> dict[str, list[Path]]:
    """The unknown images by the name of their folder."""
    from kalmanclip.data import read_images
    from kalmanclip.data.resolve import data_name, split_name

    if not 0 < false_alarms < 1:
        raise ConfigError(f"--false-alarms is a share between 0 and 1, not {false_alarms:g}.")
    found: dict[str, list[Path]] = {}
    for spelling in folders:
        name, place = data_name(spelling), split_name(spelling)[1]
        if name in found:
            raise ConfigError(f"Two folders of unknown images are called {name!r}. Name one of them: OTHER={spelling}")
        found[name] = read_images(place)
    return found


def look_at(clf: KalmanCLIP, name: str, files: Sequence[Any]) -> Strangers:
    """What both scores say of images."""
    from kalmanclip.metrics import maximum_softmax

    with bars(f"{name}: ") as progress, naming_bad_images(files):
        prediction = clf.method.predict(files, how="mean", zero_shot=True, progress=progress)
    assert prediction.ood_score is not None
    assert prediction.zero_shot is not None
    familiarity = -prediction.ood_score.numpy()
    return Strangers(name, familiarity, maximum_softmax(prediction.zero_shot, temperature=clf.backbone.logit_scale))


def told_apart(
    clf: KalmanCLIP, name: str, sources: Sequence[Any], outside: Sequence[Strangers], rate: float
) -> dict[str, Any]:
    """How well known images, those of one set, are told from unknown ones, at a rate of false alarms."""
    from kalmanclip.metrics import detection_auroc, fpr_at_tpr

    own = look_at(clf, name, sources)
    threshold = clf.method.ood_threshold(rate)
    assert threshold is not None
    rows = [
        {
            "name": other.name,
            "images": len(other.familiarity),
            "auroc": detection_auroc(own.familiarity, other.familiarity),
            "fpr95": fpr_at_tpr(own.familiarity, other.familiarity),
            "mcm_auroc": detection_auroc(own.mcm, other.mcm),
            "mcm_fpr95": fpr_at_tpr(own.mcm, other.mcm),
            "flagged": float((other.familiarity < -threshold).mean()),
        }
        for other in outside
    ]
    alarms = {"asked_for": rate, "found": float((own.familiarity < -threshold).mean())}
    return {"unknown": rows, "false_alarms": alarms}


def alarm_facts(result: dict[str, Any]) -> list[tuple[str, str]]:
    """For `screen.facts`: how many known images were called unknown, if that was measured."""
    if "unknown" not in result:
        return []
    alarms = result["false_alarms"]
    return [("false alarms", f"{percent(alarms['found'])} called unknown ({percent(alarms['asked_for'])} asked for)")]


def print_unknown(results: Sequence[dict[str, Any]]) -> None:
    """Prints how well unknown images were told from those of each set, if that was measured."""
    if not any("unknown" in result for result in results):
        return
    numbers = ("images", "AUROC", "FPR95", "flagged", "MCM AUROC", "MCM FPR95")
    table = listing("known", "corruption", "unknown", *numbers, right=numbers)
    for result in results:
        for row in result["unknown"]:
            shares = (row[name] for name in ("auroc", "fpr95", "flagged", "mcm_auroc", "mcm_fpr95"))
            cells = [result["name"], result["corruption"] or "none", row["name"], str(row["images"])]
            table.add_row(*cells, *map(percent, shares))
    say(table)

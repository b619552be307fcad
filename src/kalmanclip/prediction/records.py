"""A prediction as plain values: what the command line prints and the server answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kalmanclip.prediction.predictive import NONE_OF_THESE, Prediction

SURE = 0.5
"""The probability from which on the most probable class is an answer, unless somebody asks for another."""


def records(
    names: Sequence[str], prediction: Prediction, top: int = 2, uncertainty: bool = False
) -> list[dict[str, Any]]:
    """Return what is said about each image as values that JSON and CSV can hold, in the order of the columns.

    An image that shows none of the classes has no probability and no set; ``top`` still names the closest classes.

    Args:
        names: of the images.
        prediction: of the same images.
        top: how many classes to name.
        uncertainty: whether the belief was averaged over, and what it leaves open is said, too.
    """
    columns: dict[str, Sequence[Any]] = {}
    if prediction.is_ood is not None and prediction.ood_score is not None:
        columns |= {"is_ood": prediction.is_ood.tolist(), "ood_score": prediction.ood_score.tolist()}
    if prediction.sets is not None:
        columns["set"] = prediction.sets
    p = prediction.probabilities if uncertainty else prediction.at_mean
    if uncertainty:
        from kalmanclip.metrics import standardized_margin  # later: it takes scikit-learn, half a second

        first = p.argmax(dim=1, keepdim=True)
        columns |= {
            "epistemic": prediction.epistemic.tolist(),
            "aleatoric": prediction.aleatoric.tolist(),
            "logit_std": prediction.std.gather(1, first).squeeze(1).tolist(),
            "lead": standardized_margin(prediction.mean.numpy(), prediction.std.numpy()).tolist(),
        }
    order = p.argsort(dim=1, descending=True, stable=True)[:, :top].tolist()
    rows = []
    for i, name in enumerate(names):
        choices = [{"class": prediction.class_names[c], "probability": round(float(p[i, c]), 6)} for c in order[i]]
        values = {key: column[i] for key, column in columns.items()}
        rounded = {key: round(value, 6) if isinstance(value, float) else value for key, value in values.items()}
        answer: dict[str, Any] = dict(choices[0])
        if rounded.get("is_ood"):  # one answer: no class beside it
            answer = {"class": NONE_OF_THESE, "probability": None}
            rounded |= {"set": []} if "set" in rounded else {}
        rows.append({"image": name, **answer, **rounded, "top": choices})
    return rows

"""Predictions as tables: a frame of pandas, and what a notebook shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from kalmanclip.prediction.predictive import Prediction

ROWS_SHOWN = 10
"""Images that a notebook shows of a prediction."""


def prediction_frame(
    prediction: Prediction, images: Sequence[str] | None = None, probabilities: bool = False
) -> pd.DataFrame:
    """Return one row per image, with the columns of ``kalmanclip predict --csv`` where these are the same.

    Args:
        prediction: of N images.
        images: their names, N of them, for the index; None: numbers.
        probabilities: whether to add a column for each class, ``p(NAME)``.

    Returns:
        ``class`` (or "none of these" where the image was flagged), its ``probability`` (not a number where flagged),
        ``epistemic`` and ``aleatoric`` nats, and what else the prediction has: ``ood_score``, ``is_ood``, ``set``
        (empty where flagged).
    """
    import pandas as pd  # later: a prediction alone needs no tables

    flagged = np.zeros(len(prediction), dtype=bool) if prediction.is_ood is None else prediction.is_ood.numpy()
    columns: dict[str, Any] = {
        "class": prediction.answers,
        "probability": np.where(flagged, np.nan, prediction.confidence.numpy()),
        "epistemic": prediction.epistemic.numpy(),
        "aleatoric": prediction.aleatoric.numpy(),
    }
    for name in ("ood_score", "is_ood"):
        values = getattr(prediction, name)
        if values is not None:
            columns[name] = values.numpy()
    if prediction.sets is not None:
        columns["set"] = [[] if out else names for out, names in zip(flagged, prediction.sets, strict=True)]
    frame = pd.DataFrame(columns, index=None if images is None else pd.Index(images, name="image"))
    if probabilities:
        names = [f"p({name})" for name in prediction.class_names]
        frame = pd.concat(
            [frame, pd.DataFrame(prediction.probabilities.numpy(), columns=names, index=frame.index)], axis=1
        )
    return frame


def prediction_html(prediction: Prediction) -> str:
    """Return the first rows of a prediction as HTML; names are escaped."""
    shown = prediction_frame(prediction).head(ROWS_SHOWN)
    more = len(prediction) - len(shown)
    formats = {"probability": "{:.1%}".format, "epistemic": "{:.3f}".format, "aleatoric": "{:.3f}".format}
    table = shown.to_html(formatters={name: formats[name] for name in formats}, border=0, escape=True, na_rep="")
    return f"<p>{len(prediction)} images, {len(prediction.class_names)} classes</p>{table}" + (
        f"<p>and {more} more: <code>to_frame()</code> has all.</p>" if more else ""
    )

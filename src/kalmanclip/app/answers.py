"""What an adapter says about one picture, in the terms that a page shows it in."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kalmanclip.app.gallery import Gallery
from kalmanclip.app.limits import Upload
from kalmanclip.encoders.features import frozen_activations
from kalmanclip.errors import ConfigError
from kalmanclip.estimator import KalmanCLIP
from kalmanclip.prediction import FALSE_ALARMS, LogitGaussian, Prediction

CHOICES = 5
"""Classes that are shown, the most probable first."""

NEIGHBOURS = 6
"""Training pictures that are shown."""

RANGE = 0.9
"""Share of the belief in which a probability stays within its range."""

COVERAGE = 0.9
"""With which the set of classes holds the right one."""

_DRAWS = 512


@dataclass(frozen=True)
class Choice:
    """A class, its probability, and the range in which `RANGE` of the belief has it."""

    name: str
    probability: float
    low: float
    high: float


@dataclass(frozen=True)
class Neighbour:
    """A training picture: its name, class, cosine similarity, and a preview where there is one."""

    name: str
    class_name: str
    similarity: float
    preview: str | None


@dataclass(frozen=True)
class Answer:
    """What is said about one picture.

    Attributes:
        choices: the most probable classes.
        picture: share of what a pure guess leaves open that the picture itself leaves open, in 0..1.
        training: share that the few training pictures leave open.
        unknown: whether it looks like nothing that was learned; None: the adapter cannot tell.
        among: the classes that hold the right one with probability `COVERAGE`; None: it was not calibrated for that.
        neighbours: the most similar training pictures.
    """

    choices: tuple[Choice, ...]
    picture: float
    training: float
    unknown: bool | None
    among: tuple[str, ...] | None
    neighbours: tuple[Neighbour, ...]


def answer(classifier: KalmanCLIP, image: Upload, gallery: Gallery) -> Answer:
    """All there is to say about a picture."""
    prediction = classifier.predict_distribution([image])
    f = _embedding(classifier, image)
    guess = math.log(max(2, len(prediction.class_names)))
    return Answer(
        choices=_choices(prediction),
        picture=float(prediction.aleatoric[0]) / guess,
        training=float(prediction.epistemic[0]) / guess,
        unknown=_unknown(classifier, f),
        among=_among(classifier, image),
        neighbours=_neighbours(classifier, f, gallery),
    )


def _choices(prediction: Prediction) -> tuple[Choice, ...]:
    draws = LogitGaussian(prediction.mean, prediction.std.square()).draws(_DRAWS).softmax(dim=2)[:, 0].double()
    ends = torch.tensor([(1 - RANGE) / 2, (1 + RANGE) / 2], dtype=torch.float64)
    p, (low, high) = prediction.probabilities[0].double(), draws.quantile(ends, dim=0)
    low, high = torch.minimum(low, p), torch.maximum(high, p)  # the mean of a skewed distribution may lie outside
    best = p.argsort(descending=True)[:CHOICES].tolist()
    return tuple(Choice(prediction.class_names[c], float(p[c]), float(low[c]), float(high[c])) for c in best)


@torch.no_grad()
def _embedding(classifier: KalmanCLIP, image: Upload) -> Tensor:
    """Unit-length, (1, d)."""
    encoder = classifier.method.encoder
    (activations,) = frozen_activations(encoder, [image], keep=False)
    return encoder.encode_images(activations)


def _unknown(classifier: KalmanCLIP, f: Tensor) -> bool | None:
    ood = classifier.method.ood
    try:
        return None if ood is None else bool(ood.score(f)[0] > ood.threshold(FALSE_ALARMS).value)
    except ConfigError:  # too few training pictures for a threshold
        return None


def _among(classifier: KalmanCLIP, image: Upload) -> tuple[str, ...] | None:
    if classifier.method.calibration is None:
        return None
    try:
        return tuple(classifier.predict_sets([image], COVERAGE)[0])
    except ConfigError:  # too few calibration pictures for this promise
        return None


def _neighbours(classifier: KalmanCLIP, f: Tensor, gallery: Gallery) -> tuple[Neighbour, ...]:
    known = classifier.method.ood
    if known is None:
        return ()
    nearest = known.nearest(f, NEIGHBOURS)
    return tuple(
        Neighbour(known.names[i], classifier.classes_[int(known.labels[i])], s, gallery.show(i, known.names[i]))
        for s, i in zip(nearest.similarity[0].tolist(), nearest.position[0].tolist(), strict=True)
    )

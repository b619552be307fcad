"""Which images to label next, by what a classifier's belief expects of their labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from kalmanclip.data import ImageSource
from kalmanclip.data.images import image_identity
from kalmanclip.encoders import Activations
from kalmanclip.encoders.features import Progress, frozen_activations, silent
from kalmanclip.errors import ConfigError, DataError
from kalmanclip.methods.classifier import Classifier
from kalmanclip.prediction import acquisition, expected_softmax

DRAWS = 64
"""Classifiers that are drawn from the belief."""

ACQUISITIONS = {
    "filter": "what labels tell about those of the pool: the filter's covariance, run ahead over the whole batch",
    "epig": "what each label tells about those of the pool, by classifiers drawn from the belief",
    "batchbald": "what labels tell about the classifier, all of the batch together",
    "bald": "what each label tells about the classifier",
    "entropy": "the most undecided predictions",
    "margin": "the smallest lead of the first class over the second",
    "random": "any",
}
"""How images are chosen."""

DEFAULT = "filter"
"""Where there are class residuals; else see `usual_acquisition`."""


@dataclass(frozen=True, eq=False)
class Suggestion:
    """Images of a pool, the one to label first at the front.

    Attributes:
        positions: in the pool.
        scores: what they were chosen by, larger for better: nats, but for 'margin' (one less the margin) and 'random'
            (nothing). With 'filter', of each as if the labels before it were known.
        probabilities: of the pool as it is (N, C), averaged over the belief.
        unlabelled: (N,), which images of the pool were not learned from.
        images: those suggested.
    """

    positions: list[int]
    scores: list[float]
    probabilities: Tensor
    unlabelled: Tensor
    images: list[ImageSource] = field(default_factory=list)

    @property
    def expected_accuracy(self) -> float:
        """The share of the pool without labels that the classifier expects to tell right, in 0..1: its confidence."""
        return float(self.probabilities[self.unlabelled].amax(dim=1).mean()) if self.unlabelled.any() else 1.0


class ImagePool(NamedTuple):
    """Images to choose from, as the frozen part of the model sees them: read once, asked about after every label.

    Attributes:
        sources: the images.
        batches: their activations.
    """

    sources: list[ImageSource]
    batches: list[Activations]


def read_pool(method: Classifier, images: Iterable[ImageSource], progress: Progress = silent) -> ImagePool:
    """Return images to choose from; ``progress`` is told about reading."""
    sources = list(images)
    if not sources:
        raise DataError("There are no images to choose from.")
    with torch.no_grad():
        return ImagePool(sources, list(frozen_activations(method.encoder, sources, progress)))


@torch.no_grad()
def suggest(method: Classifier, pool: ImagePool, n: int, by: str = DEFAULT, seed: int = 0) -> Suggestion:
    """Return n images of a pool, or all if there are fewer; those that were learned from, by their names, are not.

    Args:
        method: what has learned from at least one image.
        pool: the images.
        n: how many.
        by: one of `ACQUISITIONS`.
        seed: of what is random.
    """
    check_acquisition(method, by, n)
    learned = set(method.training_images.names) if method.training_images else set()
    unlabelled = torch.tensor([image_identity(source) not in learned for source in pool.sources])
    gaussian = method.linearized()
    probabilities = torch.cat([expected_softmax(gaussian(batch)).probabilities for batch in pool.batches]).cpu()
    rest = torch.where(unlabelled)[0]
    positions, scores = choose(method, [_rows(pool.batches, rest)], n, by, seed) if len(rest) else ([], [])
    positions = rest[positions].tolist()
    return Suggestion(positions, scores, probabilities, unlabelled, [pool.sources[i] for i in positions])


@torch.no_grad()
def choose(
    method: Classifier, pool: Sequence[Activations], n: int, by: str = DEFAULT, seed: int = 0, draws: int = DRAWS
) -> tuple[list[int], list[float]]:
    """Return the positions of n images of a pool, and their scores; see `Suggestion`.

    Args:
        method: what has learned from at least one image.
        pool: activations of the images, batch by batch.
        n: how many.
        by: one of `ACQUISITIONS`.
        seed: of what is random.
        draws: classifiers that are drawn from the belief.
    """
    check_acquisition(method, by, n)
    if by == "random":
        count = sum(len(batch[0]) for batch in pool)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:n].tolist()
        return order, [0.0] * len(order)
    sampled = method.sampled(draws)
    p = torch.cat([sampled(batch).softmax(dim=2) for batch in pool], dim=1)
    if by == "filter":
        joint = method.joint_logits(tuple(torch.cat(column) for column in zip(*pool, strict=True)))
        found = acquisition.choose_informative(joint, acquisition.expected_curvature(p), n)
        return found.positions, found.information
    if by == "batchbald":
        positions = acquisition.batch_mutual_information(p, n, seed)
        return positions, acquisition.mutual_information(p)[positions].tolist()
    scores = _SCORES[by](p)
    order = scores.argsort(descending=True, stable=True)[:n].tolist()
    return order, scores[order].tolist()


def usual_acquisition(method: Classifier) -> str:
    """Return how images are chosen unless somebody says how."""
    return DEFAULT if method.joint else "batchbald"


def check_acquisition(method: Classifier, by: str, n: int) -> None:
    """Raise `ConfigError` where the classifier cannot choose so many images so."""
    if by not in ACQUISITIONS:
        raise ConfigError(f"Images are chosen by one of {', '.join(ACQUISITIONS)}, not {by!r}.")
    if n < 1:
        raise ConfigError(f"Ask for at least one image, not {n}.")
    if not method.fitted:
        raise ConfigError("There is no belief yet: call fit first.")
    if by == "filter" and not method.joint:
        raise ConfigError(
            "Choosing by 'filter' takes class residuals (preset 'residuals' or 'joint'). Choose by 'batchbald' instead."
        )


def _rows(pool: Sequence[Activations], rows: Tensor) -> Activations:
    """Return the activations of some images of a pool."""
    return tuple(torch.cat(column)[rows.to(column[0].device)] for column in zip(*pool, strict=True))


def _predictive(p: Tensor) -> Tensor:
    order = torch.randperm(p.shape[1], generator=torch.Generator().manual_seed(0))
    return acquisition.predictive_information(p, p[:, order[: acquisition.TARGETS].to(p.device)])


_SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "epig": _predictive,
    "bald": acquisition.mutual_information,
    "entropy": lambda p: acquisition.entropy(p.mean(dim=0)),
    "margin": lambda p: acquisition.ambiguity(p.mean(dim=0)),
}

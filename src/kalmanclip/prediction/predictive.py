"""Predictions when the logits are uncertain: the expectation of a softmax under a Gaussian over its logits.

There is no closed form. `expected_softmax` draws logits, with the same random numbers for every image, so that images
can be compared; `mean_field` is a formula without draws, the probit approximation with each class's own variance.

The entropy of the mean prediction (total) is the mean entropy of the predictions (aleatoric: every plausible classifier
is undecided about this image) plus their mutual information with the parameters (epistemic: plausible classifiers are
decided, and disagree).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kalmanclip.prediction.frames import prediction_frame, prediction_html

if TYPE_CHECKING:
    import pandas as pd

NONE_OF_THESE = "none of these"
"""The answer about an image that shows nothing learned from."""

SAMPLES = 64
"""Draws of the logits for one expectation, half of them mirror images of the others."""

_NUMBERS = 2**24  # drawn at a time, for the memory


@dataclass(frozen=True, eq=False)
class LogitGaussian:
    """A Gaussian over the logits of each image: ``N(mean, diag(own) + shared shared^T)``.

    Attributes:
        mean: (N, C).
        own: variances (N, C) of what moves the classes one by one, such as residuals that each class has its own.
        shared: (N, C, K), what moves the classes together, such as parameters of a tower; None: nothing does.
    """

    mean: Tensor
    own: Tensor
    shared: Tensor | None = None

    @property
    def std(self) -> Tensor:
        """The marginal standard deviations (N, C)."""
        variance = self.own if self.shared is None else self.own + self.shared.square().sum(dim=2)
        return variance.clamp_min(0).sqrt()

    def split(self, rows: int) -> list[LogitGaussian]:
        """Return consecutive parts of at most so many images; no images are one part."""
        shared = [None] * max(1, -(-len(self.mean) // rows)) if self.shared is None else self.shared.split(rows)
        return [LogitGaussian(*p) for p in zip(self.mean.split(rows), self.own.split(rows), shared, strict=True)]

    def scaled(self, scale: float) -> LogitGaussian:
        """Return the same mean with ``scale`` times the covariance."""
        shared = None if self.shared is None else math.sqrt(scale) * self.shared
        return LogitGaussian(self.mean, scale * self.own, shared)

    def draws(self, samples: int) -> Tensor:
        """Return logits (samples, N, C), the same random numbers for every image; draw ``2 i + 1`` mirrors ``2 i``.

        The mean of all draws is the mean itself, and the same call gives the same draws on every device.
        """
        generator = torch.Generator().manual_seed(0)
        pairs = (samples + 1) // 2
        z = torch.randn(pairs, 1, self.mean.shape[1], generator=generator, dtype=torch.float64).to(self.mean)
        away = z * self.own.clamp_min(0).sqrt()
        if self.shared is not None:
            z = torch.randn(pairs, self.shared.shape[2], generator=generator, dtype=torch.float64).to(self.mean)
            away = away + torch.einsum("sk,nck->snc", z, self.shared)
        return torch.stack([self.mean + away, self.mean - away], dim=1).flatten(0, 1)[:samples]


class Averaged(NamedTuple):
    """What many softmaxes of the same images have in common.

    Attributes:
        probabilities: their mean (N, C); rows sum to one.
        entropy: the mean of their entropies (N,), in nats.
    """

    probabilities: Tensor
    entropy: Tensor

    def decompose(self) -> Decomposition:
        """Return the parts of the entropy. It is concave, so neither part is negative."""
        total = torch.special.entr(self.probabilities).sum(dim=1)
        aleatoric = torch.minimum(self.entropy, total)  # equal but for rounding where the draws are
        return Decomposition(aleatoric, total - aleatoric)


class Decomposition(NamedTuple):
    """The parts of the entropy of a prediction, in nats, each (N,) and not negative.

    Attributes:
        aleatoric: the mean entropy.
        epistemic: the mutual information: the entropy of the mean prediction less the mean entropy.
    """

    aleatoric: Tensor
    epistemic: Tensor


def averaged(logits: Tensor) -> Averaged:
    """Return the mean over draws of logits (samples, N, C)."""
    p = logits.softmax(dim=2)
    return Averaged(p.mean(dim=0), torch.special.entr(p).sum(dim=2).mean(dim=0))


def expected_softmax(logits: LogitGaussian, samples: int = SAMPLES) -> Averaged:
    """Return the mean of the softmax, and of its entropy, over draws; without variance exactly the softmax."""
    rows = max(1, _NUMBERS // (samples * logits.mean.shape[1]))
    parts = [averaged(part.draws(samples)) for part in logits.split(rows)]
    return Averaged(*(torch.cat(column) for column in zip(*parts, strict=True)))


def mean_field(logits: LogitGaussian) -> Tensor:
    """Return ``softmax(mean / sqrt(1 + pi / 8 variance))`` (N, C): correlations are left out."""
    return (logits.mean / (1 + math.pi / 8 * logits.std.square()).sqrt()).softmax(dim=1)


class Neighbors(NamedTuple):
    """The training images most similar to each of N images.

    Attributes:
        similarity: cosines (N, k), the largest first.
        position: (N, k), among the training images.
    """

    similarity: Tensor
    position: Tensor


@dataclass(frozen=True, eq=False)
class Prediction:
    """Class probabilities of N images, and how sure they are; tensors on the CPU.

    Attributes:
        class_names: the C classes.
        probabilities: (N, C), averaged over the belief; rows sum to one.
        aleatoric: (N,), nats of entropy that every plausible classifier leaves.
        epistemic: (N,), nats by which plausible classifiers disagree; zero where no belief was averaged over.
        mean: the logits at the mean of the belief (N, C).
        std: their standard deviations (N, C) under the belief, scaled as for the probabilities.
        ood_score: (N,), the larger, the less an image is like those learned from; None: the method has no such score.
        is_ood: (N,), whether the score is above the threshold; None: no score, or too few training images.
        neighbors: the most similar training images; None unless asked for.
        zero_shot: the logits (N, C) of the untouched model with the same prompts; None unless asked for.
        sets: for each image the classes, the most probable first, that hold the true one with the coverage asked for;
            None unless asked for.
    """

    class_names: tuple[str, ...]
    probabilities: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    mean: Tensor
    std: Tensor
    ood_score: Tensor | None = None
    is_ood: Tensor | None = None
    neighbors: Neighbors | None = None
    zero_shot: Tensor | None = None
    sets: list[list[str]] | None = None

    @classmethod
    def of(cls, class_names: Sequence[str], average: Averaged, mean: Tensor, std: Tensor) -> Prediction:
        """Make one of averaged softmaxes and the logits' mean and standard deviation (N, C)."""
        parts = average.decompose()
        columns = (average.probabilities, parts.aleatoric, parts.epistemic)
        p, aleatoric, epistemic = (t.cpu() for t in columns)
        return cls(tuple(class_names), p, aleatoric, epistemic, mean.cpu(), std.cpu())

    @classmethod
    def joined(cls, class_names: Sequence[str], batches: Sequence[Prediction]) -> Prediction:
        """Make one of consecutive batches; of none, one about no images. Sets are made afterwards."""
        names = tuple(class_names)
        if not batches:
            rows, row = torch.empty(0, len(names)), torch.empty(0)
            return cls(names, rows, row, row, rows, rows)
        columns: dict[str, Any] = {}
        for name in (f.name for f in fields(cls) if f.name not in ("class_names", "sets")):
            column = [getattr(batch, name) for batch in batches]
            if isinstance(column[0], Neighbors):
                columns[name] = Neighbors(*(torch.cat(parts) for parts in zip(*column, strict=True)))
            elif column[0] is not None:
                columns[name] = torch.cat(column)
        return cls(names, **columns)

    def __len__(self) -> int:
        return len(self.probabilities)

    def _repr_html_(self) -> str:
        return prediction_html(self)

    def to_frame(self, images: Sequence[str] | None = None, probabilities: bool = False) -> pd.DataFrame:
        """Return a frame of pandas, one row per image; see `kalmanclip.prediction.frames.prediction_frame`."""
        return prediction_frame(self, images, probabilities)

    @property
    def labels(self) -> np.ndarray:
        """The name of the most probable class of each image, (N,)."""
        return np.array(self.class_names)[self.probabilities.argmax(dim=1).numpy()]

    @property
    def answers(self) -> np.ndarray:
        """One answer for each image, (N,): the most probable class, or `NONE_OF_THESE` where flagged."""
        return self.labels if self.is_ood is None else np.where(self.is_ood.numpy(), NONE_OF_THESE, self.labels)

    @property
    def confidence(self) -> Tensor:
        """The probability of that class (N,)."""
        return self.probabilities.amax(dim=1)

    @property
    def total(self) -> Tensor:
        """The entropy of the probabilities (N,), in nats: aleatoric plus epistemic."""
        return self.aleatoric + self.epistemic

    @property
    def at_mean(self) -> Tensor:
        """The probabilities (N, C) at the mean of the belief: those of an exported classifier, and of the sets."""
        return self.mean.softmax(dim=1)

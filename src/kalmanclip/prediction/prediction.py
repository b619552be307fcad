"""The prediction of a classifier with a belief: everything that one pass over the images yields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kalmanclip.prediction.predictive import Averaged


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
        probabilities, aleatoric, epistemic = (
            t.cpu() for t in (average.probabilities, parts.aleatoric, parts.epistemic)
        )
        return cls(tuple(class_names), probabilities, aleatoric, epistemic, mean.cpu(), std.cpu())

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
            columns[name] = None if column[0] is None else _joined(column)
        return cls(names, **columns)

    def with_(self, **changed: Any) -> Prediction:
        """Return a copy with some fields set."""
        return replace(self, **changed)

    def __len__(self) -> int:
        return len(self.probabilities)

    @property
    def labels(self) -> np.ndarray:
        """The name of the most probable class of each image, (N,)."""
        return np.array(self.class_names)[self.probabilities.argmax(dim=1).numpy()]

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


def _joined(column: list[Any]) -> Any:
    if isinstance(column[0], Neighbors):
        return Neighbors(*(torch.cat(parts) for parts in zip(*column, strict=True)))
    return torch.cat(column)

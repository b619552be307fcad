"""What a classifier with a belief says about images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kalmanclip.prediction.decomposition import decompose
from kalmanclip.prediction.gaussian_softmax import Averaged


@dataclass(frozen=True, eq=False)
class Prediction:
    """Class probabilities of N images, and how sure they are; tensors on the CPU.

    Attributes:
        class_names: the C classes.
        probabilities: (N, C), averaged over the belief; rows sum to one.
        aleatoric: (N,), nats of entropy that every plausible classifier leaves.
        epistemic: (N,), nats by which plausible classifiers disagree; zero where no belief was averaged over.
        mean: the logits at the mean of the belief (N, C).
        std: their standard deviations (N, C) under the belief, tempered as the probabilities are.
    """

    class_names: tuple[str, ...]
    probabilities: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, class_names: Sequence[str], average: Averaged, mean: Tensor, std: Tensor) -> Prediction:
        """From averaged softmaxes, with the logits' mean and standard deviation (N, C)."""
        parts = decompose(average)
        tensors = (average.probabilities, parts.aleatoric, parts.epistemic, mean, std)
        return cls(tuple(class_names), *(tensor.cpu() for tensor in tensors))

    @classmethod
    def joined(cls, class_names: Sequence[str], batches: Sequence[Prediction]) -> Prediction:
        """One prediction out of those of consecutive batches; none at all is a prediction about no images."""
        names = tuple(class_names)
        if not batches:
            rows, row = torch.empty(0, len(names)), torch.empty(0)
            return cls(names, rows, row, row, rows, rows)
        columns = zip(*((b.probabilities, b.aleatoric, b.epistemic, b.mean, b.std) for b in batches), strict=True)
        return cls(names, *(torch.cat(column) for column in columns))

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

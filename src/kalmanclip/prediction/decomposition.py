"""Two kinds of not knowing: what the image leaves open, and what the few training images have left open.

The entropy of the mean prediction (total) is the mean entropy of the predictions (aleatoric: every plausible classifier
is undecided about this image) plus their mutual information with the parameters (epistemic: plausible classifiers are
decided, and disagree).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kalmanclip.prediction.gaussian_softmax import Averaged


class Decomposition(NamedTuple):
    """The parts of the entropy of a prediction, in nats, each (N,) and not negative.

    Attributes:
        aleatoric: the mean entropy.
        epistemic: the mutual information; `total` less `aleatoric`.
    """

    aleatoric: Tensor
    epistemic: Tensor

    @property
    def total(self) -> Tensor:
        """The entropy of the mean prediction (N,)."""
        return self.aleatoric + self.epistemic


def decompose(average: Averaged) -> Decomposition:
    """The parts, from the same draws that gave the probabilities: the entropy is concave, so neither is negative."""
    total = torch.special.entr(average.probabilities).sum(dim=1)
    aleatoric = torch.minimum(average.entropy, total)  # equal but for rounding where the draws are
    return Decomposition(aleatoric, total - aleatoric)

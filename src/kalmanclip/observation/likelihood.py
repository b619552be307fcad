"""What the filter sees of a batch: the contract that every observation keeps.

An observation turns the similarities of a batch into outputs ``y_hat``, targets ``y`` and derivatives. Output (i, k)
depends on row i of the similarity matrix alone, which is what makes Jacobians cheap, and lets ranks share a batch;
observations that need the other rows say so (``by_row``), and pay for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor


class Terms(NamedTuple):
    """K outputs for each of B images, against C texts.

    Attributes:
        y: targets (B, K).
        y_hat: outputs (B, K).
        G: derivatives (B, K, C) of the outputs with respect to their image's row of similarities; (B, K, B, C) with
            respect to all rows, if the observation is not ``by_row``.
    """

    y: Tensor
    y_hat: Tensor
    G: Tensor


class Likelihood(ABC):
    """An observation: which texts a batch needs, and what is observed of the similarities.

    Attributes:
        paired: True when image i is compared with its own text only; similarities then have shape (B, 1).
        of_batch: True when images are compared with the distinct texts of their batch, however many these are, and a
            text whose similarities are minus infinity is as good as absent.
        by_row: True when the outputs of an image depend on its own row of similarities alone.
        fixed: True when the number of outputs follows from the number of images and classes alone.
        has_covariance: True when the outputs are scaled to unit observation covariance by the likelihood itself, so
            that no moving average is needed: ``R = I``.
    """

    paired = False
    of_batch = False
    by_row = True
    fixed = True
    has_covariance = False

    def texts(self, labels: Tensor, classes: int) -> Tensor:
        """Return which class prompts a batch with these labels (B,) needs: indices (C',)."""
        return torch.arange(classes, device=labels.device)

    @abstractmethod
    def terms(self, S: Tensor, column: Tensor, scale: float) -> Terms:
        """Return targets, outputs and derivatives.

        Args:
            S: cosine similarities (B, C').
            column: which column is each image's own, (B,).
            scale: 1 / tau, the backbone's logit scale.
        """


def softmax_rows(S: Tensor, column: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return class probabilities (B, C), one-hot targets (B, C), and each image's own probability (B, 1)."""
    p = torch.softmax(scale * S, dim=-1)
    return p, torch.nn.functional.one_hot(column, S.shape[1]).to(S), p.gather(1, column.unsqueeze(1))

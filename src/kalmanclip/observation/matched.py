"""Matched pairs with negatives: the probability of an image's own text, target one."""

import torch
from torch import Tensor

from kalmanclip.observation.likelihood import Likelihood, Terms, softmax_rows


class Classes(Likelihood):
    """``y_hat_i = softmax(S_i / tau)[own class]`` over all class prompts, ``y = 1``."""

    def terms(self, S: Tensor, column: Tensor, scale: float) -> Terms:
        """One probability per image: ``d p_y / d S_c = p_y (1[c = y] - p_c) / tau``."""
        p, target, own = softmax_rows(S, column, scale)
        return Terms(torch.ones_like(own), own, (scale * own * (target - p)).unsqueeze(1))


class Contrastive(Classes):
    """The same over the texts of the batch only (each text once, also where two images share it)."""

    of_batch = True

    def texts(self, labels: Tensor, classes: int) -> Tensor:
        """The distinct classes of the batch."""
        return labels.unique()

"""The paper to the letter: the matched cosine similarities, target one."""

import torch
from torch import Tensor

from kalmanclip.observation.likelihood import Likelihood, Terms


class Cosine(Likelihood):
    """``y_hat = diag(S_C)``, ``y = 1``. Attraction without repulsion: it carries no negatives (see the docs)."""

    paired = True

    def texts(self, labels: Tensor, classes: int) -> Tensor:
        """Each image's own prompt, repeated where labels repeat."""
        return labels

    def terms(self, S: Tensor, column: Tensor, scale: float) -> Terms:
        """One similarity per image."""
        return Terms(torch.ones_like(S), S, torch.ones_like(S).unsqueeze(1))

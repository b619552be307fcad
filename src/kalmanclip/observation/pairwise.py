"""The paper's discarded alternative: the whole similarity matrix of the batch, target the identity."""

import torch
from torch import Tensor

from kalmanclip.observation.likelihood import Likelihood, Terms


class Pairwise(Likelihood):
    """``y_hat = flatten(S_C)``, ``y = flatten(I)``: one for an image's own text, zero for the others of the batch.

    Each text counts once, also where two images share it; with distinct captions this is the paper's ``flatten``.
    """

    fixed = False

    def texts(self, labels: Tensor, classes: int) -> Tensor:
        """The distinct classes of the batch."""
        return labels.unique()

    def terms(self, S: Tensor, column: Tensor, scale: float) -> Terms:
        """All similarities of the batch; the derivative is the identity."""
        C = S.shape[1]
        y = torch.nn.functional.one_hot(column, C).to(S)
        return Terms(y, S, torch.eye(C, dtype=S.dtype, device=S.device).expand(len(S), C, C))

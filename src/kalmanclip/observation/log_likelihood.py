"""One scalar per image: its log-likelihood, target zero (certainty)."""

import torch
from torch import Tensor

from kalmanclip.observation.likelihood import Likelihood, Terms, softmax_rows


class LogLikelihood(Likelihood):
    """``y_hat_i = log softmax(S_i / tau)[own class]``, ``y = 0``."""

    def terms(self, S: Tensor, column: Tensor, scale: float) -> Terms:
        """One number per image: ``d log p_y / d S_c = (1[c = y] - p_c) / tau``."""
        p, target, _ = softmax_rows(S, column, scale)
        own = torch.log_softmax(scale * S, dim=-1).gather(1, column.unsqueeze(1))
        return Terms(torch.zeros_like(own), own, (scale * (target - p)).unsqueeze(1))

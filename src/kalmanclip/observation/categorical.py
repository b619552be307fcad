"""The exponential family: class probabilities, with the covariance of the categorical distribution or a bound on it."""

import math

import torch
from torch import Tensor

from kalmanclip.errors import ConfigError
from kalmanclip.filtering import bound_labels, whiten_labels
from kalmanclip.observation.likelihood import Likelihood, Terms, softmax_rows


class Categorical(Likelihood):
    """``T(y)`` = one-hot, ``y_hat = p``, ``R = diag(p) - p p^T``, whitened.

    ``R`` is singular (probabilities sum to one), so the observation is given in coordinates in which it is the
    identity (`kalmanclip.filtering.whiten_labels`): the rows are ``L^T J``, with ``J`` the derivative of the logits.
    Then ``H^T H = J^T R J`` is exactly the Fisher information and ``H^T innovation = J^T (y - p)`` exactly the
    gradient of the log-likelihood.
    """

    has_covariance = True

    def terms(self, S: Tensor, column: Tensor, scale: float) -> Terms:
        """Return C outputs per image, of unit covariance."""
        p, target, _ = softmax_rows(S, column, scale)
        y, y_hat, LT = whiten_labels(p, target)
        return Terms(y, y_hat, scale * LT)


class BoundedCategorical(Likelihood):
    """Class probabilities, observed with Boehning's bound on the curvature instead of the curvature itself.

    The categorical likelihood's own information about the logits, ``diag(p) - p p^T``, vanishes where the model is
    sure. If it is sure and wrong, the filter takes the step that would move a flat function to its target: far too
    long. The bound ``(I - 1 1^T / K) / 2`` is at least as large for every ``p``, so each step climbs a lower bound of
    the log-likelihood that touches it at the current mean. With ``V = (I - 1 1^T / K) / sqrt 2``, ``V V^T`` the
    bound, the whitened rows are ``V^T J`` and the innovation is ``sqrt 2 (y - p)``: ``H^T innovation`` is exactly the
    gradient of the log-likelihood, as in `Categorical`, and ``R = I``.

    Args:
        top: how many classes compete for each image: its own and the ``top - 1`` most similar others, at the current
            parameters. The cost of a step grows with it. None: all classes.
    """

    has_covariance = True

    def __init__(self, top: int | None = 10) -> None:
        if top is not None and (not isinstance(top, int) or top < 2):
            raise ConfigError(f"top must be at least 2 (an image's own class and a rival) or None, not {top}.")
        self.top = top

    def terms(self, S: Tensor, column: Tensor, scale: float) -> Terms:
        """Return ``top`` outputs per image, of unit covariance; its own class comes first."""
        B, C = S.shape
        K = min(self.top or C, C)
        rivals = S.scatter(1, column.unsqueeze(1), math.inf).topk(K, dim=1).indices  # (B, K)
        p = torch.softmax(scale * S.gather(1, rivals), dim=-1)
        y = torch.zeros_like(p)
        y[:, 0] = 1.0
        y, y_hat, V = bound_labels(p, y)
        G = S.new_zeros(B, K, C).scatter_(2, rivals.unsqueeze(1).expand(B, K, K), (scale * V).expand(B, K, K))
        return Terms(y, y_hat, G)

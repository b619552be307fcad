"""One number per image or per pair: similarities, probabilities and log-probabilities of matches."""

import torch
from torch import Tensor

from kalmanclip.observation.likelihood import Likelihood, Terms, softmax_rows


class Cosine(Likelihood):
    """``y_hat = diag(S_C)``, ``y = 1``. Attraction without repulsion: it carries no negatives (see the docs)."""

    paired = True

    def texts(self, labels: Tensor, classes: int) -> Tensor:
        """Return each image's own prompt, repeated where labels repeat."""
        return labels

    def terms(self, S: Tensor, column: Tensor, scale: float) -> Terms:
        """Return one similarity per image."""
        return Terms(torch.ones_like(S), S, torch.ones_like(S).unsqueeze(1))


class Classes(Likelihood):
    """``y_hat_i = softmax(S_i / tau)[own class]`` over all class prompts, ``y = 1``."""

    def terms(self, S: Tensor, column: Tensor, scale: float) -> Terms:
        """Return one probability per image: ``d p_y / d S_c = p_y (1[c = y] - p_c) / tau``."""
        p, target, own = softmax_rows(S, column, scale)
        return Terms(torch.ones_like(own), own, (scale * own * (target - p)).unsqueeze(1))


class Contrastive(Classes):
    """The same over the texts of the batch only (each text once, also where two images share it)."""

    of_batch = True

    def texts(self, labels: Tensor, classes: int) -> Tensor:
        """Return the distinct classes of the batch."""
        return labels.unique()


class Pairwise(Likelihood):
    """``y_hat = flatten(S_C)``, ``y = flatten(I)``: one for an image's own text, zero for the others of the batch.

    Each text counts once, also where two images share it; with distinct captions this is the paper's ``flatten``.
    """

    fixed = False
    texts = Contrastive.texts

    def terms(self, S: Tensor, column: Tensor, scale: float) -> Terms:
        """Return all similarities of the batch; the derivative is the identity."""
        C = S.shape[1]
        y = torch.nn.functional.one_hot(column, C).to(S)
        return Terms(y, S, torch.eye(C, dtype=S.dtype, device=S.device).expand(len(S), C, C))


class LogLikelihood(Likelihood):
    """``y_hat_i = log softmax(S_i / tau)[own class]``, ``y = 0``."""

    def terms(self, S: Tensor, column: Tensor, scale: float) -> Terms:
        """Return one number per image: ``d log p_y / d S_c = (1[c = y] - p_c) / tau``."""
        p, target, _ = softmax_rows(S, column, scale)
        own = torch.log_softmax(scale * S, dim=-1).gather(1, column.unsqueeze(1))
        return Terms(torch.zeros_like(own), own, (scale * (target - p)).unsqueeze(1))


class Deviance(Likelihood):
    """``y_hat_i = sqrt(-2 log softmax(S_i / tau)[own class])``, the deviance residual; ``y = 0`` and ``R = 1``.

    The Gaussian log-density of the residual, ``-y_hat^2 / 2``, *is* the log-likelihood, so ``H^T e`` is exactly its
    gradient, and ``H^T H`` a positive curvature of rank one: one row per image, however many classes there are.
    """

    has_covariance = True

    def terms(self, S: Tensor, column: Tensor, scale: float) -> Terms:
        """Return one residual per image: ``d y_hat / d S_c = (p_c - 1[c = y]) / (tau y_hat)``."""
        p, target, _ = softmax_rows(S, column, scale)
        own = torch.log_softmax(scale * S, dim=-1).gather(1, column.unsqueeze(1))
        residual = (-2 * own).clamp_min(0).sqrt()
        floor = residual.clamp_min(1e-5)  # an image that is certain pulls no more, where 0 / 0 would be NaN
        return Terms(torch.zeros_like(own), residual, (scale * (p - target) / floor).unsqueeze(1))

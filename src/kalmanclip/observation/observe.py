"""From a batch to the filter's `Observation`: similarities, what is seen of them, and the Jacobian."""

from __future__ import annotations

import torch
from torch import Tensor

from kalmanclip.encoders import Activations, DualEncoder, SimilarityJacobian
from kalmanclip.filtering import Observation
from kalmanclip.observation.likelihood import Likelihood


def observe(
    encoder: DualEncoder,
    likelihood: Likelihood,
    images: Activations,
    labels: Tensor,
    texts: Activations,
    templates: int = 1,
) -> Observation:
    """What the filter sees of one batch at the encoder's current parameters.

    Args:
        encoder: the model; its ``theta`` is the point of linearisation.
        likelihood: what is observed.
        images: activations of B images.
        labels: their classes (B,).
        texts: activations of the prompts of all C classes, C * templates samples.
        templates: prompts per class.

    Returns:
        ``y`` and ``y_hat`` (B K,), ``H`` (B K, n), and ``R`` where the likelihood knows it.
    """
    needed = likelihood.texts(labels, len(texts[0]) // templates)
    rows = (needed.unsqueeze(1) * templates + torch.arange(templates, device=needed.device)).flatten()
    column = torch.zeros_like(labels) if likelihood.paired else torch.searchsorted(needed, labels)
    jacobian = SimilarityJacobian(encoder, images, tuple(t[rows] for t in texts), templates, paired=likelihood.paired)
    terms = likelihood.terms(jacobian.S, column, encoder.backbone.logit_scale)
    H = jacobian.rows(terms.G)
    R = torch.eye(len(H), dtype=H.dtype, device=H.device) if terms.has_covariance else None
    return Observation(terms.y.flatten(), terms.y_hat.flatten(), H, R)

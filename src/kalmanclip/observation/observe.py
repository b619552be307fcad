"""From a batch to the filter's `Observation`: similarities, what is seen of them, and the Jacobian."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from kalmanclip.encoders import Activations, DualEncoder, SimilarityJacobian
from kalmanclip.filtering import Observation
from kalmanclip.observation.likelihood import Likelihood


class Compared(NamedTuple):
    """Which texts the images of a batch are compared with.

    Attributes:
        rows: the prompts (C' * templates,) among all prompts.
        column: which of the C' texts is each image's own, (B,).
        present: which of the C' texts are there (C',), all that are not merely fill up a fixed shape. None: all.
    """

    rows: Tensor
    column: Tensor
    present: Tensor | None = None

    def to(self, device: torch.device) -> Compared:
        """Return the same on another device."""
        return Compared(*(None if t is None else t.to(device, non_blocking=True) for t in self))  # type: ignore[arg-type]


def compared(likelihood: Likelihood, labels: Tensor, classes: int, templates: int = 1, fill: bool = False) -> Compared:
    """Return the texts that a batch needs.

    Args:
        likelihood: what is observed.
        labels: (B,). What is needed may depend on their values: labels on the CPU cost no waiting.
        classes: C.
        templates: prompts per class.
        fill: fill up the texts to the number that batches of this size need at most.
    """
    needed = likelihood.texts(labels, classes)
    column = torch.zeros_like(labels) if likelihood.paired else torch.searchsorted(needed, labels)
    present = None
    if fill and likelihood.of_batch:
        missing = min(len(labels), classes) - len(needed)
        present = torch.arange(len(needed) + missing, device=needed.device) < len(needed)
        needed = torch.cat([needed, needed[:1].expand(missing)])
    rows = (needed.unsqueeze(1) * templates + torch.arange(templates, device=needed.device)).flatten()
    return Compared(rows, column, present)


def observe(
    encoder: DualEncoder,
    likelihood: Likelihood,
    images: Activations,
    labels: Tensor | Compared,
    texts: Activations,
    templates: int = 1,
) -> Observation:
    """Return what the filter sees of one batch at the encoder's current parameters.

    Args:
        encoder: the model; its ``theta`` is the point of linearisation.
        likelihood: what is observed.
        images: activations of B images.
        labels: their classes (B,), or what follows from them.
        texts: activations of the prompts of all C classes, C * templates samples.
        templates: prompts per class.

    Returns:
        ``y`` and ``y_hat`` (B K,), ``H`` (B K, n), and ``R`` where the likelihood knows it.
    """
    if isinstance(labels, Tensor):
        labels = compared(likelihood, labels, len(texts[0]) // templates, templates)
    rows, column, present = labels.to(texts[0].device)
    jacobian = SimilarityJacobian(encoder, images, tuple(t[rows] for t in texts), templates, paired=likelihood.paired)
    S = jacobian.S if present is None else jacobian.S.masked_fill(~present, -math.inf)
    terms = likelihood.terms(S, column, encoder.backbone.logit_scale)
    H = jacobian.rows(terms.G)
    R = torch.eye(len(H), dtype=H.dtype, device=H.device) if likelihood.has_covariance else None
    return Observation(terms.y.flatten(), terms.y_hat.flatten(), H, R)

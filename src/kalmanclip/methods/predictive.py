"""What a belief over the parameters says about logits: linearised at its mean, or parameter vector by parameter vector.

Both are made once per prediction and then applied to batch after batch of images.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import functional_call

from kalmanclip.encoders import Activations
from kalmanclip.encoders.dual import averaged_prompts
from kalmanclip.encoders.tangents import ClassifierTangents
from kalmanclip.prediction import LogitGaussian

if TYPE_CHECKING:
    from kalmanclip.methods.classifier import KalmanClassifier

DIRECTIONS = {"head": 256, "towers": 5}
"""Draws of low-rank parameters that ``J Sigma J^T`` is made of. A variance from K draws is right to ``sqrt(2 / K)``; on
the embeddings a draw costs next to nothing, inside the towers each costs twice the adapted blocks."""


def precise(embeddings: Tensor) -> Tensor:
    """Embeddings in float32 at least, as class residuals are learned."""
    return embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))


def linearised(method: KalmanClassifier, temper: bool = True) -> Callable[[Activations], LogitGaussian]:
    """Activations of N images to ``N(logits at the mean, J Sigma J^T)``.

    Args:
        method: fitted.
        temper: whether to scale the covariance by what was fitted for predictions.
    """
    classes = method.classes if method.classes is not None and method.classes.belief is not None else None
    tangents = _tangents(method, method.temper if temper else 1.0)
    scale, own = method.backbone.logit_scale, classes.temper if classes is not None and temper else 1.0

    def apply(activations: Activations) -> LogitGaussian:
        shared = None
        if tangents is not None:
            logits, moved = tangents(activations)
            shared = scale * moved
            if classes is None:
                return LogitGaussian(scale * logits, torch.zeros_like(logits), shared)
        assert classes is not None, "fitted"
        # given the low-rank parameters, which the residuals were learned after, they are independent of them
        f = precise(method.encoder.encode_images(activations))
        return LogitGaussian(classes.logits(f), own * classes.variance(f), shared)

    return apply


def _tangents(method: KalmanClassifier, temper: float) -> ClassifierTangents | None:
    """How logits move along draws of the low-rank parameters, each with its share of the variance."""
    if method.filter is None:
        return None
    count = DIRECTIONS[method.config.low_rank.placement]
    away = _draws(method, count) * math.sqrt(temper / count)
    tangents = ClassifierTangents(method.encoder, method.texts, len(method.templates), away)
    if method.classes is not None and method.classes.belief is not None:
        tangents.add_residuals(float(method.classes.belief.gain), method.classes.residuals())
    return tangents


def _draws(method: KalmanClassifier, count: int) -> Tensor:
    """Low-rank parameters (count, n) less their mean, drawn from the belief with the method's seed."""
    assert method.filter is not None
    belief = method.filter.belief
    generator = torch.Generator(belief.mean.device).manual_seed(method.config.seed % 2**63)
    return belief.sample(count, generator) - belief.mean


def sampled(method: KalmanClassifier, samples: int) -> Callable[[Activations], Tensor]:
    """Activations of N images to logits (samples, N, C), each by other parameters drawn from the tempered belief."""
    scale, encoder = method.backbone.logit_scale, method.encoder
    image: list[dict[str, Tensor]] = [{}] * samples
    text: list[Tensor] = [encoder.encode_texts(method.texts, len(method.templates))] * samples
    if method.filter is not None:
        thetas = encoder.theta + math.sqrt(method.temper) * _draws(method, samples)
        named = [encoder.named_views(theta) for theta in thetas]
        image = [_of_tower(views, "image.") for views in named]
        prompts = (functional_call(encoder.text, _of_tower(views, "text."), method.texts) for views in named)
        text = [averaged_prompts(t, len(method.templates)) for t in prompts]
    weights = text
    if method.classes is not None and method.classes.belief is not None:
        generator = torch.Generator().manual_seed(method.config.seed % 2**63)
        weights = list(method.classes.sampled([precise(T) for T in text], generator))

    def apply(activations: Activations) -> Tensor:
        f = [functional_call(encoder.image, views, activations) for views in image]
        return torch.stack([scale * x.to(W) @ W.mT for x, W in zip(f, weights, strict=True)])

    return apply


def _of_tower(views: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): view for name, view in views.items() if name.startswith(prefix)}

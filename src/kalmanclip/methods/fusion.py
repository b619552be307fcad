"""Classifiers learned apart, at different sites or on different machines, as one.

What each has *seen* is added; what all assumed before is counted once.

- Class residuals: each site keeps sums over its images (`kalmanclip.methods.recollection`). The sums are added by class
  name, the prior's metric comes from all, its strength is the sites' geometric mean weighted by their images, and
  the mode of the common posterior is sought anew. Sites may have different classes: images of one site then also say
  that they are none of the other's classes, which no product of the sites' Gaussians would.
- Low-rank parameters: the product of the Gaussians (`kalmanclip.filtering.fusion`). The prior's mean is the random
  start, so the seed must be the same; its variance, which each site measured on its first batch, may differ: the common
  one is the geometric mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from kalmanclip.data.labelled import name_key
from kalmanclip.errors import ConfigError
from kalmanclip.filtering import ObservationNoise, fuse, restore_belief
from kalmanclip.methods.classes import ClassResiduals
from kalmanclip.methods.kalman import Kalman
from kalmanclip.prediction.unknown import KnownImages


def fuse_methods(parts: Sequence[Kalman]) -> Kalman:
    """The classifier that knows what all parts know, of the union of their classes; the parts stay as they are.

    Raises:
        ConfigError: there is none, one has learned nothing, or they disagree in what must be the same.
    """
    _check(parts)
    first = parts[0]
    names = {name_key(name): name for part in reversed(parts) for name in part.class_names}  # as the first spells it
    order = dict.fromkeys(name_key(name) for part in parts for name in part.class_names)
    fused = Kalman(first.backbone, first.config)
    if first.filter is not None:
        _fuse_low_rank(fused, parts)
    fused.set_classes([names[key] for key in order], first.templates)
    if fused.classes is not None:
        _fuse_residuals(fused.classes, [part.classes for part in parts if part.classes is not None])
        _fuse_known(fused, parts)
    return fused


def _check(parts: Sequence[Kalman]) -> None:
    """Refuses what cannot be fused."""
    if not parts:
        raise ConfigError("There is nothing to fuse: give at least one classifier.")
    learned = parts[0].config.parameters
    if len(learned) > 1:
        raise ConfigError(
            "Residuals that were learned on top of low-rank parameters belong to embeddings of their own. "
            "Fuse classifiers that learned one of the two."
        )
    wanted = _must_agree(parts[0])
    for number, part in enumerate(parts, start=1):
        if not part.fitted:
            raise ConfigError(f"Classifier {number} has learned nothing yet: fit it first.")
        for what, value in _must_agree(part).items():
            if value != wanted[what]:
                raise ConfigError(
                    f"Classifiers can be fused only if they agree in the {what}, but classifier 1 has {wanted[what]!r} "
                    f"and classifier {number} {value!r}. Fit one of them again."
                )


def _must_agree(part: Kalman) -> dict[str, Any]:
    """What the numbers of two classifiers must share to mean the same, by name."""
    config = part.config
    shared: dict[str, Any] = {
        "backbone": part.backbone.hash,
        "parameters": config.parameters,
        "templates": part.templates,
        "alpha": config.filter.alpha,
    }
    if "classes" in config.parameters:
        return shared | {"gain_std of the classes": config.classes.gain_std}
    return shared | {
        "low_rank options": config.low_rank,
        "belief": config.belief,
        "belief_options": config.belief_options,
        "seed": config.seed,
    }


def _fuse_residuals(fused: ClassResiduals, parts: Sequence[ClassResiduals]) -> None:
    """Adds what the sites recall; ``fused`` has the classes of all."""
    known = []
    for part in parts:
        row = {name_key(name): i for i, name in enumerate(part.names)}
        known.append(part.recollection.chosen([row.get(name_key(name)) for name in fused.names]))
    images = [float(memory.count.sum()) for memory in known]
    stds = [part.prior_std for part in parts if part.prior_std is not None]
    fused.settle(known, _weighted_mean(stds, images) ** -2)
    fused.temper = _weighted_mean([part.temper for part in parts], images)


def _fuse_known(fused: Kalman, parts: Sequence[Kalman]) -> None:
    """Joins the known images; if one part has none, images like its own would be strange to all."""
    assert fused.classes is not None
    assert fused.classes.T is not None
    every: KnownImages | None = None
    for part in parts:
        if part.known is None:
            return
        row = {name_key(name): i for i, name in enumerate(part.class_names)}
        own = part.known.chosen([row.get(name_key(name)) for name in fused.class_names], fused.classes.T)
        every = own if every is None else every.with_more(own.features, own.labels, own.sources)
    fused.known = every


def _fuse_low_rank(fused: Kalman, parts: Sequence[Kalman]) -> None:
    """The product of the sites' Gaussians, as the state of ``fused``."""
    filters = [part.filter for part in parts if part.filter is not None]
    variances = [part.prior_variance for part in parts if part.prior_variance is not None]
    if len(variances) < len(parts):
        raise ConfigError("A classifier does not say which prior it began with: fit it again.")
    fused.filter = fused.begin(_weighted_mean(variances, [1.0] * len(variances)))
    own = [Kalman(fused.backbone, part.config).begin(variance) for part, variance in zip(parts, variances, strict=True)]
    belief = fuse([f.belief for f in filters], fused.filter.belief, [f.belief for f in own])
    with torch.no_grad():
        fused.encoder.theta.copy_(belief.mean)
    state = belief.state_dict() | {"mean": fused.encoder.theta}  # the belief's mean *is* the model's parameters
    fused.filter.belief = restore_belief(fused.config.belief, state)
    noise = max(filters, key=lambda f: f.steps).noise.state_dict()  # an estimate, not information: the best founded
    fused.filter.noise = ObservationNoise.from_state(fused.config.noise, noise)
    fused.temper = _weighted_mean([part.temper for part in parts], [1.0] * len(parts))
    fused.filter.steps = sum(f.steps for f in filters)
    fused.filter.skipped = sum(f.skipped for f in filters)


def _weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """The geometric one, for standard deviations and variances."""
    logarithms = sum(w * math.log(v) for v, w in zip(values, weights, strict=True))
    return math.exp(logarithms / sum(weights))

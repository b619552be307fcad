"""Classifiers learned apart, at different sites or on different machines, as one.

What each has *seen* is added; what all assumed before is counted once.

- Class residuals: each site stores statistics of its images (`kalmanclip.methods.statistics`). They are added by class
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

from kalmanclip.data.labelled import name_key
from kalmanclip.errors import ConfigError
from kalmanclip.filtering import fuse
from kalmanclip.methods.class_residuals import ClassResiduals
from kalmanclip.methods.classifier import Classifier
from kalmanclip.methods.kalman import Kalman
from kalmanclip.methods.residuals import Scales
from kalmanclip.prediction import OODDetector


def fuse_methods(parts: Sequence[Classifier]) -> Classifier:
    """Return the classifier that knows what all parts know, of the union of their classes; the parts stay as they are.

    Raises:
        ConfigError: there is none, one has learned nothing, or they disagree in what must be the same.
    """
    if not parts:
        raise ConfigError("There is nothing to fuse: give at least one classifier.")
    kalmans = [part for part in parts if isinstance(part, Kalman)]
    residuals = [part for part in parts if isinstance(part, ClassResiduals)]
    if len(kalmans) + len(residuals) < len(parts):
        raise ConfigError(
            "Residuals that were learned on top of low-rank parameters belong to embeddings of their own: adapters of "
            "the preset 'joint' cannot be fused. Fit with the preset 'residuals' or 'head' at every site."
        )
    _require_agreement(parts)
    names = {name_key(name): name for part in reversed(parts) for name in part.class_names}  # as the first spells it
    order = dict.fromkeys(name_key(name) for part in parts for name in part.class_names)
    class_names = [names[key] for key in order]
    fused = _fuse_kalman(kalmans, class_names) if kalmans else _fuse_residuals(residuals, class_names)
    fused.fingerprints = frozenset[int]().union(*(part.fingerprints for part in parts))
    return fused


def _require_agreement(parts: Sequence[Classifier]) -> None:
    """Raise `ConfigError` unless all have learned, and agree in what makes their numbers mean the same."""
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


def _must_agree(part: Classifier) -> dict[str, Any]:
    """Return what the numbers of two classifiers must share to mean the same, by name; the method first."""
    c, shared = part.config, {"backbone": part.backbone.hash, "method": type(part).__name__}
    if isinstance(part, Kalman):
        own = {"belief": c.belief, "belief_options": c.belief_options, "low_rank options": c.low_rank, "seed": c.seed}
        return shared | {"templates": part.templates, "alpha": c.filter.alpha} | own
    own = {"alpha": c.alpha, "gain_std": c.gain_std, "description_spread": c.description_spread}
    described = part.descriptions if isinstance(part, ClassResiduals) else {}
    return shared | {"templates": part.templates, "descriptions": described} | own


def _fuse_residuals(parts: Sequence[ClassResiduals], class_names: list[str]) -> ClassResiduals:
    """Add the statistics of the sites."""
    fused = ClassResiduals(parts[0].backbone, parts[0].config)
    fused.descriptions = parts[0].descriptions
    fused.set_classes(class_names, parts[0].templates)
    known = []
    for part in parts:
        assert part.residuals.statistics is not None
        known.append(part.residuals.statistics.select(_rows(part, fused)))
    images = [float(statistics.count.sum()) for statistics in known]
    stds = [part.residuals.prior_std for part in parts if part.residuals.prior_std is not None]
    generative = [n * part.residuals.generative for n, part in zip(images, parts, strict=True)]
    fused.residuals.generative = sum(generative) / sum(images)  # an arithmetic mean: it may be zero
    fused.residuals.scales = Scales.fused([part.residuals.scales for part in parts])
    fused.residuals.relearn(known, _weighted_mean(stds, images) ** -2)
    fused.residuals.covariance_scale = _weighted_mean([part.residuals.covariance_scale for part in parts], images)
    fused.ood = _fuse_ood(fused, parts)
    return fused


def _fuse_ood(fused: Classifier, parts: Sequence[Classifier]) -> OODDetector | None:
    """Join the training images; if one part has none, images like its own would be flagged."""
    every: OODDetector | None = None
    for part in parts:
        if part.ood is None:
            return None
        own = part.ood.select(_rows(part, fused), fused._frozen_texts())
        every = own if every is None else every.with_more(own.features, own.labels, own.names)
    return every


def _rows(part: Classifier, fused: Classifier) -> list[int | None]:
    """Return which class of a part each class of all is; None: it has no such class."""
    row = {name_key(name): i for i, name in enumerate(part.class_names)}
    return [row.get(name_key(name)) for name in fused.class_names]


def _fuse_kalman(parts: Sequence[Kalman], class_names: list[str]) -> Kalman:
    """Multiply the sites' Gaussians."""
    if parts[0].config.prior_per_matrix:
        raise ConfigError("Adapters with a prior per matrix cannot be fused: each site's prior is its own.")
    fused = Kalman(parts[0].backbone, parts[0].config)
    filters = [part.filter for part in parts if part.filter is not None]
    variances = [part.prior_variance for part in parts if part.prior_variance is not None]
    if len(variances) < len(parts):
        raise ConfigError("A classifier does not say which prior it began with: fit it again.")
    prior = fused.begin(_weighted_mean(variances, [1.0] * len(variances))).belief
    own = [Kalman(fused.backbone, part.config).begin(variance) for part, variance in zip(parts, variances, strict=True)]
    belief = fuse([f.belief for f in filters], prior, [f.belief for f in own])
    noise = max(filters, key=lambda f: f.steps).noise.state_dict()  # an estimate, not information: the best founded
    fused.set_belief(belief.state_dict(), noise)
    assert fused.filter is not None
    fused.filter.steps = sum(f.steps for f in filters)
    fused.filter.skipped = sum(f.skipped for f in filters)
    fused.covariance_scale = _weighted_mean([part.covariance_scale for part in parts], [1.0] * len(parts))
    fused.set_classes(class_names, parts[0].templates)
    fused.ood = _fuse_ood(fused, parts)
    return fused


def _weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the geometric one, for standard deviations and variances."""
    logarithms = sum(w * math.log(v) for v, w in zip(values, weights, strict=True))
    return math.exp(logarithms / sum(weights))

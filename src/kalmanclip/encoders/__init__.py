"""Frozen CLIP models, low-rank parameters in both towers, and exact Jacobians of their similarities.

`load_backbone` builds a frozen open_clip model, `DualEncoder` adds low-rank parameters (`LowRankConfig`) as one flat
vector ``theta``, and `SimilarityJacobian` differentiates the similarities of a batch with respect to ``theta``.
`features` turns images into what the towers make of them; a `FeatureCache` keeps that on disk.
"""

import kalmanclip.encoders.lean  # noqa: F401  before any other imports open_clip
from kalmanclip.encoders.backbone import Backbone, load_backbone
from kalmanclip.encoders.cache import FeatureCache, cache_folder
from kalmanclip.encoders.dual import DualEncoder
from kalmanclip.encoders.jacobian import SimilarityJacobian
from kalmanclip.encoders.low_rank import LowRankConfig
from kalmanclip.encoders.precomputed import precomputed
from kalmanclip.encoders.tower import Activations
from kalmanclip.encoders.wrap import as_backbone

__all__ = [
    "Activations",
    "Backbone",
    "DualEncoder",
    "FeatureCache",
    "LowRankConfig",
    "SimilarityJacobian",
    "as_backbone",
    "cache_folder",
    "load_backbone",
    "precomputed",
]

"""Combinations of options that belong together, by name. The type of the options chooses the method."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import torch

from kalmanclip.config import from_dict, merge, to_dict
from kalmanclip.encoders import LowRankConfig
from kalmanclip.errors import ConfigError
from kalmanclip.filtering import FilterConfig, NoiseConfig
from kalmanclip.methods.base import PLUGINS
from kalmanclip.methods.joint import JointConfig
from kalmanclip.methods.kalman import KalmanConfig
from kalmanclip.methods.residuals import ClassResidualsConfig

MethodConfig = KalmanConfig | ClassResidualsConfig | JointConfig
_Config = TypeVar("_Config")

_TOWERS = LowRankConfig(
    # The paper: "low-rank decomposition for parameterization of the adapter", both encoders. It gives neither placement
    # nor rank. As CLIP-LoRA: q, k, v. Rank 4 and the last two blocks, so that the frozen blocks run once per image.
    placement="towers",
    towers=("image", "text"),
    targets=("q", "k", "v"),
    last_blocks=2,
    rank=4,
    scale=1.0,
)

_LITERAL = KalmanConfig(
    low_rank=_TOWERS,
    observation="cosine",  # y_hat = diag(S_C), y = diag(I): similarities of the pairs, target one
    belief="diagonal",  # "the method proposed by" Chang et al. (2022), linear in n
    belief_options={"update": "covariance"},  # of Chang's two updates the one of Algorithm 1: Sigma - K H Sigma
    filter=FilterConfig(
        alpha=0.1,
        q=0.0,  # the paper: q >= 0. Its target data do not drift
        regulate=("mean", "noise"),  # Algorithm 1; only the prose multiplies the update of Sigma, too
    ),
    noise=NoiseConfig(
        beta=0.98,
        method=2,  # Algorithm 1 has H Sigma H^T in R_hat
        initial=None,  # epsilon is not given. A small one freezes the filter for ever, so the first batch sets it
        structure="full",  # R is m x m, by position in the batch
    ),
    # Sigma_0 is not given. In units of similarity, because the right variance depends on rank, width and depth; small,
    # because with this observation a larger one ends below zero-shot (docs/results-tiny.md).
    prior_std=0.01,
    prior_variance=None,
    epochs=2,  # of the smaller data sets; `kalmanclip paper` makes 5 of the larger ones, ImageNet and SUN397
    batch_size=10,
)

PRESETS: dict[str, MethodConfig] = {
    "default": ClassResidualsConfig(),
    "residuals": ClassResidualsConfig(),
    "joint": JointConfig(),
    "head": KalmanConfig(),
    # Two departures from the letter, both measured (docs/method.md, benchmarks/departures.py): an observation with
    # negatives, which learns, and the prior that goes with it.
    "paper": dataclasses.replace(_LITERAL, observation="contrastive", prior_std=0.1),
    "paper-literal": _LITERAL,
    # What the letter lacks to learn inside a real CLIP, chosen on training images outside the shots of a ViT-B/16
    # (docs/results.md): all blocks, each layer with the same share of the prior, and many passes of fresh crops.
    # Algorithm 1 is as it was.
    "paper-tuned": dataclasses.replace(
        _LITERAL,
        observation="contrastive",
        low_rank=dataclasses.replace(_TOWERS, last_blocks=None, rank=2, scale=0.5**0.5),
        prior_std=0.1,
        prior_per_matrix=True,
        crop_scale=(0.3, 1.0),
        epochs=30,
    ),
}
"""- ``residuals``: class residuals on frozen embeddings: softmax regression with a Gaussian belief, by iterated Kalman
  updates. docs/results.md says where it wins and where it loses.
- ``joint``: the same, and low-rank parameters inside the image tower by a Kalman filter. More accurate, and slow
  without a GPU.
- ``default``: ``joint`` where there is a GPU, else ``residuals`` (`usual_preset`).
- ``head``: low-rank parameters on both embeddings. They belong to no class and can be merged into the CLIP.
- ``paper``: the paper's filter over low-rank parameters inside both towers, with a reading of its observation that
  learns: the probability of an image's text among those of the batch. All else is ``paper-literal``, but the prior.
- ``paper-literal``: the paper to the letter, similarities of matched pairs with the target one. It stays at zero-shot.
- ``paper-tuned``: ``paper`` as a real CLIP wants it: all blocks of both towers, thirty passes of fresh crops. For a
  GPU, or patience; docs/results.md has how far it comes.
"""


def usual_preset(device: str | torch.device, images: bool = True, together: bool = False) -> str:
    """Return the preset that ``default`` stands for.

    Args:
        device: where the model is, or is to be.
        images: whether all images are there from the beginning: not where they come one by one, nor where there are
            embeddings or descriptions, which class residuals alone can use.
        together: whether several processes learn together.
    """
    return "joint" if str(device).startswith("cuda") and images and not together else "residuals"


def preset(name: str) -> Any:
    """Return the options of that name, a `MethodConfig`; the name of a plug-in stands for its defaults."""
    if isinstance(name, str) and name not in PRESETS and PLUGINS.has(name):
        return PLUGINS.get(name, {}).Config()
    if not isinstance(name, str) or name not in PRESETS:  # a file may hold anything
        raise ConfigError(f"Unknown preset {name!r}. There are: {', '.join(PRESETS)}.")
    return PRESETS[name]


def with_options(config: _Config, changed: Mapping[str, Any]) -> _Config:
    """Return options with some changed, given as plain values, table by table: ``{"noise": {"beta": 0.9}}``.

    The ``seed`` of a `JointConfig` is that of its residuals. The options of a belief or of an observation go when
    another one is chosen.
    """
    if isinstance(config, JointConfig) and "seed" in changed:
        rest = {name: value for name, value in changed.items() if name != "seed"}
        changed = merge({"residuals": {"seed": changed["seed"]}}, rest)
    return from_dict(type(config), merge(_cleared(to_dict(config), changed), dict(changed)))


def _cleared(values: dict[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values without options of a belief or of an observation that ``changed`` exchanges."""
    for kind in ("belief", "observation"):
        if kind in values and changed.get(kind, values[kind]) != values[kind]:
            values = values | {f"{kind}_options": {}}
    return values

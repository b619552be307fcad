"""Combinations of options that belong together, by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kalmanclip.config import merge, to_dict
from kalmanclip.encoders import LowRankConfig
from kalmanclip.errors import ConfigError
from kalmanclip.filtering import FilterConfig, NoiseConfig
from kalmanclip.methods.kalman_config import KalmanConfig

_TOWERS = LowRankConfig(
    # The paper: "low-rank decomposition for parameterization of the adapter", both encoders. It gives neither places
    # nor rank. As CLIP-LoRA: q, k, v. Rank 4 and the last two blocks, so that the frozen blocks run once per image.
    placement="towers",
    towers=("image", "text"),
    targets=("q", "k", "v"),
    last_blocks=2,
    rank=4,
    scale=1.0,
)

_LITERAL = KalmanConfig(
    parameters=("low_rank",),
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
    # because with this observation a larger one ends below zero-shot (docs/results.md).
    prior_std=0.01,
    prior_variance=None,
    epochs=2,  # of the smaller data sets; `kalmanclip paper` makes 5 of the larger ones, ImageNet and SUN397
    batch_size=10,
)

PRESETS: dict[str, KalmanConfig] = {
    "default": KalmanConfig(),
    "head": KalmanConfig(parameters=("low_rank",)),
    # Two departures from the letter, both measured (docs/method.md, benchmarks/departures.py): an observation with
    # negatives, which learns, and the prior that goes with it.
    "paper": dataclasses.replace(_LITERAL, observation="contrastive", prior_std=0.1),
    "paper-literal": _LITERAL,
}
"""- ``default``: class residuals on frozen embeddings: softmax regression with a Gaussian belief, by iterated Kalman
  updates. docs/results.md says where it wins and where it loses.
- ``head``: low-rank parameters on both embeddings. They belong to no class and can be merged into the CLIP.
- ``paper``: the paper's filter over low-rank parameters inside both towers, with a reading of its observation that
  learns: the probability of an image's text among those of the batch. All else is ``paper-literal``, but the prior.
- ``paper-literal``: the paper to the letter, similarities of matched pairs with the target one. It stays at zero-shot.
"""

_ABOUT_LOW_RANK = {
    "low_rank",
    "observation",
    "observation_options",
    "belief",
    "belief_options",
    "noise",
    "prior_std",
    "prior_variance",
    "epochs",
    "batch_size",
    "filter.q",
    "filter.regulate",
}


def preset(name: str) -> KalmanConfig:
    """The options of that name.

    Raises:
        ConfigError: there is no such preset; the message lists them.
    """
    if not isinstance(name, str) or name not in PRESETS:  # a file may hold anything
        raise ConfigError(f"Unknown preset {name!r}. There are: {', '.join(PRESETS)}.")
    return PRESETS[name]


def with_preset(changed: Mapping[str, Any]) -> dict[str, Any]:
    """All options as plain values: those of ``changed["preset"]`` (the default's without), with the rest of it."""
    rest = dict(changed)
    values = to_dict(preset(rest.pop("preset", "default")))
    return dict(merge(values | _cleared(values, rest), rest))


def replaced(config: KalmanConfig, **options: Any) -> KalmanConfig:
    """A configuration with other options; those of its belief or observation go when another one is chosen."""
    return dataclasses.replace(config, **_cleared(vars(config), options) | options)


def _cleared(values: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Empty options for the belief and the observation, where another one is chosen: the old ones' do not fit it."""
    return {
        f"{kind}_options": {} for kind in ("belief", "observation") if changed.get(kind, values[kind]) != values[kind]
    }


def idle(name: str, config: KalmanConfig) -> str | None:
    """What an option is about, if nothing of that kind is learned: 'low_rank' or 'classes'. None: it has an effect.

    Args:
        name: may be dotted, ``noise.beta``.
        config: what it is part of.
    """
    first = name.split(".")[0]
    about = "low_rank" if {first, name} & _ABOUT_LOW_RANK else "classes" if first == "classes" else None
    return None if about in config.parameters else about


def refuse_idle(given: Iterable[str], config: KalmanConfig, spell: Callable[[str], str] = str) -> None:
    """Raises `ConfigError` if one of the given options has no effect: nobody gives an option for nothing.

    Args:
        given: their names, which may be dotted.
        config: what they became part of.
        spell: how the user wrote such a name.
    """
    for name in given:
        about = idle(name, config)
        if about is not None:
            what = {"low_rank": "low-rank parameters", "classes": "class residuals"}[about]
            presets = ", ".join(key for key, value in PRESETS.items() if about in value.parameters)
            raise ConfigError(
                f"The option {spell(name)} is about {what}, and these options learn none. Leave it out, or choose a "
                f"preset that does: {presets}."
            )

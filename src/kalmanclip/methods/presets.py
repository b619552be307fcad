"""Combinations of options that belong together, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kalmanclip.config import merge, to_dict
from kalmanclip.encoders import LowRankConfig
from kalmanclip.errors import ConfigError
from kalmanclip.methods.kalman_config import KalmanConfig

_TOWERS = LowRankConfig(placement="towers", rank=4, last_blocks=2)

PRESETS: dict[str, KalmanConfig] = {
    "default": KalmanConfig(),
    "head": KalmanConfig(parameters=("low_rank",)),
    "paper": KalmanConfig(
        parameters=("low_rank",),
        low_rank=_TOWERS,
        observation="contrastive",
        prior_std=0.1,
        epochs=2,
    ),
    "paper-literal": KalmanConfig(
        parameters=("low_rank",),
        low_rank=_TOWERS,
        observation="cosine",
        belief_options={"update": "covariance"},
        prior_std=0.01,
        epochs=2,
    ),
}
"""- ``default``: class residuals on frozen embeddings: the most accurate and the best calibrated.
- ``head``: low-rank parameters on both embeddings. They belong to no class and can be merged into the CLIP.
- ``paper``: low-rank parameters inside both towers, the reading of the paper's observation that learns.
- ``paper-literal``: the paper to the letter, similarities of matched pairs with the target one. Its prior is small,
  because a larger one ends below zero-shot.
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
    return dict(merge(to_dict(preset(rest.pop("preset", "default"))), rest))


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

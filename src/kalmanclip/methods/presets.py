"""Combinations of options that belong together, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kalmanclip.config import merge, to_dict
from kalmanclip.encoders import LowRankConfig
from kalmanclip.errors import ConfigError
from kalmanclip.methods.kalman_config import KalmanConfig

PRESETS: dict[str, KalmanConfig] = {
    "default": KalmanConfig(),
    "head": KalmanConfig(parameters=("low_rank",)),
    "paper": KalmanConfig(
        parameters=("low_rank",),
        low_rank=LowRankConfig(placement="towers", rank=4, last_blocks=2),
        observation="contrastive",
        prior_std=0.1,
        epochs=2,
    ),
    "paper-literal": KalmanConfig(
        parameters=("low_rank",),
        low_rank=LowRankConfig(placement="towers", rank=4, last_blocks=2),
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


def refuse_idle(given: Iterable[str], config: KalmanConfig) -> None:
    """Raises `ConfigError` if one of the given options has no effect: nobody gives an option for nothing.

    Args:
        given: their names; of a dotted one the first part counts.
        config: what they became part of.
    """
    for name in given:
        first = name.split(".")[0]
        if first in _ABOUT_LOW_RANK and "low_rank" not in config.parameters:
            raise ConfigError(
                f"The option {name} is about low-rank parameters, and these options learn none. Choose a preset that "
                f"does: {', '.join(key for key, value in PRESETS.items() if 'low_rank' in value.parameters)}."
            )
        if first == "classes" and "classes" not in config.parameters:
            raise ConfigError(f"The option {name} is about class residuals, and these options learn none.")

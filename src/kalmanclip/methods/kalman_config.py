"""Everything that can be chosen about the Kalman method."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from kalmanclip.encoders import LowRankConfig
from kalmanclip.errors import ConfigError
from kalmanclip.filtering import FilterConfig, NoiseConfig, belief_structure
from kalmanclip.methods.classes import ClassConfig
from kalmanclip.observation import make_likelihood

PARAMETERS = ("low_rank", "classes")
"""What the belief can be about, in the order in which it is learned."""


@dataclass(frozen=True)
class KalmanConfig:
    """Everything that can be chosen about the method.

    What is about the low-rank parameters (all but ``parameters``, ``classes``, ``seed`` and ``filter.alpha``) has no
    effect unless they are among the ``parameters``; see `kalmanclip.methods.presets` for combinations that work.

    Attributes:
        parameters: what is learned: 'low_rank' (the paper: shared by all classes, can be merged into the CLIP),
            'classes' (a residual for each class, on frozen embeddings), or both, one after the other.
        classes: the options of the class residuals.
        low_rank: where the low-rank parameters sit.
        observation: what the filter sees, see `kalmanclip.observation`.
        observation_options: what that observation takes, e.g. ``{"top": 20}`` for 'bounded'.
        belief: structure of the covariance, see `kalmanclip.filtering`.
        belief_options: what that structure takes, e.g. ``{"rank": 20}`` for 'low_rank'. Unless given here, 'diagonal'
            is updated by precision and 'block' has one block per low-rank layer.
        filter: ``alpha``, ``q``, what is regulated.
        noise: ``beta``, method 1 or 2, ``R_0``, structure.
        prior_std: how far, in units of cosine similarity, a matched similarity may move under the prior (one standard
            deviation); the variance of the parameters follows from the first batch's Jacobian.
        prior_variance: the parameters' variance itself; overrides ``prior_std``.
        epochs: passes over the images.
        batch_size: images per step.
        seed: of the order of the images and of the low-rank start.
    """

    parameters: tuple[str, ...] = ("classes",)
    classes: ClassConfig = field(default_factory=ClassConfig)
    low_rank: LowRankConfig = field(default_factory=LowRankConfig)
    observation: str = "bounded"
    observation_options: dict[str, Any] = field(default_factory=dict)
    belief: str = "diagonal"
    belief_options: dict[str, Any] = field(default_factory=dict)
    filter: FilterConfig = field(default_factory=FilterConfig)
    noise: NoiseConfig = field(default_factory=lambda: NoiseConfig(structure="exchangeable"))
    prior_std: float = 0.3
    prior_variance: float | None = None
    epochs: int = 5
    batch_size: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", tuple(self.parameters))  # a configuration file holds a list
        wrong = [name for name in self.parameters if name not in PARAMETERS]
        if wrong or not self.parameters or len(set(self.parameters)) < len(self.parameters):
            raise ConfigError(f"parameters must be a non-empty selection of {PARAMETERS}, not {self.parameters}.")
        if not isinstance(self.classes, ClassConfig):
            raise ConfigError(f"classes must be a ClassConfig, not {self.classes!r}.")
        # an unknown name is an error here, not in the middle of a run
        make_likelihood(self.observation, **self.observation_options)
        belief_structure(self.belief)
        for name in ("epochs", "batch_size", "seed"):
            value = getattr(self, name)
            if not isinstance(value, int):
                raise ConfigError(f"{name} must be a whole number, not {value!r}.")
            if value < 1 and name != "seed":
                raise ConfigError(f"{name} must be at least 1, not {value}.")
        if not isinstance(self.low_rank, LowRankConfig):
            raise ConfigError(f"low_rank must be a LowRankConfig, not {self.low_rank!r}.")
        for name in ("prior_std", "prior_variance"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} must be positive and finite, not {value}.")

    @property
    def passes(self) -> int:
        """Passes over the images: class residuals alone need one, however many times it linearises."""
        return self.epochs if "low_rank" in self.parameters else 1

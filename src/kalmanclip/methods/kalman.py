"""The paper's method: a Kalman filter over low-rank parameters of both towers of a frozen CLIP."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kalmanclip.data import FewShotTask, LabelledImages, class_prompts
from kalmanclip.data.images import ImageSource
from kalmanclip.data.names import name_key
from kalmanclip.encoders import Activations, Backbone, DualEncoder, LowRankConfig, SimilarityJacobian
from kalmanclip.encoders.cache import ActivationStore
from kalmanclip.errors import ConfigError, DataError, NumericalError
from kalmanclip.filtering import (
    FilterConfig,
    KalmanFilter,
    NoiseConfig,
    ObservationNoise,
    Step,
    belief_structure,
    make_belief,
)
from kalmanclip.methods.base import Needs, Progress, silent
from kalmanclip.methods.features import activation_store, frozen_activations
from kalmanclip.observation import make_likelihood, observe


@dataclass(frozen=True)
class KalmanConfig:
    """Everything that can be chosen about the method.

    Attributes:
        low_rank: where the parameters sit.
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


class LogitBelief(NamedTuple):
    """The Gaussian that the belief over the parameters implies for logits, linearised at the mean.

    Attributes:
        mean: (N, C).
        std: (N, C), the marginal standard deviations.
    """

    mean: Tensor
    std: Tensor


class Kalman:
    """A CLIP classifier whose low-rank parameters carry a Gaussian belief.

    Args:
        backbone: the frozen CLIP.
        config: the options.

    Attributes:
        encoder: the adapted towers; ``encoder.theta`` is the mean of the belief.
        filter: the Kalman filter, None before the first image is seen.
        history: one record per step.
        prior_variance: that of each parameter before the first image; None until then.
    """

    def __init__(self, backbone: Backbone, config: KalmanConfig | None = None) -> None:
        self.backbone = backbone
        self.config = config or KalmanConfig()
        self.encoder = DualEncoder(backbone, self.config.low_rank, self.config.seed)
        self.filter: KalmanFilter | None = None
        self.history: list[Step] = []
        self.prior_variance: float | None = None
        self.class_names: list[str] = []
        self.templates: tuple[str, ...] = ()
        self._texts: Activations = ()

    @property
    def needs(self) -> Needs:
        """On the embeddings the frozen features are all it reads."""
        return "features" if self.config.low_rank.placement == "head" else "towers"

    def set_classes(self, class_names: Sequence[str], templates: Sequence[str]) -> None:
        """Names the classes. Parameters belong to no class, so classes can be added or renamed at any time.

        Raises:
            DataError: there are no classes, or the names of two are so long that their prompts are cut to the same.
        """
        if isinstance(class_names, str) or not class_names:
            raise DataError("Give the classes as a list of at least one name.")
        prompts = [prompt for group in class_prompts(templates, class_names) for prompt in group]
        tokens = self.encoder.tokenize(prompts)
        _refuse_equal_prompts(class_names, tokens.unflatten(0, (len(class_names), -1)).flatten(1).tolist())
        self.class_names, self.templates = list(class_names), tuple(templates)
        self._texts = self.encoder.text.prefix(tokens)

    def fit(
        self,
        task: FewShotTask,
        progress: Progress = silent,
        after_epoch: Callable[[int], None] | None = None,
    ) -> list[Step]:
        """Filters ``config.epochs`` passes over the training images, starting from the prior; see `update`."""
        store = self._store(task.train, progress)  # first: an unreadable image must not cost what was there before
        self.encoder = DualEncoder(self.backbone, self.config.low_rank, self.config.seed)
        self.filter, self.history = None, []
        self.set_classes(task.class_names, task.templates)
        return self._filter(store, task.train.labels, self.config.epochs, progress, after_epoch)

    def update(
        self,
        images: LabelledImages,
        epochs: int = 1,
        progress: Progress = silent,
        after_epoch: Callable[[int], None] | None = None,
        templates: Sequence[str] | None = None,
    ) -> list[Step]:
        """Goes on filtering: the current posterior is the prior of what comes now.

        Args:
            images: their classes become the method's classes.
            epochs: passes over them.
            progress: told about decoding and filtering.
            after_epoch: called with the number of finished passes after each.
            templates: prompt templates; None keeps those set before.

        Returns:
            The records of the steps taken.

        Raises:
            NumericalError: every single step of the first pass had to be skipped.
        """
        if epochs < 1:
            raise ConfigError(f"epochs must be at least 1, not {epochs}.")
        store = self._store(images, progress)
        templates = self.templates if templates is None else tuple(templates)
        if (images.class_names, templates) != (self.class_names, self.templates):
            self.set_classes(images.class_names, templates)
        return self._filter(store, images.labels, epochs, progress, after_epoch)

    def _filter(
        self,
        store: ActivationStore,
        image_labels: list[int],
        epochs: int,
        progress: Progress,
        after_epoch: Callable[[int], None] | None,
    ) -> list[Step]:
        labels = torch.tensor(image_labels, device=self.backbone.device)
        size = self.config.batch_size
        steps = epochs * math.ceil(len(labels) / size)
        records: list[Step] = []
        for epoch in range(epochs):
            for batch in self._order(len(labels)).split(size):
                records.append(self._step(store[batch], labels[batch.to(labels.device)]))
                self.history.append(records[-1])
                progress("filtering", len(records), steps)
            if all(r.skipped for r in records):  # before anybody saves a model that has learned nothing
                raise NumericalError(
                    f"All {len(records)} steps were skipped; the first because {records[0].reason}. "
                    "Try a smaller prior_std, or another observation."
                )
            if after_epoch is not None:
                after_epoch(epoch + 1)
        return records

    def _order(self, count: int) -> Tensor:
        """A fresh order for each pass, fixed by the seed and by how far the filter has come (resuming repeats it)."""
        taken = 0 if self.filter is None else self.filter.steps
        generator = torch.Generator().manual_seed((self.config.seed * 1_000_003 + taken) % 2**63)
        return torch.randperm(count, generator=generator)

    def _step(self, images: Activations, labels: Tensor) -> Step:
        if self.filter is None:
            self.filter = self._prior(images, labels)
        likelihood = make_likelihood(self.config.observation, **self.config.observation_options)
        return self.filter.step(
            lambda mu: observe(self.encoder, likelihood, images, labels, self._texts, len(self.templates))
        )

    def _prior(self, images: Activations, labels: Tensor) -> KalmanFilter:
        """The filter before it has seen anything: ``Sigma_0`` from ``prior_std`` and the first batch's Jacobian."""
        variance = self.config.prior_variance
        if variance is None:
            seen = observe(self.encoder, make_likelihood("cosine"), images, labels, self._texts, len(self.templates))
            spread = seen.H.square().sum(dim=1).mean().item()  # mean diag(H H^T)
            if not (math.isfinite(spread) and spread > 0):
                raise NumericalError(
                    "The similarities of the first batch do not respond to the parameters "
                    f"(mean squared Jacobian {spread}). Check the backbone's weights."
                )
            variance = self.config.prior_std**2 / spread
            if not 1e-30 < variance < 1e30:
                raise ConfigError(
                    f"prior_std {self.config.prior_std:g} gives the parameters a variance of {variance:g}, "
                    "which cannot be computed with. Similarities lie between -1 and 1: give something like 0.1."
                )
        self.prior_variance = variance
        options: dict[str, dict[str, Any]] = {
            "diagonal": {"update": "precision"},  # learns better than 'covariance' from whitened observations
            "block": {"groups": self.encoder.groups},
        }
        chosen = options.get(self.config.belief, {}) | self.config.belief_options
        belief = make_belief(self.config.belief, self.encoder.theta, variance, **chosen)
        return KalmanFilter(belief, ObservationNoise(self.config.noise), self.config.filter)

    def _store(self, images: LabelledImages, progress: Progress) -> ActivationStore:
        """The frozen activations of the training images."""
        if not len(images):
            raise DataError("There are no images to learn from.")
        return activation_store(self.encoder, images.sources, progress)

    def _each_batch(
        self, images: Iterable[ImageSource], score: Callable[[Activations], Any], progress: Progress
    ) -> list[Any]:
        sources = list(images)
        scores, done = [], 0
        for batch in frozen_activations(self.encoder, sources):
            scores.append(score(batch))
            done += len(batch[0])
            progress("reading images", done, len(sources))
        return scores

    def logits(self, images: Iterable[ImageSource], progress: Progress = silent) -> Tensor:
        """Similarities over tau at the mean of the belief, (N, C) on the CPU."""
        return self._logits([self.encoder], images, progress)[0]

    def logits_and_zero_shot(self, images: Iterable[ImageSource], progress: Progress = silent) -> tuple[Tensor, Tensor]:
        """`logits`, and those of the untouched model with the same prompts; the frozen part runs once for both."""
        untouched = DualEncoder(self.backbone, self.config.low_rank)
        tuned, zero_shot = self._logits([self.encoder, untouched], images, progress)
        return tuned, zero_shot

    @torch.no_grad()
    def _logits(self, encoders: list[DualEncoder], images: Iterable[ImageSource], progress: Progress) -> list[Tensor]:
        """Scores (N, C) by each encoder; all of them share their frozen prefix."""
        if not self.class_names:
            raise ConfigError("The classifier has no classes yet: call fit first.")
        T = [encoder.encode_texts(self._texts, len(self.templates)) for encoder in encoders]
        batches = self._each_batch(
            images, lambda a: [e.encode_images(a) @ t.mT for e, t in zip(encoders, T, strict=True)], progress
        )
        if not batches:
            return [torch.empty(0, len(self.class_names)) for _ in encoders]
        scale = self.backbone.logit_scale
        return [scale * torch.cat(column).cpu() for column in zip(*batches, strict=True)]

    def logit_belief(self, images: Iterable[ImageSource], progress: Progress = silent) -> LogitBelief:
        """Mean and standard deviation of the logits under the belief, ``J Sigma J^T`` linearised at the mean."""
        if self.filter is None:
            raise ConfigError("There is no belief yet: call fit first.")
        pairs = self._each_batch(images, self._linearised, progress)
        empty = torch.empty(0, len(self.class_names))
        if not pairs:
            return LogitBelief(empty, empty)
        return LogitBelief(*(torch.cat(column).cpu() for column in zip(*pairs, strict=True)))

    def _linearised(self, activations: Activations) -> tuple[Tensor, Tensor]:
        assert self.filter is not None
        C, scale = len(self.class_names), self.backbone.logit_scale
        means, stds = [], []
        for i in range(len(activations[0])):  # image by image: C rows of n derivatives at a time
            jacobian = SimilarityJacobian(
                self.encoder, tuple(t[i : i + 1] for t in activations), self._texts, len(self.templates)
            )
            rows = jacobian.rows(torch.eye(C).to(jacobian.S).unsqueeze(0))
            means.append(scale * jacobian.S)
            stds.append(scale * self.filter.belief.variance(rows).clamp_min(0).sqrt().unsqueeze(0))
        return torch.cat(means), torch.cat(stds)


def _refuse_equal_prompts(class_names: Sequence[str], tokens: list[list[int]]) -> None:
    """Two different names whose prompts are the same to the model (cut off, or spelled alike) cannot be told apart."""
    seen: dict[tuple[int, ...], str] = {}
    for name, row in zip(class_names, tokens, strict=True):
        other = seen.setdefault(tuple(row), name)
        if other != name and name_key(other) != name_key(name):
            raise DataError(
                f"The classes {other[:60]!r}... and {name[:60]!r}... have the same prompt, because the model reads "
                "only its beginning. Shorten the class names or the template."
            )

"""The paper's method: a Kalman filter over low-rank parameters of both towers of a frozen CLIP."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from kalmanclip.config import QUIET, check_seed, check_whole
from kalmanclip.data import LabelledImages
from kalmanclip.encoders import Activations, DualEncoder, LowRankConfig
from kalmanclip.encoders.dual import averaged_prompts
from kalmanclip.encoders.features import ENCODE_BATCH, Progress, activation_store, fresh_crops
from kalmanclip.encoders.jvp import ClassifierTangents
from kalmanclip.encoders.low_rank import named_views
from kalmanclip.encoders.preprocess import check_crop_scale
from kalmanclip.errors import ConfigError, NumericalError
from kalmanclip.filtering import (
    FilterConfig,
    KalmanFilter,
    NoiseConfig,
    ObservationNoise,
    Step,
    belief_structure,
    make_belief,
    restore_belief,
)
from kalmanclip.methods.base import Needs, check_positive, check_scale
from kalmanclip.methods.classifier import AfterEpoch, Classifier, State
from kalmanclip.methods.distributed import require_shareable, shared_activations
from kalmanclip.methods.stepper import SharedStepper, Stepper
from kalmanclip.observation import make_likelihood, observe
from kalmanclip.prediction import LogitGaussian

COVARIANCE_SCALE = {"head": 0.03, "towers": 3e-4}
"""How much of the low-rank parameters' covariance predictions average over, by their placement, unless it is fitted:
chosen on training images outside the shots. Inside the towers next to nothing: a product ``B A`` whose ``A`` no image
has spoken about is far from linear within the belief."""

DIRECTIONS = {"head": 256, "towers": 5}
"""Draws of low-rank parameters that ``J Sigma J^T`` is made of. A variance from K draws is right to ``sqrt(2 / K)``; on
the embeddings a draw costs next to nothing, inside the towers each costs twice the adapted blocks."""


@dataclass(frozen=True)
class KalmanConfig:
    """Options of the filter over low-rank parameters; `kalmanclip.methods.presets` has combinations that work.

    Attributes:
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
        prior_per_matrix: whether every low-rank layer has a prior variance of its own, such that all have the same
            share in ``prior_std**2``; else one variance serves all parameters, and few layers do all the work.
        crop_scale: the share of a picture that random crops take, fresh ones in each pass; None: centre crops, whose
            frozen part is computed once.
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
    prior_per_matrix: bool = field(default=False, metadata=QUIET)
    crop_scale: tuple[float, float] | None = field(default=None, metadata=QUIET)
    epochs: int = 5
    batch_size: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        # an unknown name is an error here, not in the middle of a run
        likelihood = make_likelihood(self.observation, **self.observation_options)
        belief_structure(self.belief)
        check_whole(1, epochs=self.epochs, batch_size=self.batch_size)
        check_seed(self.seed)
        if not isinstance(self.low_rank, LowRankConfig):
            raise ConfigError(f"low_rank must be a LowRankConfig, not {self.low_rank!r}.")
        if self.filter.step_size is not None and not (self.belief == "diagonal" and likelihood.has_covariance):
            raise ConfigError(
                "A step_size needs a 'diagonal' belief and an observation that knows its noise: "
                "'deviance', 'categorical' or 'bounded'."
            )
        if self.crop_scale is not None:
            check_crop_scale(self.crop_scale)
        check_scale(prior_std=self.prior_std)
        check_positive(prior_variance=self.prior_variance)

    @property
    def passes(self) -> int:
        """Passes over the images."""
        return self.epochs


def pass_order(count: int, seed: int, taken: int) -> Tensor:
    """Return the order (N,) of one pass over N images, fixed by the seed and by the steps taken before it.

    It needs no generator that lives through all passes, so whoever resumes after a pass repeats what would have come.
    """
    generator = torch.Generator().manual_seed((seed * 1_000_003 + taken) % 2**63)
    return torch.randperm(count, generator=generator)


Pick = Callable[[Tensor, int], Activations]
"""From positions (B,) and the number of a pass, by which crops differ, to activations of those images."""


class Kalman(Classifier):
    """Logits ``S_C / tau`` of the adapted towers. `update` filters on: the posterior so far is the prior now.

    Several processes share the encoding of the images, the Jacobian of each batch and the belief.

    Attributes:
        filter: the Kalman filter over the low-rank parameters, None before the first image is seen.
        prior_variance: that of each parameter before the first image, on average; None until then.
        covariance_scale: how much of the covariance a prediction averages over.
    """

    Config = KalmanConfig
    config: KalmanConfig

    def _make_encoder(self) -> DualEncoder:
        return DualEncoder(self.backbone, self.config.low_rank, self.config.seed)

    def _reset(self) -> None:
        super()._reset()
        self.filter: KalmanFilter | None = None
        self.prior_variance: float | None = None
        self.covariance_scale = COVARIANCE_SCALE[self.config.low_rank.placement]

    @property
    def diagnostics(self) -> dict[str, Any]:
        """Steps, those skipped, and the mean regulation of the others."""
        if self.filter is None:
            return {}
        found: dict[str, Any] = {"steps": self.filter.steps, "skipped": self.filter.skipped}
        regulations = [step.regulation for step in self.history if not step.skipped]
        return found | ({"mean_regulation": sum(regulations) / len(regulations)} if regulations else {})

    @property
    def needs(self) -> Needs:
        """On the embeddings the frozen features are all it reads."""
        return "towers" if self.config.low_rank.placement == "towers" else "features"

    @property
    def fitted(self) -> bool:
        """Whether any image was learned from."""
        return self.filter is not None

    def _read(self, images: LabelledImages, progress: Progress, from_prior: bool) -> Pick:
        if self.ranks is not None:
            require_shareable(self.config)
            store = shared_activations(self.encoder, images.sources, progress, self.ranks)
        elif self.config.crop_scale is None:
            store = activation_store(self.encoder, images.sources, progress)
        else:
            crops = fresh_crops(self.backbone, images.sources, self.config.crop_scale, self.config.seed)
            return lambda positions, number: self.encoder.image.prefix(crops(positions, number))
        return lambda positions, number: store[positions]

    def _frozen_features(self, material: Pick, images: LabelledImages, progress: Progress) -> Tensor:
        if self.config.crop_scale is not None:
            return super()._frozen_features(material, images, progress)
        untouched, every = self._untouched(), torch.arange(len(images))
        return torch.cat([untouched.encode_images(material(part, 0)) for part in every.split(ENCODE_BATCH)])

    def _learn(
        self,
        material: Pick,
        images: LabelledImages,
        epochs: int,
        progress: Progress,
        after_epoch: AfterEpoch | None,
    ) -> list[Step]:
        return self.run_filter(material, images.labels, epochs, progress, after_epoch)

    def run_filter(
        self,
        pick: Pick,
        image_labels: list[int],
        epochs: int,
        progress: Progress,
        after_epoch: AfterEpoch | None = None,
    ) -> list[Step]:
        """Filter images with labels, pass by pass; ``after_epoch`` is not called after the last.

        With a ``step_size`` the belief that the first pass begins with is the prior of them all.
        """
        labels = torch.tensor(image_labels)  # on the CPU: which texts a batch needs is decided there
        steps = epochs * math.ceil(len(labels) / self.config.batch_size)
        records: list[Step] = []
        take: Stepper | None = None
        for epoch in range(epochs):
            try:
                # a fresh order for each pass, fixed by the seed and by the steps taken: resuming repeats it
                taken = 0 if self.filter is None else self.filter.steps
                for batch in pass_order(len(labels), self.config.seed, taken).split(self.config.batch_size):
                    shown = pick(self._share(batch), taken), labels[batch]
                    if self.filter is None:
                        self.filter = self._prior(*shown)
                    take = take or self._stepper(self.filter)
                    records.append(take(*shown, share=len(batch) / len(labels)))
                    self.history.append(records[-1])
                    progress("filtering", len(records), steps)
            except BaseException:
                if self.ranks is not None and take is not None:
                    self.filter = None  # a part of a belief is none, and the others' parts may be out of reach
                raise
            take = take and take.end_pass()
            if all(r.skipped for r in records):  # before anybody saves a model that has learned nothing
                raise NumericalError(
                    f"All {len(records)} steps were skipped; the first because {records[0].reason}. "
                    "Try a smaller prior_std, or another observation."
                )
            if after_epoch is not None and epoch + 1 < epochs:
                after_epoch(epoch + 1)
        if self.filter is not None:
            self.filter.prior = None  # these images are learned: the posterior is the prior of the next ones
        return records

    def _share(self, batch: Tensor) -> Tensor:
        """Return this process's share of a batch (B,), or of its labels."""
        return batch if self.ranks is None else batch[self.ranks.own_slice(self.ranks.shares(len(batch)))]

    def _stepper(self, kalman: KalmanFilter) -> Stepper:
        likelihood = make_likelihood(self.config.observation, **self.config.observation_options)
        options = self.encoder, kalman, likelihood, self.texts, len(self.templates)
        return Stepper(*options) if self.ranks is None else SharedStepper(self.ranks, *options)

    def _prior(self, images: Activations, labels: Tensor) -> KalmanFilter:
        """Return the filter before any step, ``Sigma_0`` from ``prior_std`` and the first batch's Jacobian."""
        variance = self.config.prior_variance
        if variance is None:
            # mean diag(H H^T) of the similarities in the first batch
            own, squares = self._share(labels), torch.zeros_like(self.encoder.theta)
            if len(own):
                seen = observe(self.encoder, make_likelihood("cosine"), images, own, self.texts, len(self.templates))
                squares = seen.H.square().sum(dim=0)
            by_layer = torch.stack([part.sum() for part in squares.split(self.encoder.groups)])
            by_layer = (by_layer if self.ranks is None else self.ranks.all_reduce(by_layer)) / len(labels)
            spread = float(by_layer.sum())
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
            if self.config.prior_per_matrix:
                # A layer that hardly matters would be given a huge variance: a thousandth of the mean counts as that.
                shares = by_layer.clamp_min(1e-3 * by_layer.mean()) / by_layer.sum()
                widths = torch.tensor(self.encoder.groups, device=shares.device)
                return self.begin((variance / (shares * len(shares))).repeat_interleave(widths))
        return self.begin(variance)

    def begin(self, variance: float | Tensor) -> KalmanFilter:
        """Return the filter before it has seen anything, with that variance of each parameter: a number or (n,)."""
        self.prior_variance = float(torch.as_tensor(variance).mean())
        options: dict[str, dict[str, Any]] = {
            "diagonal": {"update": "precision"},
            "block": {"groups": self.encoder.groups},
        }
        chosen = options.get(self.config.belief, {}) | self.config.belief_options
        belief = make_belief(self.config.belief, self.encoder.theta, variance, **chosen)
        return KalmanFilter(belief, ObservationNoise(self.config.noise), self.config.filter)

    # prediction

    def _weights(self) -> Tensor:
        return self.text_weights()

    def _scorer(self) -> Callable[[Activations], Tensor]:
        T, scale = self.text_weights(), self.backbone.logit_scale
        return lambda activations: scale * self.encoder.encode_images(activations) @ T.mT

    def linearized(self, scaled: bool = True) -> Callable[[Activations], LogitGaussian]:
        """See `Classifier.linearized`."""
        tangents, scale = self.tangents(scaled), self.backbone.logit_scale

        def apply(activations: Activations) -> LogitGaussian:
            f, moved = tangents(activations)
            logits = scale * (f @ tangents.W.mT)
            return LogitGaussian(logits, torch.zeros_like(logits), scale * moved)

        return apply

    def tangents(self, scaled: bool = True) -> ClassifierTangents:
        """Return how similarities move along draws of the parameters, each with its share of the variance."""
        count = DIRECTIONS[self.config.low_rank.placement]
        away = self._draws(count) * math.sqrt((self.covariance_scale if scaled else 1.0) / count)
        return ClassifierTangents(self.encoder, self.texts, len(self.templates), away)

    def _draws(self, count: int) -> Tensor:
        """Return parameters (count, n) less their mean, drawn from the belief with the method's seed."""
        assert self.filter is not None
        belief = self.filter.belief
        generator = torch.Generator(belief.mean.device).manual_seed(self.config.seed % 2**63)
        return belief.sample(count, generator) - belief.mean

    def sampled_towers(self, samples: int) -> tuple[list[dict[str, Tensor]], list[Tensor]]:
        """Return draws from the scaled belief: the image tower's parameters by name, and the texts (C, d)."""
        encoder = self.encoder
        thetas = encoder.theta + math.sqrt(self.covariance_scale) * self._draws(samples)
        image, text = [], []
        for theta in thetas:
            image.append(named_views(encoder.image, theta[: encoder.n_image]))
            prompts = functional_call(encoder.text, named_views(encoder.text, theta[encoder.n_image :]), self.texts)
            text.append(averaged_prompts(prompts, len(self.templates)))
        return image, text

    def score_draws(
        self, image: Sequence[dict[str, Tensor]], weights: Sequence[Tensor]
    ) -> Callable[[Activations], Tensor]:
        """Return what scores images by draws: parameters of the image tower, each with class weights (C, d)."""
        scale, tower = self.backbone.logit_scale, self.encoder.image

        def apply(activations: Activations) -> Tensor:
            f = (functional_call(tower, parameters, activations) for parameters in image)
            return torch.stack([scale * x @ W.mT for x, W in zip(f, weights, strict=True)])

        return apply

    def sampled(self, samples: int) -> Callable[[Activations], Tensor]:
        """See `Classifier.sampled`."""
        return self.score_draws(*self.sampled_towers(samples))

    def _scale_covariance(self, factor: float) -> None:
        self.covariance_scale *= factor

    # state

    def state_dict(self) -> State:
        """See `Classifier.state_dict`."""
        tensors, values = super().state_dict()
        if self.filter is not None:
            tensors |= {f"belief.{name}": t for name, t in self.filter.belief.state_dict().items()}
            tensors |= {f"noise.{name}": t for name, t in self.filter.noise.state_dict().items()}
            if self.filter.prior is not None:  # in the middle of a fit
                tensors |= dict(zip(("prior.mean", "prior.s"), self.filter.prior, strict=True))
            values |= {"steps": self.filter.steps, "skipped": self.filter.skipped}
            values |= {"prior_variance": self.prior_variance, "covariance_scale": self.covariance_scale}
        return State(tensors, values)

    def _load(self, state: State, class_names: Sequence[str]) -> None:
        belief = state.part("belief")
        if "mean" not in belief or belief["mean"].shape != self.encoder.theta.shape:
            raise ConfigError("its mean does not fit its configuration")
        self.set_belief(belief, state.part("noise"))
        assert self.filter is not None
        self.filter.steps, self.filter.skipped = state.values["steps"], state.values["skipped"]
        prior = state.part("prior")
        if prior:
            self.filter.prior = prior["mean"].to(self.encoder.theta), prior["s"].to(self.encoder.theta)
        self.prior_variance = state.values["prior_variance"]
        self.covariance_scale = state.values["covariance_scale"]

    def set_belief(self, belief: dict[str, Tensor], noise: dict[str, Tensor]) -> None:
        """Make a filter of the states of a belief and of a noise."""
        with torch.no_grad():
            self.encoder.theta.copy_(belief["mean"])
        # the belief's mean *is* the model's parameters
        restored = restore_belief(self.config.belief, belief | {"mean": self.encoder.theta})
        self.filter = KalmanFilter(restored, ObservationNoise.from_state(self.config.noise, noise), self.config.filter)

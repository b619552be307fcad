"""Low-rank parameters inside the image tower and class residuals, learned from the same images.

First the class residuals of the untouched embeddings, as `ClassResiduals` has them. Then a Kalman filter over low-rank
parameters in all blocks of the image tower: each training image is observed as the text and the *other* images
classify it (`LeaveOneOut`), in fresh random crops. Last the class residuals of the adapted embeddings. An image is
classified by both,

    logits = (l(f) + n / (n + 1) l'(f')) / 2,

with ``f`` its untouched and ``f'`` its adapted embedding, and n images per class: the towers have seen the training
images, so the fewer there are, the less what they make of new ones can be trusted.

The filter's steps forget a part of what was learned and count every image once, however many there are
(`kalmanclip.filtering.filter.FilterConfig`). ``A`` is fixed: the leading principal directions of what each map is given
by the training images. So the embeddings stay close to linear in the parameters, and wide priors do no harm.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from kalmanclip.config import check_whole
from kalmanclip.data import LabelledImages
from kalmanclip.data.embedding import Embedding
from kalmanclip.encoders import Activations, DualEncoder, LowRankConfig
from kalmanclip.encoders.features import Progress, activation_store, crop_features, fresh_crops, silent
from kalmanclip.encoders.jacobian import image_rows
from kalmanclip.encoders.low_rank import named_views
from kalmanclip.encoders.preprocess import check_crop_scale
from kalmanclip.errors import ConfigError, NumericalError
from kalmanclip.filtering import (
    CapturedStep,
    FilterConfig,
    KalmanFilter,
    Observation,
    Step,
    make_belief,
    restore_belief,
)
from kalmanclip.methods.base import Needs, check_positive, check_scale, labels_of
from kalmanclip.methods.class_residuals import ClassResiduals
from kalmanclip.methods.classifier import AfterEpoch, Classifier, PlainTower, State
from kalmanclip.methods.leave_one_out import LeaveOneOut
from kalmanclip.methods.residuals import ClassResidualsConfig, HeldOut, ResidualBelief
from kalmanclip.prediction import JointLogits, LabelCheck, LogitGaussian

SEEN = 0.5
"""Of embeddings that have been adapted to the images, the residuals' prior has so much of the width that was chosen on
untouched ones, and the generative classifier so much of the weight."""

LEAST_PASSES = 3
"""How often every image is seen at least, each time in another crop."""

DRAWS_SCALE = 3e-4
"""How much of the low-rank parameters' covariance sampled predictions average over."""


@dataclass(frozen=True)
class JointConfig:
    """Options of the filter inside the image tower, and of the class residuals.

    Attributes:
        low_rank: where the low-rank parameters sit.
        prior_std: how far, in units of cosine similarity, an image's similarity with its text may move under the prior
            of all low-rank parameters (one standard deviation); each layer has the same share.
        step_size: of the filter, see `FilterConfig`.
        steps: of the filter, for each image of a class in the mean; more where there are so many classes that an image
            would be seen fewer than `LEAST_PASSES` times.
        batch_size: images per step.
        crop_scale: the share of a picture that random crops take, fresh ones in each pass; None: centre crops, whose
            frozen part is computed once.
        residuals: of the class residuals, both on untouched and on adapted embeddings.
    """

    low_rank: LowRankConfig = field(
        default_factory=lambda: LowRankConfig(
            placement="towers", towers=("image",), targets=("q", "k", "v", "out", "mlp"), rank=2, learn_a=False
        )
    )
    prior_std: float = 1.0
    step_size: float = 0.05
    steps: int = 15
    batch_size: int = 32
    crop_scale: tuple[float, float] | None = (0.3, 1.0)
    residuals: ClassResidualsConfig = field(default_factory=ClassResidualsConfig)

    def __post_init__(self) -> None:
        for name, wanted in (("low_rank", LowRankConfig), ("residuals", ClassResidualsConfig)):
            if not isinstance(getattr(self, name), wanted):
                raise ConfigError(f"{name} must be a {wanted.__name__}, not {getattr(self, name)!r}.")
        if (self.low_rank.placement, self.low_rank.towers) != ("towers", ("image",)):
            raise ConfigError(
                "The joint method has low-rank parameters inside the image tower; class residuals are its parameters "
                "on the side of the text. For others choose the preset 'head', 'paper' or 'towers'."
            )
        check_whole(1, steps=self.steps, batch_size=self.batch_size)
        check_scale(prior_std=self.prior_std)
        check_positive(step_size=self.step_size)
        if self.crop_scale is not None:
            check_crop_scale(self.crop_scale)
        _ = self.filter  # whose options check themselves

    @property
    def filter(self) -> FilterConfig:
        """The filter's options."""
        return FilterConfig(alpha=0.0, step_size=self.step_size)

    def steps_for(self, counts: Sequence[int]) -> int:
        """Return how many steps to take for so many images of each class."""
        images, classes = sum(counts), sum(count > 0 for count in counts)
        batch_size = min(self.batch_size, images)
        return max(round(self.steps * images / classes), math.ceil(LEAST_PASSES * images / batch_size))

    @property
    def seed(self) -> int:
        """Of everything random."""
        return self.residuals.seed

    @property
    def passes(self) -> int:
        """Passes that are reported: one, however many crops of an image are seen."""
        return 1


class Material(NamedTuple):
    """What learning begins with.

    Attributes:
        frozen: untouched embeddings of the crops (N, V, d).
        adapted: the same as the adapted tower sees them; None before it is adapted.
    """

    frozen: Tensor
    adapted: Tensor | None


class Batch(NamedTuple):
    """Training images that are seen together.

    Attributes:
        positions: which they are, (B,), on the model's device.
        activations: what the tower's adapted part is given.
    """

    positions: Tensor
    activations: Activations


class Remembering(DualEncoder):
    """An encoder that does not encode the same activations twice: several parts of a prediction ask for them."""

    _last: tuple[Activations, Tensor] | None = None

    def encode_images(self, activations: Activations) -> Tensor:
        """See `DualEncoder.encode_images`."""
        last = self._last  # others may ask at the same time
        if last is None or last[0] is not activations:
            self._last = last = activations, super().encode_images(activations)
        return last[1]


class Joint(Classifier):
    """Class residuals on untouched and on adapted embeddings; see the top of this module.

    In `update` the low-rank parameters stay as they are: the statistics of the images before lie in embeddings that
    those parameters made.

    Attributes:
        residuals: the belief about those of untouched embeddings.
        adapted: the same of adapted embeddings.
        filter: the Kalman filter over the low-rank parameters, None before the first image is seen.
    """

    Config = JointConfig
    config: JointConfig
    joint = True

    def _make_encoder(self) -> DualEncoder:
        return DualEncoder(self.backbone, self.config.low_rank, self.config.seed)

    def _untouched(self) -> DualEncoder:
        return self._frozen

    def _reset(self) -> None:
        super()._reset()
        self._frozen = Remembering(self.backbone, self.config.low_rank, self.config.seed)
        self.residuals = ResidualBelief(self.config.residuals, self.backbone.logit_scale)
        self.adapted = ResidualBelief(self.config.residuals, self.backbone.logit_scale)
        self.filter: KalmanFilter | None = None

    @property
    def diagnostics(self) -> dict[str, Any]:
        """Those of the residuals of untouched embeddings, and the filter's steps."""
        steps = {} if self.filter is None else {"steps": self.filter.steps, "skipped": self.filter.skipped}
        return steps | self.residuals.diagnostics

    @property
    def needs(self) -> Needs:
        """Both the images and their untouched embeddings."""
        return "towers"

    @property
    def fitted(self) -> bool:
        """Whether any image was learned from."""
        return self.adapted.belief is not None

    # learning

    def _check_images(self, images: LabelledImages) -> None:
        if self.ranks is not None:
            raise ConfigError(
                "Several ranks cannot share the joint method: start a single process, or choose the preset 'residuals'."
            )
        super()._check_images(images)

    def _read(self, images: LabelledImages, progress: Progress, from_prior: bool) -> Material:
        options, seed = self.config.residuals, self.config.seed
        frozen = crop_features(DualEncoder(self.backbone), images.sources, options, seed, progress)
        first = from_prior or not self.fitted
        if first and isinstance(images.sources[0], Embedding):
            raise ConfigError(
                "The joint method adapts the image tower, and there are only embeddings of the images. Choose the "
                "preset 'residuals' or 'head'."
            )
        return Material(frozen, None if first else self._adapted_crops(images, progress))

    def _adapted_crops(self, images: LabelledImages, progress: Progress) -> Tensor:
        return crop_features(self.encoder, images.sources, self.config.residuals, self.config.seed, progress)

    def _frozen_features(self, material: Material, images: LabelledImages, progress: Progress) -> Tensor:
        return material.frozen[:, 0]

    def _learn(
        self,
        material: Material,
        images: LabelledImages,
        epochs: int,
        progress: Progress,
        after_epoch: AfterEpoch | None,
    ) -> list[Step]:
        frozen, adapted = material
        labels = labels_of(images, frozen.device)
        self.residuals.learn(frozen, labels, lambda done, total: progress("learning the classes", done, total))
        if adapted is None:
            self._adapt(frozen[:, 0], images, labels, progress)
            adapted = self._adapted_crops(images, progress)
            assert self.residuals.prior_std is not None
            self.adapted.config = replace(
                self.config.residuals,
                prior_std=SEEN * self.residuals.prior_std,
                generative=SEEN * self.residuals.generative,
            )
        # nothing is held out: the towers have seen all of it
        self.adapted.learn(adapted, labels, hold_out=False)
        self.adapted.covariance_scale = self.residuals.covariance_scale
        return []

    def _adapt(self, f: Tensor, images: LabelledImages, labels: Tensor, progress: Progress) -> None:
        """Learn the low-rank parameters, from the untouched embeddings (N, d) on."""
        observed = LeaveOneOut(f, labels, self.residuals.T, self.residuals.root, self.backbone.logit_scale)
        batches = self._batches(images, progress)
        first = next(batches)
        self.encoder.start_principal(first.activations)
        self._learn_towers(
            itertools.chain([first], batches), observed, self.config.steps_for(images.counts()), progress
        )

    def _batches(self, images: LabelledImages, progress: Progress) -> Iterator[Batch]:
        """Yield batches without end, each pass with crops of its own."""
        order = Order(len(images), min(self.config.batch_size, len(images)), self.config.seed)
        device, encoder, crop_scale = self.backbone.device, self.encoder, self.config.crop_scale
        if crop_scale is None:
            store = activation_store(encoder, images.sources, progress)
            while True:
                positions, _ = order.draw()
                yield Batch(positions.to(device), store[positions])
        crops = fresh_crops(self.backbone, images.sources, crop_scale, self.config.seed)
        while True:
            positions, number = order.draw()
            yield Batch(positions.to(device), encoder.image.prefix(crops(positions, number)))

    def _learn_towers(self, batches: Iterator[Batch], observed: LeaveOneOut, steps: int, progress: Progress) -> None:
        """Filter the low-rank parameters, and set them to the average of the belief's mean over the second half."""
        encoder = self.encoder

        def observe(mean: Tensor, *inputs: Tensor) -> Observation:
            *activations, at = inputs
            residual, H, seen = image_rows(encoder, tuple(activations), lambda f: observed.deviance(f, at))
            observed.remember(seen, at)
            identity = torch.eye(len(H), dtype=H.dtype, device=H.device)
            return Observation(torch.zeros_like(residual), residual, H, identity)

        average, taken = torch.zeros_like(encoder.theta), 0
        captured: CapturedStep | None = None
        capture = True
        for step, (positions, shown) in enumerate(itertools.islice(batches, steps)):
            if step == 0:
                self._begin(shown, observed.labels[positions])
            assert self.filter is not None
            inputs, share = (*shown, positions), len(positions) / len(observed.labels)
            if captured is None and capture and step and CapturedStep.possible(self.filter):
                try:
                    captured = CapturedStep(self.filter, observe, inputs, share, state=(observed.f,))
                except (ConfigError, RuntimeError) as problem:  # something in this model cannot be captured
                    capture = False
                    warnings.warn(f"Going on without captured steps: {problem}", RuntimeWarning, stacklevel=2)
            if captured is not None:
                record = captured(*inputs)
            else:
                record = self.filter.step(lambda mean, given=inputs: observe(mean, *given), share)  # type: ignore[misc]
            self.history.append(record)
            if 2 * (step + 1) > steps:
                taken += 1
                average.lerp_(encoder.theta, 1 / taken)
            progress("adapting the image tower", step + 1, steps)
        assert self.filter is not None
        if self.filter.skipped == steps:
            raise NumericalError(
                f"All {steps} steps were skipped; the first because {self.history[0].reason}. Try a smaller prior_std."
            )
        self.filter.prior = None
        with torch.no_grad():
            encoder.theta.copy_(average)  # the belief's mean *is* the model's parameters

    def _begin(self, shown: Activations, labels: Tensor) -> None:
        """Set the prior: every layer moves a similarity alike."""
        encoder = self.encoder
        texts = self.residuals.T[labels]
        _, H, _ = image_rows(encoder, shown, lambda f: ((f * texts).sum(dim=1), texts))
        by_layer = torch.stack([part.sum() for part in H.square().mean(dim=0).split(encoder.groups)])
        if not (bool(by_layer.isfinite().all()) and float(by_layer.sum()) > 0):
            raise NumericalError(
                "The similarities of the first batch do not respond to the parameters. Check the backbone's weights."
            )
        # a layer that hardly matters would be given a huge variance: a thousandth of the mean counts as that
        spread = by_layer.clamp_min(1e-3 * by_layer.mean()) * len(by_layer)
        widths = torch.tensor(encoder.groups, device=spread.device)
        variances = (self.config.prior_std**2 / spread).repeat_interleave(widths)
        belief = make_belief("diagonal", encoder.theta, variances, update="precision")
        self.filter = KalmanFilter(belief, config=self.config.filter)

    def _held_out(self) -> HeldOut | None:
        return self.residuals.held_out

    def _by_fold(self, activations: Activations) -> Tensor:
        """Return probabilities (K, N, C) by the classifiers of the folds: they are those of untouched embeddings."""
        assert self.fold_weights is not None
        f = self._untouched().encode_images(activations)
        return (self.backbone.logit_scale * f @ self.fold_weights.mT).softmax(dim=2).cpu()

    def _classes_changed(self, before: list[str]) -> None:
        T = self.text_weights()
        self.residuals.set_classes(self.class_names, T)
        self.adapted.set_classes(self.class_names, T)

    # prediction

    @property
    def shares(self) -> tuple[float, float]:
        """How much the logits of untouched and of adapted embeddings count."""
        statistics = self.adapted.statistics
        if statistics is None:
            return 1.0, 0.0
        there = statistics.count > 0
        n = float(statistics.count[there].mean()) if bool(there.any()) else 0.0
        return 0.5, 0.5 * n / (n + 1)

    def _weights(self) -> Tensor:
        raise ConfigError(
            "A classifier of the preset 'joint' reads every image twice, by the model as it was and by the adapted "
            "one: no single model and its class weights are the same. Export it: both are written, or one ONNX "
            "graph of both (on the command line export --format onnx)."
        )

    def _scorer(self) -> Callable[[Activations], Tensor]:
        untouched, (own, other) = self._untouched(), self.shares

        def score(activations: Activations) -> Tensor:
            frozen = own * self.residuals.logits(untouched.encode_images(activations))
            if not other:
                return frozen
            return frozen + other * self.adapted.logits(self.encoder.encode_images(activations))

        return score

    def linearized(self, scaled: bool = True) -> Callable[[Activations], LogitGaussian]:
        """See `Classifier.linearized`. Both kinds of residuals were learned from the same images: they err alike."""
        untouched, (own, other) = self._untouched(), self.shares
        scale = self.residuals.covariance_scale if scaled else 1.0

        def apply(activations: Activations) -> LogitGaussian:
            f, g = untouched.encode_images(activations), self.encoder.encode_images(activations)
            mean = own * self.residuals.logits(f) + other * self.adapted.logits(g)
            std = own * self.residuals.variance(f).sqrt() + other * self.adapted.variance(g).sqrt()
            return LogitGaussian(mean, scale * std.square())

        return apply

    def sampled(self, samples: int) -> Callable[[Activations], Tensor]:
        """See `Classifier.sampled`. Low-rank parameters and both kinds of residuals are drawn."""
        assert self.filter is not None
        untouched, (own, other) = self._untouched(), self.shares
        # the same random numbers for both kinds: they were learned from the same images, and err alike
        generators = (torch.Generator().manual_seed(self.config.seed % 2**63) for _ in range(2))
        W = torch.stack(list(self.residuals.sampled([self.residuals.T] * samples, next(generators))))
        V = list(self.adapted.sampled([self.adapted.T] * samples, next(generators)))
        belief, tower = self.filter.belief, self.encoder.image
        thetas = belief.sample(samples, torch.Generator(belief.mean.device).manual_seed(self.config.seed % 2**63))
        drawn = belief.mean + math.sqrt(DRAWS_SCALE) * (thetas - belief.mean)
        scale = self.backbone.logit_scale

        def apply(activations: Activations) -> Tensor:
            frozen = own * untouched.encode_images(activations) @ W.mT
            moved = (functional_call(tower, named_views(tower, theta), activations) for theta in drawn)
            adapted = torch.stack([f @ v.mT for f, v in zip(moved, V, strict=True)])
            return scale * (frozen + other * adapted)

        return apply

    def joint_logits(self, activations: Activations) -> JointLogits:
        """See `Classifier.joint_logits`; those of untouched embeddings, which stand for both: they err alike."""
        return self.residuals.joint_logits(self._untouched().encode_images(activations))

    def plain_towers(self) -> list[PlainTower]:
        """See `Classifier.plain_towers`: the untouched tower and the adapted one."""
        own, other = self.shares
        untouched, adapted = own * self.residuals.weights(), other * self.adapted.weights()
        return [
            PlainTower(self._untouched().merged(), untouched.cpu(), untouched=True),
            PlainTower(self.merged(), adapted.cpu(), untouched=False),
        ]

    def check_labels(self, images: LabelledImages, progress: Progress = silent) -> LabelCheck:
        """See `Classifier.check_labels`; by class residuals of untouched embeddings, no tower is adapted."""
        self._require_classes()
        checker = ClassResiduals(self.backbone, self.config.residuals)
        checker.set_classes(self.class_names, self.templates)
        return checker.check_labels(images, progress)

    def _scale_covariance(self, factor: float) -> None:
        self.residuals.covariance_scale *= factor
        self.adapted.covariance_scale *= factor

    # state

    def state_dict(self) -> State:
        """See `Classifier.state_dict`."""
        tensors, values = super().state_dict()
        for name, part in (("residuals", self.residuals), ("adapted", self.adapted)):
            tensors |= {f"{name}.{key}": t for key, t in part.state_dict().items()}
        if self.filter is not None:
            tensors |= {f"belief.{name}": t for name, t in self.filter.belief.state_dict().items()}
            tensors["fixed"] = self.encoder.fixed
            values |= {"steps": self.filter.steps, "skipped": self.filter.skipped}
        return State(tensors, values)

    def _load(self, state: State, class_names: Sequence[str]) -> None:
        belief, fixed = state.part("belief"), state.tensors.get("fixed")
        theta = self.encoder.theta
        fit = "mean" in belief and belief["mean"].shape == theta.shape
        if not fit or fixed is None or fixed.shape != self.encoder.fixed.shape:
            raise ConfigError("its low-rank parameters do not fit its configuration")
        with torch.no_grad():
            theta.copy_(belief["mean"])
            self.encoder.fixed.copy_(fixed)
        self.filter = KalmanFilter(restore_belief("diagonal", belief | {"mean": theta}), config=self.config.filter)
        self.filter.steps, self.filter.skipped = state.values["steps"], state.values["skipped"]
        self.residuals.load_state_dict(state.part("residuals"), class_names)
        self.adapted.load_state_dict(state.part("adapted"), class_names)


class Order:
    """Batches of one size, over and over all images: each pass in an order of its own, batches across two passes.

    Args:
        count: N.
        size: images per batch, N at most.
        seed: of the orders.
    """

    def __init__(self, count: int, size: int, seed: int) -> None:
        self.count, self.size = count, size
        self._generator = torch.Generator().manual_seed(seed % 2**63)
        self._rest = torch.empty(0, dtype=torch.long)
        self._number = 0

    def draw(self) -> tuple[Tensor, int]:
        """Return positions (size,), no two of them the same, and the number of their crops, another every time."""
        if len(self._rest) < self.size:
            again = torch.randperm(self.count, generator=self._generator)
            waiting = torch.isin(again, self._rest)
            # those that wait for the last pass fill the batch with others, and come in the new pass after it
            now, later = again[~waiting].split([self.size - len(self._rest), self.count - self.size])
            later = torch.cat([later, again[waiting]])
            later = later[torch.randperm(len(later), generator=self._generator)]
            self._rest = torch.cat([self._rest, now, later])
        batch, self._rest = self._rest.split([self.size, len(self._rest) - self.size])
        self._number += 1
        return batch, self._number

"""The method: a Kalman filter over low-rank parameters of both towers of a frozen CLIP, or over class residuals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kalmanclip.data import FewShotTask, LabelledImages, class_prompts
from kalmanclip.data.images import ImageSource
from kalmanclip.data.kept import keep_decoded
from kalmanclip.data.names import name_key
from kalmanclip.encoders import Activations, Backbone, DualEncoder, SimilarityJacobian
from kalmanclip.encoders.cache import ActivationStore
from kalmanclip.errors import ConfigError, DataError, NumericalError
from kalmanclip.filtering import KalmanFilter, ObservationNoise, Step, make_belief
from kalmanclip.methods.base import Needs, Progress, silent
from kalmanclip.methods.classes import ClassResiduals
from kalmanclip.methods.features import (
    RandomCrop,
    activation_store,
    encoded,
    frozen_activations,
    labels_of,
    unit_dtype,
)
from kalmanclip.methods.kalman_config import KalmanConfig
from kalmanclip.observation import make_likelihood, observe


class LogitBelief(NamedTuple):
    """The Gaussian that the belief over the parameters implies for logits, linearised at the mean.

    Attributes:
        mean: (N, C).
        std: (N, C), the marginal standard deviations.
    """

    mean: Tensor
    std: Tensor


class Kalman:
    """A CLIP classifier whose low-rank parameters, or class residuals, carry a Gaussian belief.

    Args:
        backbone: the frozen CLIP.
        config: the options.

    Attributes:
        encoder: the adapted towers; ``encoder.theta`` is the mean of the belief about the low-rank parameters.
        classes: the class residuals; None if they are not among the ``parameters``.
        filter: the Kalman filter over the low-rank parameters, None before the first image is seen.
        history: one record per step.
        prior_variance: that of each parameter before the first image; None until then.
    """

    def __init__(self, backbone: Backbone, config: KalmanConfig | None = None) -> None:
        self.backbone = backbone
        self.config = config or KalmanConfig()
        self.class_names: list[str] = []
        self.templates: tuple[str, ...] = ()
        self._texts: Activations = ()
        self._start()

    def _start(self) -> None:
        """Back to the prior."""
        self.encoder = DualEncoder(self.backbone, self.config.low_rank, self.config.seed)
        self.classes: ClassResiduals | None = None
        if "classes" in self.config.parameters:
            alpha = self.config.filter.alpha
            self.classes = ClassResiduals(self.config.classes, self.backbone.logit_scale, alpha)
        self.filter: KalmanFilter | None = None
        self.history: list[Step] = []
        self.prior_variance: float | None = None

    @property
    def needs(self) -> Needs:
        """On the embeddings the frozen features are all it reads."""
        inside = "low_rank" in self.config.parameters and self.config.low_rank.placement == "towers"
        return "towers" if inside else "features"

    @property
    def fitted(self) -> bool:
        """Whether any image was learned from."""
        return self.filter is not None or (self.classes is not None and self.classes.belief is not None)

    def set_classes(self, class_names: Sequence[str], templates: Sequence[str]) -> None:
        """Names the classes; they can be added or renamed at any time.

        Low-rank parameters belong to no class. A class residual belongs to its class's name; a class without one has
        its text alone.

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
        self._tell_classes()

    @torch.no_grad()
    def _tell_classes(self) -> None:
        """Gives the residuals the texts as the towers read them now."""
        if self.classes is not None:
            T = self.encoder.encode_texts(self._texts, len(self.templates))
            self.classes.set_classes(self.class_names, _precise(T))

    def fit(
        self,
        task: FewShotTask,
        progress: Progress = silent,
        after_epoch: Callable[[int], None] | None = None,
    ) -> list[Step]:
        """Learns the training images, starting from the prior; see `update`."""
        material = self._read(task.train, progress)  # first: an unreadable image must not cost what was there before
        self._start()
        self.set_classes(task.class_names, task.templates)
        return self._learn(material, task.train, self.config.passes, progress, after_epoch)

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
            epochs: passes over them, for the low-rank parameters; class residuals are updated once.
            progress: told about decoding and filtering.
            after_epoch: called with the number of finished passes after each.
            templates: prompt templates; None keeps those set before.

        Returns:
            The records of the filter's steps.

        Raises:
            NumericalError: every single step of the first pass had to be skipped.
        """
        if epochs < 1:
            raise ConfigError(f"epochs must be at least 1, not {epochs}.")
        material = self._read(images, progress)
        templates = self.templates if templates is None else tuple(templates)
        if (images.class_names, templates) != (self.class_names, self.templates):
            self.set_classes(images.class_names, templates)
        return self._learn(material, images, epochs, progress, after_epoch)

    def _read(self, images: LabelledImages, progress: Progress) -> ActivationStore | Tensor:
        """What learning begins with: activations for the filter, or at once the views for the class residuals."""
        if not len(images):
            raise DataError("There are no images to learn from.")
        if "low_rank" in self.config.parameters:
            return activation_store(self.encoder, images.sources, progress)
        return self._views(images.sources, progress)

    def _learn(
        self,
        material: ActivationStore | Tensor,
        images: LabelledImages,
        epochs: int,
        progress: Progress,
        after_epoch: Callable[[int], None] | None,
    ) -> list[Step]:
        records: list[Step] = []
        if isinstance(material, ActivationStore):
            records = self._filter(material, images.labels, epochs, progress, after_epoch)
        if self.classes is not None:
            views = self._views(images.sources, progress) if isinstance(material, ActivationStore) else material
            labels = labels_of(images, views.device)
            self.classes.learn(views, labels, lambda done, total: progress("learning the classes", done, total))
        if after_epoch is not None:
            after_epoch(epochs if records else 1)
        return records

    @torch.no_grad()
    def _views(self, sources: Sequence[ImageSource], progress: Progress) -> Tensor:
        """Embeddings (N, 1 + V, d) of the centre crop and V random crops of each training image."""
        options, image = self.config.classes, self.encoder.image
        crops = [RandomCrop(self.backbone, options.crop_scale, self.config.seed, v) for v in range(options.views)]
        pictures = keep_decoded(sources, crops[0].min_side) if crops else sources
        columns: list[Tensor] = []
        total = len(sources) * (1 + len(crops))
        for crop in (None, *crops):
            rows: list[Tensor] = []
            shown = pictures if crop else sources  # centre crops as everybody decodes them: one cache serves all
            for batch in encoded(self.backbone, shown, image.product, image.prefix, crop):
                rows.append(_precise(self.encoder.encode_images(batch)))
                progress("reading images", len(columns) * len(sources) + sum(map(len, rows)), total)
            columns.append(torch.cat(rows))
        return torch.stack(columns, dim=1)

    def _filter(
        self,
        store: ActivationStore,
        image_labels: list[int],
        epochs: int,
        progress: Progress,
        after_epoch: Callable[[int], None] | None,
    ) -> list[Step]:
        """The passes of the filter; after the last, the caller tells ``after_epoch``."""
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
            self._tell_classes()  # the pass has moved the texts
            if after_epoch is not None and epoch + 1 < epochs:
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
        """Logits (N, C) by each encoder, with the class residuals by our own; all share their frozen prefix."""
        if not self.class_names:
            raise ConfigError("The classifier has no classes yet: call fit first.")
        scorers = [self._scorer(encoder) for encoder in encoders]
        batches = self._each_batch(images, lambda activations: [score(activations) for score in scorers], progress)
        if not batches:
            return [torch.empty(0, len(self.class_names)) for _ in encoders]
        return [torch.cat(column).cpu() for column in zip(*batches, strict=True)]

    def _scorer(self, encoder: DualEncoder) -> Callable[[Activations], Tensor]:
        """How an encoder scores a batch: activations to logits (B, C). The residuals hold the texts already."""
        classes = self.classes if encoder is self.encoder else None
        if classes is not None:
            return lambda activations: classes.logits(_precise(encoder.encode_images(activations)))
        T = encoder.encode_texts(self._texts, len(self.templates))
        scale = self.backbone.logit_scale
        return lambda activations: scale * encoder.encode_images(activations) @ T.mT

    @torch.no_grad()
    def class_weights(self) -> Tensor:
        """The classifier (C, d) at the mean of the belief, on the CPU; see `ClassResiduals.weights`."""
        if not self.class_names:
            raise ConfigError("The classifier has no classes yet: call fit first.")
        if self.classes is not None:
            return self.classes.weights().cpu()
        return self.encoder.encode_texts(self._texts, len(self.templates)).cpu()

    def logit_belief(self, images: Iterable[ImageSource], progress: Progress = silent) -> LogitBelief:
        """Mean and standard deviation of the logits under the belief, ``J Sigma J^T`` linearised at the mean."""
        if not self.fitted:
            raise ConfigError("There is no belief yet: call fit first.")
        pairs = self._each_batch(images, self._linearised, progress)
        empty = torch.empty(0, len(self.class_names))
        if not pairs:
            return LogitBelief(empty, empty)
        mean, variance = (torch.cat(column).cpu() for column in zip(*pairs, strict=True))
        return LogitBelief(mean, variance.clamp_min(0).sqrt())

    def _linearised(self, activations: Activations) -> tuple[Tensor, Tensor]:
        """Mean and variance (N, C) of the logits."""
        if self.classes is None or self.classes.belief is None:  # not among the parameters, or not their turn yet
            return self._linearised_low_rank(activations)
        with torch.no_grad():
            f = _precise(self.encoder.encode_images(activations))
            mean, variance = self.classes.logits(f), self.classes.variance(f)
        if self.filter is None:
            return mean, variance
        return mean, variance + self._linearised_low_rank(activations)[1]  # learned one after the other: independent

    def _linearised_low_rank(self, activations: Activations) -> tuple[Tensor, Tensor]:
        assert self.filter is not None
        C, scale = len(self.class_names), self.backbone.logit_scale
        means, variances = [], []
        for i in range(len(activations[0])):  # image by image: C rows of n derivatives at a time
            jacobian = SimilarityJacobian(
                self.encoder, tuple(t[i : i + 1] for t in activations), self._texts, len(self.templates)
            )
            rows = jacobian.rows(torch.eye(C).to(jacobian.S).unsqueeze(0))
            means.append(scale * jacobian.S)
            variances.append(scale**2 * self.filter.belief.variance(rows).unsqueeze(0))
        return torch.cat(means), torch.cat(variances)


def _precise(embeddings: Tensor) -> Tensor:
    """Embeddings in float32 at least, as class residuals are learned."""
    return embeddings.to(unit_dtype(embeddings.dtype))


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

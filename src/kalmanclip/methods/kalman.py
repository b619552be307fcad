"""The method: a Kalman filter over low-rank parameters of both towers of a frozen CLIP, or over class residuals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kalmanclip.data import FewShotTask, LabelledImages
from kalmanclip.data.images import ImageSource, cache_decoded, image_identity
from kalmanclip.encoders import Activations, Backbone
from kalmanclip.encoders.cache import ActivationStore, ActivationSubset
from kalmanclip.errors import ConfigError, DataError, NumericalError
from kalmanclip.filtering import KalmanFilter, ObservationNoise, Ranks, Step, make_belief
from kalmanclip.methods.base import Progress, silent
from kalmanclip.methods.classes import Fold, held_out_parts
from kalmanclip.methods.classifier import KalmanClassifier
from kalmanclip.methods.features import RandomCrop, activation_store, encoded, labels_of
from kalmanclip.methods.kalman_config import KalmanConfig
from kalmanclip.methods.predictive import precise
from kalmanclip.methods.shared import SharedStepper, require_same, require_shareable, shared_activations, shared_rows
from kalmanclip.methods.stepping import Stepper
from kalmanclip.methods.training import pass_order
from kalmanclip.observation import make_likelihood, observe
from kalmanclip.prediction.unknown import KnownImages


class Kalman(KalmanClassifier):
    """How the classifier learns; what it is, and what it says, is `KalmanClassifier`.

    Several processes can learn together: each is given the same images and options, and ``ranks``. They share the
    encoding of the images, the Jacobian of each batch and the belief; afterwards all have the same classifier.

    Args:
        backbone: the frozen CLIP.
        config: the options.
        ranks: the processes that learn together; None: this one alone.
    """

    def __init__(self, backbone: Backbone, config: KalmanConfig | None = None, ranks: Ranks | None = None) -> None:
        super().__init__(backbone, config)
        self.ranks = ranks if ranks is not None and ranks.size > 1 else None

    def fit(
        self,
        task: FewShotTask,
        progress: Progress = silent,
        after_epoch: Callable[[int], None] | None = None,
    ) -> list[Step]:
        """Learns the training images, starting from the prior; see `update`."""
        # first: an unreadable image must not cost what was there before
        material = self._read(task.train, progress, "low_rank" in self.config.parameters)
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
        """Goes on learning.

        Low-rank parameters are filtered: the current posterior is the prior of what comes now. Class residuals are
        learned anew from the prior, from these images and from what stands for those before. Where both are learned,
        the low-rank parameters stay as they are: what stands for the images before lies in embeddings that they made.

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
        if self.classes is not None and self.classes.belief is not None:
            _ = self.classes.recollection  # an old adapter that cannot learn on says so before anything changes
        first = self.classes is None or self.classes.belief is None
        material = self._read(images, progress, "low_rank" in self.config.parameters and first)
        templates = self.templates if templates is None else tuple(templates)
        if (images.class_names, templates) != (self.class_names, self.templates):
            self.set_classes(images.class_names, templates)
        return self._learn(material, images, epochs, progress, after_epoch)

    def _read(self, images: LabelledImages, progress: Progress, filtering: bool) -> ActivationStore | Tensor:
        """What learning begins with: activations for the filter, or at once the views for the class residuals."""
        if not len(images):
            raise DataError("There are no images to learn from.")
        if self.ranks is not None:
            require_shareable(self.config)
            names = [image_identity(source) for source in images.sources]
            require_same(self.ranks, self.config, self.backbone.hash, images.class_names, images.labels, names)
        if not filtering:
            return self._views(images.sources, progress)
        if self.ranks is not None:
            return shared_activations(self.encoder, images.sources, progress, self.ranks)
        return activation_store(self.encoder, images.sources, progress)

    def _learn(
        self,
        material: ActivationStore | Tensor,
        images: LabelledImages,
        epochs: int,
        progress: Progress,
        after_epoch: Callable[[int], None] | None,
    ) -> list[Step]:
        records: list[Step] = []
        views, folds = material, None
        if isinstance(material, ActivationStore):
            records = self._filter(material, images.labels, epochs, progress, after_epoch)
            if self.classes is not None:
                views = self._views(images.sources, progress)
                folds = self._refitted(material, images, epochs, progress)
        if self.classes is not None:
            assert isinstance(views, Tensor)
            labels = labels_of(images, views.device)
            whole = self.classes.belief is None or self.known is not None  # or old classes would look unknown
            self.classes.learn(views, labels, lambda done, total: progress("learning the classes", done, total), folds)
            if whole and "low_rank" not in self.config.parameters:
                self._remember(views[:, 0], labels, images.sources)
        self.calibration = None  # it was about a classifier that had learned less
        if after_epoch is not None:
            after_epoch(epochs if records else 1)
        return records

    def _refitted(self, store: ActivationStore, images: LabelledImages, epochs: int, progress: Progress) -> list[Fold]:
        """Parts of the images with encoders that have not seen them: the filter runs once more for each part."""
        folds: list[Fold] = []
        labels = labels_of(images, self.backbone.device)
        for kept, held in held_out_parts(labels, self.config.classes.folds):
            other = Kalman(self.backbone, self.config, self.ranks)
            other.set_classes(self.class_names, self.templates)
            known = [images.labels[i] for i in kept.tolist()]
            other._filter(store.subset(kept), known, epochs, progress, None)
            views = other._views(images.sources, progress)
            assert other.classes is not None
            assert other.classes.T is not None
            folds.append(Fold(views[kept], labels[kept], views[held], labels[held], other.classes.T))
        return folds

    def _remember(self, f: Tensor, labels: Tensor, sources: Sequence[ImageSource]) -> None:
        """Adds training images with features (N, d) to those that are known."""
        assert self.classes is not None
        assert self.classes.T is not None
        names = [image_identity(source) for source in sources]
        if self.known is None:
            self.known = KnownImages.of(f, labels, self.classes.T, names)
        else:
            self.known = self.known.with_more(f, labels, names)

    def _views(self, sources: Sequence[ImageSource], progress: Progress) -> Tensor:
        """Embeddings (N, 1 + V, d) of the centre crop and V random crops of each training image."""
        if self.ranks is None:
            return self._own_views(sources, progress)

        def encode(part: range) -> tuple[Tensor]:
            return (self._own_views([sources[i] for i in part], progress),)

        return shared_rows(self.ranks, len(sources), encode, self.backbone.device)[0]

    @torch.no_grad()
    def _own_views(self, sources: Sequence[ImageSource], progress: Progress) -> Tensor:
        options, image = self.config.classes, self.encoder.image
        crops = [RandomCrop(self.backbone, options.crop_scale, self.config.seed, v) for v in range(options.views)]
        pictures = cache_decoded(sources, crops[0].min_side) if crops else sources
        columns: list[Tensor] = []
        total = len(sources) * (1 + len(crops))
        for crop in (None, *crops):
            rows: list[Tensor] = []
            shown = pictures if crop else sources  # centre crops as everybody decodes them: one cache serves all
            for batch in encoded(self.backbone, shown, image.product, image.prefix, crop):
                rows.append(precise(self.encoder.encode_images(batch)))
                progress("reading images", len(columns) * len(sources) + sum(map(len, rows)), total)
            columns.append(torch.cat(rows))
        return torch.stack(columns, dim=1)

    def _filter(
        self,
        store: ActivationStore | ActivationSubset,
        image_labels: list[int],
        epochs: int,
        progress: Progress,
        after_epoch: Callable[[int], None] | None,
    ) -> list[Step]:
        """The passes of the filter; after the last, the caller tells ``after_epoch``."""
        labels = torch.tensor(image_labels)  # on the CPU: which texts a batch needs is decided there
        steps = epochs * math.ceil(len(labels) / self.config.batch_size)
        records: list[Step] = []
        take: Stepper | None = None
        for epoch in range(epochs):
            take = self._pass(store, labels, records, steps, take, progress)
            if all(r.skipped for r in records):  # before anybody saves a model that has learned nothing
                raise NumericalError(
                    f"All {len(records)} steps were skipped; the first because {records[0].reason}. "
                    "Try a smaller prior_std, or another observation."
                )
            self._tell_classes()  # the pass has moved the texts
            if after_epoch is not None and epoch + 1 < epochs:
                after_epoch(epoch + 1)
        return records

    def _pass(
        self,
        store: ActivationStore | ActivationSubset,
        labels: Tensor,
        records: list[Step],
        steps: int,
        take: Stepper | None,
        progress: Progress,
    ) -> Stepper | None:
        """One pass over the images; adds to ``records``, and returns what takes the steps of the next one, if known."""
        try:
            for batch in self._order(len(labels)).split(self.config.batch_size):
                shown = store[self._share(batch)], labels[batch]
                if self.filter is None:
                    self.filter = self._prior(*shown)
                take = take or self._stepper(self.filter)
                records.append(take(*shown))
                self.history.append(records[-1])
                progress("filtering", len(records), steps)
        except BaseException:
            if isinstance(take, SharedStepper):
                self.filter = None  # a part of a belief is none, and the others' parts may be out of reach
            raise
        if not isinstance(take, SharedStepper):
            return take
        take.close()  # between passes the belief is whole: to be saved, or to predict with
        return None

    def _order(self, count: int) -> Tensor:
        """A fresh order for each pass, fixed by the seed and by how far the filter has come (resuming repeats it)."""
        taken = 0 if self.filter is None else self.filter.steps
        return pass_order(count, self.config.seed, taken)

    def _share(self, batch: Tensor) -> Tensor:
        """This process's share of a batch (B,), or of its labels."""
        return batch if self.ranks is None else batch[self.ranks.own_slice(self.ranks.shares(len(batch)))]

    def _stepper(self, kalman: KalmanFilter) -> Stepper:
        likelihood = make_likelihood(self.config.observation, **self.config.observation_options)
        if self.ranks is not None:
            return SharedStepper(self.encoder, kalman, likelihood, self._texts, len(self.templates), self.ranks)
        return Stepper(self.encoder, kalman, likelihood, self._texts, len(self.templates))

    def _prior(self, images: Activations, labels: Tensor) -> KalmanFilter:
        """The filter before it has seen anything: ``Sigma_0`` from ``prior_std`` and the first batch's Jacobian."""
        variance = self.config.prior_variance
        if variance is None:
            spread = self._spread(images, labels)
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
        return self.begin(variance)

    def _spread(self, images: Activations, labels: Tensor) -> float:
        """Mean squared length of a row of the similarities' Jacobian, ``mean diag(H H^T)``, in the first batch."""
        likelihood, own = make_likelihood("cosine"), self._share(labels)
        squares = self.encoder.theta.new_zeros(())
        if len(own):
            seen = observe(self.encoder, likelihood, images, own, self._texts, len(self.templates))
            squares = seen.H.square().sum(dim=1).sum()
        total = squares if self.ranks is None else self.ranks.all_reduce(squares)
        return float(total / len(labels))

    def begin(self, variance: float) -> KalmanFilter:
        """The filter before it has seen anything, with that variance of each parameter."""
        self.prior_variance = variance
        options: dict[str, dict[str, Any]] = {
            "diagonal": {"update": "precision"},
            "block": {"groups": self.encoder.groups},
        }
        chosen = options.get(self.config.belief, {}) | self.config.belief_options
        belief = make_belief(self.config.belief, self.encoder.theta, variance, **chosen)
        return KalmanFilter(belief, ObservationNoise(self.config.noise), self.config.filter)

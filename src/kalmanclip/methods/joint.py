"""Low-rank parameters first, then class residuals on what the adapted towers make of the images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kalmanclip.data import LabelledImages
from kalmanclip.encoders import Activations, DualEncoder
from kalmanclip.encoders.features import Progress
from kalmanclip.errors import ConfigError
from kalmanclip.filtering import Step
from kalmanclip.methods.base import Needs, labels_of
from kalmanclip.methods.classifier import AfterEpoch, Classifier, State
from kalmanclip.methods.distributed import shared_crop_features
from kalmanclip.methods.kalman import Kalman, KalmanConfig, Pick
from kalmanclip.methods.residuals import ClassResidualsConfig, Fold, HeldOut, ResidualBelief, held_out_parts
from kalmanclip.prediction import LogitGaussian


@dataclass(frozen=True)
class JointConfig:
    """Options of both parts.

    Attributes:
        kalman: of the low-rank parameters.
        residuals: of the class residuals; the seeds must be the same.
    """

    kalman: KalmanConfig = field(default_factory=KalmanConfig)
    residuals: ClassResidualsConfig = field(default_factory=ClassResidualsConfig)

    def __post_init__(self) -> None:
        for name, wanted in (("kalman", KalmanConfig), ("residuals", ClassResidualsConfig)):
            if not isinstance(getattr(self, name), wanted):
                raise ConfigError(f"{name} must be a {wanted.__name__}, not {getattr(self, name)!r}.")
        if self.kalman.seed != self.residuals.seed:
            raise ConfigError(f"The seeds must be the same, not {self.kalman.seed} and {self.residuals.seed}.")

    @property
    def seed(self) -> int:
        """Of everything random."""
        return self.kalman.seed

    @property
    def passes(self) -> int:
        """Passes over the images."""
        return self.kalman.passes


class Joint(Classifier):
    """The filter of `Kalman`, then residuals as those of `ClassResiduals` on the embeddings that it ends with.

    In `update` the low-rank parameters stay as they are once there are residuals: the statistics of the images before
    lie in embeddings that those parameters made.

    Attributes:
        kalman: the low-rank parameters.
        residuals: the belief about the residuals.
    """

    Config = JointConfig
    config: JointConfig

    def _make_encoder(self) -> DualEncoder:
        self.kalman = Kalman(self.backbone, self.config.kalman, self.ranks)
        return self.kalman.encoder

    def _reset(self) -> None:
        super()._reset()
        self.history = self.kalman.history
        self.residuals = ResidualBelief(self.config.residuals, self.backbone.logit_scale)

    @property
    def diagnostics(self) -> dict[str, Any]:
        """Those of both parts."""
        return self.kalman.diagnostics | self.residuals.diagnostics

    @property
    def needs(self) -> Needs:
        """What the filter needs."""
        return self.kalman.needs

    @property
    def fitted(self) -> bool:
        """Whether any image was learned from."""
        return self.kalman.fitted or self.residuals.belief is not None

    def _read(self, images: LabelledImages, progress: Progress, from_prior: bool) -> Pick | Tensor:
        if from_prior or self.residuals.belief is None:
            return self.kalman._read(images, progress, from_prior)
        return shared_crop_features(self.encoder, images.sources, self.config.residuals, progress, self.ranks)

    def _frozen_features(self, material: Pick | Tensor, images: LabelledImages, progress: Progress) -> Tensor:
        if isinstance(material, Tensor):  # as the adapted towers see them
            return super()._frozen_features(material, images, progress)
        return self.kalman._frozen_features(material, images, progress)

    def _learn(
        self,
        material: Pick | Tensor,
        images: LabelledImages,
        epochs: int,
        progress: Progress,
        after_epoch: AfterEpoch | None,
    ) -> list[Step]:
        steps: list[Step] = []
        folds = None
        if not isinstance(material, Tensor):

            def after(done: int) -> None:
                self._set_texts()
                if after_epoch is not None:
                    after_epoch(done)

            steps = self.kalman.run_filter(material, images.labels, epochs, progress, after)
            self._set_texts()
            crops = shared_crop_features(self.encoder, images.sources, self.config.residuals, progress, self.ranks)
            folds = self._refitted_folds(material, images, epochs, progress)
        else:
            crops = material
        labels = labels_of(images, crops.device)
        self.residuals.learn(crops, labels, lambda done, total: progress("learning the classes", done, total), folds)
        return steps

    def _refitted_folds(self, pick: Pick, images: LabelledImages, epochs: int, progress: Progress) -> list[Fold]:
        """Return parts of the images with towers that have not seen them: the filter runs once more for each part."""
        labels, options = labels_of(images, self.backbone.device), self.config.residuals

        def refit(kept: Tensor, held: Tensor) -> Fold:
            other = Kalman(self.backbone, self.config.kalman, self.ranks)
            other.set_classes(self.class_names, self.templates)
            other.run_filter(lambda i, number: pick(kept[i], number), labels[kept].tolist(), epochs, progress)
            crops = shared_crop_features(other.encoder, images.sources, options, progress, self.ranks)
            return Fold(crops[kept], labels[kept], crops[held], labels[held], other.text_weights())

        return [refit(kept, held) for kept, held in held_out_parts(labels, options.folds)]

    def _held_out(self) -> HeldOut | None:
        return self.residuals.held_out

    def _classes_changed(self, before: list[str]) -> None:
        k = self.kalman
        k.class_names, k.templates, k.texts = self.class_names, self.templates, self.texts
        self._set_texts()

    def _set_texts(self) -> None:
        """Give the residuals the texts as the towers read them now."""
        self.residuals.set_classes(self.class_names, self.text_weights())

    def _weights(self) -> Tensor:
        return self.residuals.weights()

    def _scorer(self) -> Callable[[Activations], Tensor]:
        return lambda activations: self.residuals.logits(self.encoder.encode_images(activations))

    def linearized(self, scaled: bool = True) -> Callable[[Activations], LogitGaussian]:
        """See `Classifier.linearized`."""
        residuals, logit_scale = self.residuals, self.backbone.logit_scale
        if residuals.belief is None:
            return self.kalman.linearized(scaled)
        scale = residuals.covariance_scale if scaled else 1.0
        tangents = self.kalman.tangents(scaled)
        tangents.add_residuals(float(residuals.belief.gain), residuals.residuals())

        def apply(activations: Activations) -> LogitGaussian:
            f, moved = tangents(activations)
            # given the low-rank parameters, which the residuals were learned after, they are independent of them
            return LogitGaussian(residuals.logits(f), scale * residuals.variance(f), logit_scale * moved)

        return apply

    def sampled(self, samples: int) -> Callable[[Activations], Tensor]:
        """See `Classifier.sampled`."""
        if self.residuals.belief is None:
            return self.kalman.sampled(samples)
        image, text = self.kalman.sampled_towers(samples)
        generator = torch.Generator().manual_seed(self.config.seed % 2**63)
        return self.kalman.score_draws(image, list(self.residuals.sampled(text, generator)))

    def _scale_covariance(self, factor: float) -> None:
        self.kalman.covariance_scale *= factor
        self.residuals.covariance_scale *= factor

    def state_dict(self) -> State:
        """See `Classifier.state_dict`."""
        tensors, values = super().state_dict()
        low_rank = self.kalman.state_dict()
        residuals = {f"residuals.{name}": t for name, t in self.residuals.state_dict().items()}
        return State(tensors | low_rank.tensors | residuals, values | low_rank.values)

    def _load(self, state: State, class_names: Sequence[str]) -> None:
        self.kalman._load(state, class_names)
        residuals = state.part("residuals")
        if residuals:  # a fit may have stopped between the two
            self.residuals.load_state_dict(residuals, class_names)

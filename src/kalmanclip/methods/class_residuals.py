"""Class residuals: softmax regression on frozen embeddings with a Gaussian belief, by iterated Kalman updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kalmanclip.data import LabelledImages
from kalmanclip.data.images import image_identity
from kalmanclip.encoders import Activations, DualEncoder
from kalmanclip.encoders.features import Progress
from kalmanclip.filtering import Step
from kalmanclip.methods.base import labels_of
from kalmanclip.methods.classifier import AfterEpoch, Classifier, State, check_rows
from kalmanclip.methods.distributed import shared_crop_features
from kalmanclip.methods.residuals import ClassResidualsConfig, ResidualBelief
from kalmanclip.prediction import LogitGaussian, OODDetector


class ClassResiduals(Classifier):
    """Logits ``(gain f T^T + f D^T) / tau`` with a belief about ``D``; see `kalmanclip.methods.residuals`.

    `update` learns anew from the prior: from the new images and from pseudo-images that stand for those before.

    Attributes:
        residuals: the belief.
    """

    Config = ClassResidualsConfig
    config: ClassResidualsConfig

    def _make_encoder(self) -> DualEncoder:
        return DualEncoder(self.backbone)

    def _reset(self) -> None:
        super()._reset()
        self.residuals = ResidualBelief(self.config, self.backbone.logit_scale)

    @property
    def diagnostics(self) -> dict[str, Any]:
        """The prior, how it was chosen, and the share of the text; see `ResidualBelief.diagnostics`."""
        return self.residuals.diagnostics

    @property
    def fitted(self) -> bool:
        """Whether any image was learned from."""
        return self.residuals.belief is not None

    def _read(self, images: LabelledImages, progress: Progress, from_prior: bool) -> Tensor:
        return shared_crop_features(self.encoder, images.sources, self.config, progress, self.ranks)

    def _learn(
        self, material: Tensor, images: LabelledImages, epochs: int, progress: Progress, after_epoch: AfterEpoch | None
    ) -> list[Step]:
        labels = labels_of(images, material.device)
        first = not self.fitted
        self.residuals.learn(material, labels, lambda done, total: progress("learning the classes", done, total))
        if first or self.ood is not None:  # or old classes would look out-of-distribution
            f, names = material[:, 0], [image_identity(source) for source in images.sources]
            if self.ood is None:
                self.ood = OODDetector.of(f, labels, self.residuals.T, names)
            else:
                self.ood = self.ood.with_more(f, labels, names)
        return []

    def _classes_changed(self, before: list[str]) -> None:
        T = self.text_weights()
        self.residuals.set_classes(self.class_names, T)
        if self.ood is not None:
            row = {name: i for i, name in enumerate(before)}
            self.ood = self.ood.select([row.get(name) for name in self.class_names], T)

    def _weights(self) -> Tensor:
        return self.residuals.weights()

    def _scorer(self) -> Callable[[Activations], Tensor]:
        return lambda activations: self.residuals.logits(self.encoder.encode_images(activations))

    def linearized(self, scaled: bool = True) -> Callable[[Activations], LogitGaussian]:
        """See `Classifier.linearized`; here it is exact."""
        residuals, scale = self.residuals, self.residuals.covariance_scale if scaled else 1.0

        def apply(activations: Activations) -> LogitGaussian:
            f = self.encoder.encode_images(activations)
            return LogitGaussian(residuals.logits(f), scale * residuals.variance(f))

        return apply

    def sampled(self, samples: int) -> Callable[[Activations], Tensor]:
        """See `Classifier.sampled`."""
        generator = torch.Generator().manual_seed(self.config.seed % 2**63)
        weights = torch.stack(list(self.residuals.sampled([self.residuals.T] * samples, generator)))
        scale = self.backbone.logit_scale
        return lambda activations: scale * self.encoder.encode_images(activations) @ weights.mT

    def _scale_covariance(self, factor: float) -> None:
        self.residuals.covariance_scale *= factor

    def state_dict(self) -> State:
        """See `Classifier.state_dict`."""
        tensors, values = super().state_dict()
        tensors |= {f"residuals.{name}": t for name, t in self.residuals.state_dict().items()}
        if self.ood is not None:
            tensors |= {"ood.features": self.ood.features.half(), "ood.labels": self.ood.labels}
            values["training_images"] = list(self.ood.names)
        return State(tensors, values)

    def _load(self, state: State, class_names: Sequence[str]) -> None:
        self.residuals.load_state_dict(state.part("residuals"), class_names)

    def load_state_dict(self, state: State, class_names: Sequence[str], templates: Sequence[str]) -> None:
        """See `Classifier.load_state_dict`."""
        super().load_state_dict(state, class_names, templates)
        ood, T = state.part("ood"), self.residuals.T
        if ood:
            check_rows(ood, "features", len(class_names))
            names = state.values.get("training_images") or [""] * len(ood["labels"])
            self.ood = OODDetector.of(ood["features"].to(T.dtype), ood["labels"], T, names)

"""Class residuals: softmax regression on frozen embeddings with a Gaussian belief, by iterated Kalman updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kalmanclip.data import LabelledImages
from kalmanclip.data.labelled import name_key
from kalmanclip.data.prompts import check_descriptions
from kalmanclip.encoders import Activations, Backbone, DualEncoder
from kalmanclip.encoders.features import Progress, silent
from kalmanclip.errors import ConfigError
from kalmanclip.filtering import Ranks, Step
from kalmanclip.methods.base import labels_of
from kalmanclip.methods.classifier import AfterEpoch, Classifier, State
from kalmanclip.methods.distributed import shared_crop_features
from kalmanclip.methods.residuals import ClassResidualsConfig, HeldOut, ResidualBelief
from kalmanclip.methods.suspects import predict_held_out
from kalmanclip.prediction import JointLogits, LabelCheck, LogitGaussian


class ClassResiduals(Classifier):
    """Logits ``(gain f T^T + f D^T) / tau`` with a belief about ``D``; see `kalmanclip.methods.residuals`.

    `update` learns anew from the prior: from the new images and from pseudo-images that stand for those before.

    Attributes:
        residuals: the belief.
        descriptions: further prompts of single classes, by name; see `describe`.
    """

    Config = ClassResidualsConfig
    config: ClassResidualsConfig
    joint = True
    descriptions: dict[str, tuple[str, ...]]

    def __init__(self, backbone: Backbone, config: Any = None, ranks: Ranks | None = None) -> None:
        self.descriptions = {}
        super().__init__(backbone, config, ranks)

    def describe(self, descriptions: Mapping[str, Sequence[str]]) -> None:
        """Set further prompts of single classes, by name, before anything is learned.

        Each counts as much as a template's prompt in the mean, the prior's centre. Classes that are not described keep
        their templates. Their spread widens the prior where ``description_spread`` says so.
        """
        if self.fitted:
            raise ConfigError("Classes are described before anything is learned: fit again.")
        self.descriptions = check_descriptions(descriptions)

    @torch.no_grad()
    def text_weights(self) -> Tensor:
        """See `Classifier.text_weights`; with descriptions, the mean of all prompts of each class."""
        return self._described(super().text_weights())[0]

    def _described(self, T: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the texts (C, d) with descriptions, and the covariance (d, d) of these around their classes' means."""
        prompts = {name_key(name): texts for name, texts in self.descriptions.items()}
        there = [c for c, name in enumerate(self.class_names) if name_key(name) in prompts]
        if self.descriptions and not there:
            raise ConfigError(
                f"None of the classes is described: there are {', '.join(self.class_names[:5])}, ..., and descriptions "
                f"of {', '.join(list(self.descriptions)[:5])}, ... Write the names alike."
            )
        T, around = len(self.templates) * T, []
        for c in there:
            tokens = self.encoder.tokenize(list(prompts[name_key(self.class_names[c])]))
            own = self.encoder.encode_texts(self.encoder.text.prefix(tokens))
            T[c] += own.sum(dim=0)
            around.append(own - own.mean(dim=0))
        deviations = torch.cat(around) if around else None
        spread = None if deviations is None else deviations.mT @ deviations / len(deviations)
        return torch.nn.functional.normalize(T, dim=-1), spread

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
        self.residuals.learn(material, labels, lambda done, total: progress("learning the classes", done, total))
        return []

    def _held_out(self) -> HeldOut | None:
        return self.residuals.held_out

    def _frozen_features(self, material: Tensor, images: LabelledImages, progress: Progress) -> Tensor:
        return material[:, 0]  # the centre crops

    def _classes_changed(self, before: list[str]) -> None:
        with torch.no_grad():
            T, self.residuals.spread = self._described(super().text_weights())
        self.residuals.set_classes(self.class_names, T)

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

    def joint_logits(self, activations: Activations) -> JointLogits:
        """See `Classifier.joint_logits`."""
        return self.residuals.joint_logits(self.encoder.encode_images(activations))

    def sampled(self, samples: int) -> Callable[[Activations], Tensor]:
        """See `Classifier.sampled`."""
        generator = torch.Generator().manual_seed(self.config.seed % 2**63)
        weights = torch.stack(list(self.residuals.sampled([self.residuals.T] * samples, generator)))
        scale = self.backbone.logit_scale
        return lambda activations: scale * self.encoder.encode_images(activations) @ weights.mT

    def check_labels(self, images: LabelledImages, progress: Progress = silent) -> LabelCheck:
        """See `Classifier.check_labels`, and `kalmanclip.methods.suspects` for how."""
        self._require_classes()
        labels = labels_of(images, self.backbone.device)
        crops = self._read(images, progress, from_prior=True)
        prior = ResidualBelief(self.config, self.backbone.logit_scale)
        prior.set_classes(self.class_names, self.text_weights())
        prior.spread = self.residuals.spread
        found = predict_held_out(prior, crops, labels, lambda done, all: progress("checking the labels", done, all))[-1]
        return LabelCheck.of(self.class_names, labels, found.probabilities, found.noise)

    def _scale_covariance(self, factor: float) -> None:
        self.residuals.covariance_scale *= factor

    def state_dict(self) -> State:
        """See `Classifier.state_dict`."""
        tensors, values = super().state_dict()
        tensors |= {f"residuals.{name}": t for name, t in self.residuals.state_dict().items()}
        if self.descriptions:
            values["descriptions"] = {name: list(texts) for name, texts in self.descriptions.items()}
        return State(tensors, values)

    def _load(self, state: State, class_names: Sequence[str]) -> None:
        described = state.values.get("descriptions")
        self.descriptions = check_descriptions(described) if described else {}
        self.residuals.load_state_dict(state.part("residuals"), class_names)

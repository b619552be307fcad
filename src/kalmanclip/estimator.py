"""The front door in Python: scikit-learn's habits over the Kalman filter."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image

from kalmanclip.adapter import load_adapter, read_description, save_adapter
from kalmanclip.data import (
    DEFAULT_TEMPLATES,
    FewShotTask,
    LabelledImages,
    from_lists,
    hold_out,
    read_folder,
    read_images,
    sample_shots,
    validate_templates,
)
from kalmanclip.data.images import ImageSource
from kalmanclip.encoders import Backbone, load_backbone
from kalmanclip.errors import ConfigError, DataError
from kalmanclip.export import export_model
from kalmanclip.filtering import Ranks
from kalmanclip.methods import MethodConfig, Progress, make_classifier, replaced, silent
from kalmanclip.methods import preset as find_preset
from kalmanclip.methods.fusion import fuse_methods
from kalmanclip.prediction import FALSE_ALARMS, SAMPLES, LogitGaussian, Prediction

Images: TypeAlias = str | os.PathLike[str] | LabelledImages | Iterable[ImageSource]
"""A folder, labelled images, or a list of paths, PIL images or arrays."""


class KalmanCLIP:
    """A CLIP classifier fine-tuned from a few images per class by Kalman updates of a Gaussian belief.

    By default softmax regression over frozen embeddings, with a Gaussian belief about class residuals, by iterated
    Kalman updates. The presets 'head', 'paper' and 'paper-literal' filter low-rank parameters batch by batch.

    >>> clf = KalmanCLIP("tiny").fit("photos/")            # photos/cat/*.jpg, photos/dog/*.jpg
    >>> clf.predict(["new.jpg"])
    >>> clf.partial_fit("more_photos/")                    # learns on, without the old images
    >>> clf.save("pets.adapter"); KalmanCLIP.load("pets.adapter")

    Args:
        model: a backbone's name ('tiny', 'ViT-B-16:openai', ...; see `kalmanclip.encoders.backbone`) or a loaded one.
        config: the options; None: those of ``preset``.
        preset: 'default' (also what None means), or another name in `kalmanclip.methods.presets`, such as 'paper'.
        templates: prompt templates with one ``{}`` for the class name; several are averaged.
        device: 'cpu', 'cuda', ...; None takes a GPU when there is one.
        precision: what the frozen towers compute in, 'float32' or 'bfloat16' (half the memory, and faster on a GPU).
            What is learned is float32 in any case. Of a loaded backbone, leave it out.
        ranks: processes that fit together, each with a `KalmanCLIP` of its own; None: this one alone. See
            `kalmanclip.filtering.accelerated.distributed.join_ranks`.
        **options: single options of the preset's method, e.g. ``seed=1``.
    """

    def __init__(
        self,
        model: str | Backbone = "tiny",
        config: MethodConfig | None = None,
        *,
        preset: str | None = None,
        templates: Sequence[str] = DEFAULT_TEMPLATES,
        device: str | torch.device | None = None,
        precision: str | None = None,
        ranks: Ranks | None = None,
        **options: Any,
    ) -> None:
        if config is not None and preset is not None:
            raise ConfigError("Give either config or preset: each of them is a full set of options.")
        self.config: MethodConfig = replaced(config or find_preset("default" if preset is None else preset), **options)
        self.templates = validate_templates(templates)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        if not isinstance(model, Backbone):
            model = load_backbone(model, device, "float32" if precision is None else precision)
        elif precision not in (None, model.precision):
            raise ConfigError(f"The backbone is loaded already, in {model.precision}: leave precision out.")
        self.method = make_classifier(model, self.config, ranks)
        self.notes: dict[str, Any] = {}

    @property
    def classes_(self) -> list[str]:
        """The class names, in the order of the columns of `predict_proba`."""
        return self.method.class_names

    @property
    def backbone(self) -> Backbone:
        """The frozen CLIP."""
        return self.method.backbone

    def set_classes(self, class_names: Sequence[str]) -> KalmanCLIP:
        """Names the classes without learning. Before `fit` this is the zero-shot classifier."""
        self.method.set_classes(class_names, self.templates)
        return self

    def fit(
        self,
        images: Images,
        labels: Iterable[Any] | None = None,
        class_names: Sequence[str] | None = None,
        *,
        shots: int | None = None,
        calibrate: int | None = None,
        progress: Progress = silent,
        after_epoch: Callable[[int], None] | None = None,
    ) -> KalmanCLIP:
        """Learns from labelled images, from scratch.

        Args:
            images: a folder of class folders, `LabelledImages`, or a list of paths, PIL images or arrays.
            labels: one per image, names or numbers, where ``images`` is a list.
            class_names: what numeric labels mean.
            shots: use only so many images of each class, drawn with the seed.
            calibrate: learn from all but so many images of each class, and calibrate `predict_sets` on those.
            progress: called as ``progress(stage, done, total)``.
            after_epoch: called after each pass with the number of finished passes; saving there makes a fit resumable.
        """
        train, held = _labelled(images, labels, class_names), None
        if calibrate is not None:
            train, held = hold_out(train, calibrate, self.config.seed)
        train = sample_shots(train, shots, self.config.seed)
        self.method.fit(FewShotTask(train, templates=self.templates, seed=self.config.seed), progress, after_epoch)
        if held is not None:
            self.method.calibrate(held, progress=progress)
        return self

    def calibrate(
        self, images: Images, labels: Iterable[Any] | None = None, *, kind: str = "lac", progress: Progress = silent
    ) -> KalmanCLIP:
        """Calibrates `predict_sets` on images that were not learned from; learning on takes the calibration away.

        Args:
            images: as in `fit`, of the known classes.
            labels: as in `fit`.
            kind: of the nonconformity score, one of `kalmanclip.prediction.conformal.KINDS`.
            progress: called as ``progress(stage, done, total)``.
        """
        self.method.calibrate(_labelled(images, labels, self.classes_), kind, progress)
        return self

    def partial_fit(
        self,
        images: Images,
        labels: Iterable[Any] | None = None,
        class_names: Sequence[str] | None = None,
        *,
        epochs: int = 1,
        progress: Progress = silent,
        after_epoch: Callable[[int], None] | None = None,
    ) -> KalmanCLIP:
        """Learns on from more images; those learned before are not needed.

        Low-rank parameters are filtered on: their posterior so far is the prior now; under class residuals they stay as
        they are. Class residuals (the default) are
        fitted again from the prior, over the new images and over pseudo-images drawn from the statistics of the
        old ones; see `kalmanclip.methods.statistics`. Classes not seen before are added; one class alone is enough.
        Without `fit` before it, it starts from the prior.
        """
        if isinstance(images, LabelledImages):  # its numbers count in its own names
            labels, images = [images.class_names[label] for label in images.labels], images.sources
        new = _labelled(images, labels, class_names, known=self.classes_)
        self.method.update(new, epochs, progress, after_epoch, self.templates)
        return self

    def predict_proba(self, images: Images, *, progress: Progress = silent) -> np.ndarray:
        """Class probabilities (N, C) at the mean of the belief: those of an exported classifier.

        `predict_distribution` averages over the belief, which changes them little where class residuals were learned.
        """
        return self.method.logits(_sources(images), progress).softmax(dim=1).numpy()

    def predict_distribution(
        self, images: Images, *, how: str = "linearised", samples: int = SAMPLES, progress: Progress = silent
    ) -> Prediction:
        """Labels and probabilities averaged over the belief, with their epistemic and aleatoric parts.

        Args:
            images: as in `predict`.
            how: 'linearised', 'sampled' or 'mean'; see `Classifier.predict`.
            samples: draws.
            progress: called as ``progress(stage, done, total)``.
        """
        if not self.method.fitted:
            raise ConfigError("There is no belief yet: call fit first.")
        return self.method.predict(_sources(images), how=how, samples=samples, progress=progress)

    def predict(self, images: Images, *, progress: Progress = silent) -> np.ndarray:
        """The most probable class name of each image, (N,)."""
        return np.array(self.classes_)[self.predict_proba(images, progress=progress).argmax(axis=1)]

    def predict_sets(self, images: Images, coverage: float = 0.9, *, progress: Progress = silent) -> list[list[str]]:
        """For each image a set of classes, the most probable first, that holds the true one with this probability.

        The promise is for images like those calibrated on; see `kalmanclip.prediction.conformal`.

        Raises:
            ConfigError: nothing was held out to calibrate on, or too little for this coverage.
        """
        probabilities = self.predict_proba(images, progress=progress)
        return self.class_sets(probabilities, coverage)

    def class_sets(self, probabilities: np.ndarray, coverage: float) -> list[list[str]]:
        """The sets of `predict_sets`, of probabilities (N, C) that `predict_proba` gave."""
        calibration = self.method.calibration
        if calibration is None:
            raise ConfigError(
                "There is nothing to make sets by: fit with calibrate (on the command line --calibrate), or call "
                "calibrate with images that were not learned from. Learning on takes a calibration away."
            )
        inside = calibration.sets(probabilities, coverage)
        order = np.argsort(-probabilities, axis=1, kind="stable")
        return [[self.classes_[c] for c in ranks if members[c]] for ranks, members in zip(order, inside, strict=True)]

    def familiarity(self, images: Images, *, progress: Progress = silent) -> np.ndarray:
        """How much images are like what was learned from, (N,); see `kalmanclip.prediction.ood`."""
        score = self.method.predict(_sources(images), how="mean", progress=progress).ood_score
        if score is None:
            raise ConfigError(
                "This classifier cannot tell unknown images: that takes class residuals alone (preset 'default')."
            )
        return -score.numpy()

    def unknown(self, images: Images, false_alarms: float = FALSE_ALARMS, *, progress: Progress = silent) -> np.ndarray:
        """Whether images show nothing that was learned, (N,) of truth values.

        Args:
            images: as in `predict`.
            false_alarms: the share of images of known classes that may be called unknown by mistake.
            progress: called as ``progress(stage, done, total)``.
        """
        scores = self.familiarity(images, progress=progress)
        assert self.method.ood is not None
        return np.asarray(scores < -self.method.ood.threshold(false_alarms).value)

    def predict_logits(self, images: Images, *, progress: Progress = silent) -> LogitGaussian:
        """Mean and standard deviation (N, C) of the logits under the belief."""
        batches = self.method.linearized_batches(_sources(images), scaled=False, progress=progress)
        if not batches:
            empty = torch.empty(0, len(self.classes_))
            return LogitGaussian(empty, empty)
        mean, std = torch.cat([b.mean for b in batches]), torch.cat([b.std for b in batches])
        return LogitGaussian(mean.cpu(), std.square().cpu())

    def score(self, images: Images, labels: Iterable[Any] | None = None, *, progress: Progress = silent) -> float:
        """Top-1 accuracy between 0 and 1 on a folder of class folders, or a list of images with labels."""
        test = _labelled(images, labels, self.classes_)
        logits = self.method.logits(test.sources, progress)
        return float((logits.argmax(dim=1) == torch.tensor(test.labels)).double().mean())

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Writes the whole state (belief, noise, classes, options) to an adapter folder."""
        return save_adapter(Path(folder), self.method, self.notes)

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        model: str | Backbone | None = None,
        *,
        device: str | torch.device | None = None,
        precision: str | None = None,
        ranks: Ranks | None = None,
    ) -> KalmanCLIP:
        """Reads an adapter folder.

        Args:
            folder: what `save` wrote.
            model: the backbone, where it is not to be had by the name in the adapter.
            device: as in the constructor.
            precision: as in the constructor; it need not be that of the fit.
            ranks: as in the constructor; there may be more of them than in the fit, or fewer.
        """
        description = read_description(Path(folder))
        backbone, templates = model or description["backbone"]["name"], description["templates"]
        estimator = cls(backbone, templates=templates, device=device, precision=precision)
        estimator.method, description = load_adapter(Path(folder), estimator.backbone, ranks)
        estimator.config = estimator.method.config
        estimator.notes = description.get("notes", {})
        return estimator

    @classmethod
    def fuse(cls, parts: Sequence[KalmanCLIP]) -> KalmanCLIP:
        """One classifier that knows what several, learned apart, know: no image is needed again.

        Args:
            parts: fitted on the same backbone with the same templates; their classes may differ. See
                `kalmanclip.methods.fusion` for what else must agree.
        """
        method = fuse_methods([part.method for part in parts])
        fused = cls(method.backbone, method.config, templates=method.templates)
        fused.method, fused.notes = method, {"fused": len(parts)}
        return fused

    def merge(self) -> torch.nn.Module:
        """A plain open_clip model with the mean of the low-rank parameters folded into its weights.

        Class residuals are not part of the towers; `class_weights` has them.
        """
        return self.method.merged()

    def class_weights(self) -> torch.Tensor:
        """The classifier (C, d): unit-length image features times its transpose, over tau, are the logits."""
        return self.method.class_weights()

    def export(self, folder: str | os.PathLike[str]) -> Path:
        """Writes the merged model as a folder that open_clip loads by itself (``local-dir:``), and the classifier."""
        model, weights = self.merge(), self.class_weights()
        return export_model(Path(folder), model, self.backbone.name, self.classes_, self.templates, weights)


def _labelled(
    images: Images,
    labels: Iterable[Any] | None,
    class_names: Sequence[str] | None,
    known: Sequence[str] = (),
) -> LabelledImages:
    """Whatever a user may give, as labelled images."""
    if isinstance(images, LabelledImages):
        return images
    if labels is not None:
        if isinstance(images, (str, os.PathLike)):
            raise ConfigError("labels go with a list of images; a folder's labels are its class folders.")
        return from_lists(images, labels, class_names, known)
    if isinstance(images, (str, os.PathLike)):
        return read_folder(images, class_names, known)
    raise ConfigError("A list of images needs labels: give one label per image, or a folder of class folders.")


def _sources(images: Images) -> list[ImageSource]:
    """Whatever a user may give, as a list of images without labels."""
    if isinstance(images, LabelledImages):
        return images.sources
    if isinstance(images, (str, os.PathLike)):
        return list(read_images(images))
    if isinstance(images, Image.Image):
        return [images]
    if isinstance(images, (np.ndarray, torch.Tensor)) and (images.ndim < 3 or _looks_like_one(images.shape)):
        raise DataError(f"An array of shape {tuple(images.shape)} looks like one image: give a list, [image].")
    try:
        return list(images)
    except TypeError as problem:
        raise DataError(f"Images are a path, a folder or a list of images, not {type(images).__name__}.") from problem


def _looks_like_one(shape: Sequence[int]) -> bool:
    """(H, W, channels) or (channels, H, W); a stack of grey images (N, H, W) has no side of 1, 3 or 4."""
    return len(shape) == 3 and (shape[2] in (1, 3, 4) or shape[0] in (1, 3, 4))

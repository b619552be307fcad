"""What the methods with a belief share: classes and prompts, one pass over images, calibration, state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from kalmanclip.config import check_type, check_whole
from kalmanclip.data import FewShotTask, ImageSource, LabelledImages, class_prompts
from kalmanclip.data.images import fingerprints, image_identity
from kalmanclip.data.labelled import name_key
from kalmanclip.encoders import Activations, Backbone, DualEncoder
from kalmanclip.encoders.features import Progress, frozen_activations, image_features, silent
from kalmanclip.errors import ConfigError, DataError
from kalmanclip.filtering import Ranks, Step
from kalmanclip.methods.base import Needs, labels_of
from kalmanclip.methods.distributed import require_same
from kalmanclip.methods.residuals import HeldOut
from kalmanclip.prediction import (
    FALSE_ALARMS,
    SAMPLES,
    Calibration,
    ExpectedAccuracy,
    JointLogits,
    LabelCheck,
    LogitGaussian,
    Neighbors,
    OODDetector,
    Prediction,
    Threshold,
    averaged,
    expected_softmax,
    fit_covariance_scale,
    log_likelihood,
)

_HOW = ("linearised", "sampled", "mean")

AfterEpoch = Callable[[int], None]
"""Called with the number of finished passes after each."""


class TrainingImages(NamedTuple):
    """The images that a classifier has learned from.

    Attributes:
        names: short names, N of them.
        labels: (N,), numbers of the classes.
    """

    names: tuple[str, ...]
    labels: list[int]


class PlainTower(NamedTuple):
    """An ordinary model with class weights: the products of its unit-length features with them are logits times tau.

    Attributes:
        model: all that was learned about its towers is in its weights.
        weights: (C, d), on the CPU.
        untouched: whether nothing was learned about its image tower.
    """

    model: torch.nn.Module
    weights: Tensor
    untouched: bool


class State(NamedTuple):
    """All that a classifier has learned, for a file.

    Attributes:
        tensors: by dotted name.
        values: what JSON can hold.
    """

    tensors: dict[str, Tensor]
    values: dict[str, Any]

    def part(self, name: str) -> dict[str, Tensor]:
        """Return the tensors whose names begin with ``name.``, without that."""
        return {key[len(name) + 1 :]: t for key, t in self.tensors.items() if key.startswith(f"{name}.")}


class Classifier(ABC):
    """A CLIP classifier with a Gaussian belief. Subclasses say what the belief is about and how it is learned.

    Several processes can learn together: each is given the same images and options, and ``ranks``. Afterwards all have
    the same classifier.

    Args:
        backbone: the frozen CLIP.
        config: the options.
        ranks: the processes that learn together; None: this one alone.

    Attributes:
        class_names: in the order of the logits.
        templates: prompt templates.
        texts: activations of all prompts, class by class.
        encoder: the towers; ``encoder.theta`` is the mean of the belief about their low-rank parameters, if any.
        history: one record per step of the filter.
        ood: scores out-of-distribution images, by the frozen features of the training images; None: they are not known.
        calibration: of the sets of classes: by training images that were held out in turn, or by those of `calibrate`.
            None where there is none, and as soon as more is learned.
        fold_weights: of the classifiers that predicted the images held out in turn (K, C, d), where the calibration is
            by them.
        expected_accuracy: by training images that were held out in turn; None where none were, and as soon as more is
            learned.
        fingerprints: of all images learned from, see `kalmanclip.data.images.fingerprints`.
    """

    Config: ClassVar[type[Any]]

    def __init__(self, backbone: Backbone, config: Any = None, ranks: Ranks | None = None) -> None:
        self.backbone = backbone
        self.config = self.Config() if config is None else config
        self.ranks = ranks if ranks is not None and ranks.size > 1 else None
        self.class_names: list[str] = []
        self.templates: tuple[str, ...] = ()
        self.texts: Activations = ()
        self._reset()

    def _reset(self) -> None:
        """Go back to the prior."""
        self.encoder = self._make_encoder()
        self.history: list[Step] = []
        self.ood: OODDetector | None = None
        self.calibration: Calibration | None = None
        self.fold_weights: Tensor | None = None
        self.expected_accuracy: ExpectedAccuracy | None = None
        self.fingerprints: frozenset[int] = frozenset()

    @abstractmethod
    def _make_encoder(self) -> DualEncoder:
        """Return the towers before anything is learned."""

    @property
    def needs(self) -> Needs:
        """What it asks of the backbone."""
        return "features"

    @property
    @abstractmethod
    def fitted(self) -> bool:
        """Whether any image was learned from."""

    @property
    def training_images(self) -> TrainingImages | None:
        """The images that were learned from, where the method keeps their names."""
        return None if self.ood is None else TrainingImages(self.ood.names, self.ood.labels.tolist())

    @property
    def diagnostics(self) -> dict[str, Any]:
        """What the fit has found, by name."""
        return {}

    # learning

    def fit(self, task: FewShotTask, progress: Progress = silent, after_epoch: AfterEpoch | None = None) -> list[Step]:
        """Learn the training images, starting from the prior; see `update`."""
        self._check_images(task.train)
        # first: an unreadable image must not cost what was there before
        material = self._read(task.train, progress, from_prior=True)
        self._reset()
        self.set_classes(task.class_names, task.templates)
        return self._learn_and_tell(material, task.train, self.config.passes, progress, after_epoch)

    def update(
        self,
        images: LabelledImages,
        epochs: int = 1,
        progress: Progress = silent,
        after_epoch: AfterEpoch | None = None,
        templates: Sequence[str] | None = None,
    ) -> list[Step]:
        """Go on learning; what was learned before is the prior.

        Args:
            images: their classes become the method's classes.
            epochs: passes over them, for low-rank parameters; class residuals are updated once.
            progress: told about decoding and filtering.
            after_epoch: called after each pass.
            templates: None keeps those set before.

        Returns:
            The records of the filter's steps.

        Raises:
            NumericalError: every single step of the first pass had to be skipped.
        """
        check_whole(1, epochs=epochs)
        self._check_images(images)
        material = self._read(images, progress, from_prior=False)
        templates = self.templates if templates is None else tuple(templates)
        if (images.class_names, templates) != (self.class_names, self.templates):
            self.set_classes(images.class_names, templates)
        return self._learn_and_tell(material, images, epochs, progress, after_epoch)

    def _learn_and_tell(
        self, material: Any, images: LabelledImages, epochs: int, progress: Progress, after_epoch: AfterEpoch | None
    ) -> list[Step]:
        self.fingerprints |= {found for found in fingerprints(images.sources) if found is not None}
        self._remember(material, images, progress)  # first: whoever saves after a pass saves them, too
        steps = self._learn(material, images, epochs, progress, after_epoch)
        self._use_held_out(self._held_out())
        if after_epoch is not None:
            after_epoch(epochs if steps else 1)
        return steps

    @torch.no_grad()
    def _remember(self, material: Any, images: LabelledImages, progress: Progress) -> None:
        """Keep the frozen features of images that are about to be learned."""
        if self.fitted and self.ood is None:
            return  # old classes would look out-of-distribution
        f = self._frozen_features(material, images, progress)
        labels, names = labels_of(images, f.device), [image_identity(source) for source in images.sources]
        if self.ood is None:
            self.ood = OODDetector.of(f, labels, self._frozen_texts(), names)
        else:
            self.ood = self.ood.with_more(f, labels, names)

    def _frozen_features(self, material: Any, images: LabelledImages, progress: Progress) -> Tensor:
        """Return what the untouched model makes of images (N, d), of which `_read` gave ``material``."""
        return image_features(DualEncoder(self.backbone), images.sources, progress)

    def _check_images(self, images: LabelledImages) -> None:
        """Raise an error where there are no images, or other ranks were given others."""
        if not len(images):
            raise DataError("There are no images to learn from.")
        if self.ranks is not None:
            names = [image_identity(source) for source in images.sources]
            require_same(self.ranks, self.config, self.backbone.hash, images.class_names, images.labels, names)

    @abstractmethod
    def _read(self, images: LabelledImages, progress: Progress, from_prior: bool) -> Any:
        """Return what learning begins with, made of the images."""

    @abstractmethod
    def _learn(
        self, material: Any, images: LabelledImages, epochs: int, progress: Progress, after_epoch: AfterEpoch | None
    ) -> list[Step]:
        """Learn from what `_read` gave; ``after_epoch`` is called after every pass but the last."""

    def _held_out(self) -> HeldOut | None:
        """Return what was predicted for training images that were held out in turn, if the last `_learn` did that."""
        return None

    def _use_held_out(self, held: HeldOut | None) -> None:
        """Calibrate on training images that were held out; what was known before was about another classifier."""
        self.calibration = self.expected_accuracy = self.fold_weights = None
        if held is None:
            return
        right = int((held.logits.argmax(dim=1) == held.labels).sum())
        self.expected_accuracy = ExpectedAccuracy(right, len(held.labels))
        probabilities, labels, folds = (t.cpu().numpy() for t in (held.logits.softmax(dim=1), *held[1:3]))
        self.calibration = Calibration.of(probabilities, labels, folds=folds)
        self.fold_weights = held.weights

    def were_learned(self, sources: Sequence[ImageSource]) -> list[bool]:
        """Return for each image whether one with the same content was learned from.

        A copy with another name is found, one that was saved anew or cropped is not.
        """
        if not self.fingerprints:
            return [False] * len(sources)
        return [found in self.fingerprints for found in fingerprints(sources)]

    # classes

    def set_classes(self, class_names: Sequence[str], templates: Sequence[str]) -> None:
        """Name the classes; they can be added or renamed at any time.

        Low-rank parameters belong to no class. A class residual belongs to its class's name; a class without one has
        its text alone.
        """
        listed = [] if isinstance(class_names, str) or not isinstance(class_names, Iterable) else list(class_names)
        if not listed or not all(isinstance(name, str) for name in listed):
            raise DataError("Give the classes as a list of at least one name.")
        prompts = [prompt for group in class_prompts(templates, class_names) for prompt in group]
        tokens = self.encoder.tokenize(prompts)
        _refuse_equal_prompts(class_names, tokens.unflatten(0, (len(class_names), -1)).flatten(1).tolist())
        changed = (list(class_names), tuple(templates)) != (self.class_names, self.templates)
        if changed:
            self._use_held_out(None)  # it was about other classes
        before, self.class_names, self.templates = self.class_names, list(class_names), tuple(templates)
        self.texts = self.encoder.text.prefix(tokens)
        self._classes_changed(before)
        if self.ood is not None and changed:
            row = {name: i for i, name in enumerate(before)}
            self.ood = self.ood.select([row.get(name) for name in self.class_names], self._frozen_texts())

    def describe(self, descriptions: Mapping[str, Sequence[str]]) -> None:
        """Set further prompts of single classes, by name, before anything is learned."""
        raise ConfigError("Descriptions of classes take class residuals alone (preset 'residuals').")

    def _classes_changed(self, before: list[str]) -> None:  # noqa: B027 (low-rank parameters belong to no class)
        """Follow a change of the classes, whose names were ``before``."""

    @torch.no_grad()
    def text_weights(self) -> Tensor:
        """Return the classes' texts (C, d) as the towers read them now."""
        return self.encoder.encode_texts(self.texts, len(self.templates))

    def _untouched(self) -> DualEncoder:
        """Return the towers without anything learned, for the activations of these."""
        return DualEncoder(self.backbone, self.encoder.config)

    @torch.no_grad()
    def _frozen_texts(self) -> Tensor:
        """Return the classes' texts (C, d) as the untouched model reads them."""
        return self._untouched().encode_texts(self.texts, len(self.templates))

    def class_weights(self) -> Tensor:
        """Return the classifier (C, d), on the CPU: with unit-length features and 1 / tau its products are logits."""
        self._require_classes()
        return self._weights().cpu()

    @abstractmethod
    def _weights(self) -> Tensor:
        """Return the class weights (C, d) at the mean of the belief."""

    def merged(self) -> torch.nn.Module:
        """Return a plain open_clip model with the mean of the low-rank parameters folded into its weights."""
        return self.encoder.merged()

    def plain_towers(self) -> list[PlainTower]:
        """Return models, so many, whose logits add up to those at the mean of the belief."""
        return [PlainTower(self.merged(), self.class_weights(), untouched=not self.encoder.n)]

    # prediction

    @abstractmethod
    def _scorer(self) -> Callable[[Activations], Tensor]:
        """Return what turns activations of N images into logits (N, C) at the mean of the belief."""

    @abstractmethod
    def linearized(self, scaled: bool = True) -> Callable[[Activations], LogitGaussian]:
        """Return what turns activations of N images into ``N(logits at the mean, J Sigma J^T)``.

        ``scaled``: with the covariance scaled by what was fitted for predictions.
        """

    @abstractmethod
    def sampled(self, samples: int) -> Callable[[Activations], Tensor]:
        """Return what turns activations of N images into logits (samples, N, C), each by parameters of their own."""

    joint: ClassVar[bool] = False
    """Whether there are `joint_logits`."""

    def joint_logits(self, activations: Activations) -> JointLogits:
        """Return the belief about the logits of N images together, class by class."""
        raise NotImplementedError

    def _zero_shot_scorer(self) -> Callable[[Activations], Tensor]:
        """Return the scorer of the untouched model with the same prompts."""
        untouched, T, scale = self._untouched(), self._frozen_texts(), self.backbone.logit_scale
        return lambda activations: scale * untouched.encode_images(activations) @ T.mT

    def _predictor(self, how: str, samples: int) -> Callable[[Activations], Prediction]:
        """Return how a batch is predicted; what does not depend on the images is done here, once."""
        if how == "linearised":
            gaussian = self.linearized()

            def apply(activations: Activations) -> Prediction:
                logits = gaussian(activations)
                return Prediction.of(self.class_names, expected_softmax(logits, samples), logits.mean, logits.std)
        else:
            score = self._scorer()
            draw = self.sampled(samples) if how == "sampled" else None

            def apply(activations: Activations) -> Prediction:
                mean = score(activations)
                logits = mean.unsqueeze(0) if draw is None else draw(activations)
                return Prediction.of(self.class_names, averaged(logits), mean, logits.std(dim=0, correction=0))

        return apply

    @torch.no_grad()
    def predict(
        self,
        images: Iterable[ImageSource],
        *,
        how: str = "linearised",
        samples: int = SAMPLES,
        coverage: float | None = None,
        false_alarms: float | None = FALSE_ALARMS,
        neighbors: int = 0,
        zero_shot: bool = False,
        progress: Progress = silent,
    ) -> Prediction:
        """Return all there is to say about images; each is decoded and encoded once.

        Args:
            images: what to predict.
            how: the average over the belief, the integral of the paper's Bayesian prediction. 'linearised': logits are
                drawn from the Gaussian that the belief, linearised at its mean, implies for them. 'sampled': parameters
                are drawn, and every image is scored with each: as many passes through the adapted part. 'mean': the
                mean alone; nothing is averaged, and nothing is epistemic.
            samples: draws.
            coverage: of the sets of classes; None: no sets.
            false_alarms: the share of images like those learned from that may be called out-of-distribution; None:
                none is, and there is no score.
            neighbors: how many of the most similar training images to name, where they are known.
            zero_shot: whether the untouched model is asked, too.
            progress: told about reading.

        Raises:
            ConfigError: nothing was learned yet (the mean alone will do with the texts), an unknown ``how``, too few
                samples, or sets of classes without a calibration.
        """
        if how not in _HOW:
            raise ConfigError(f"how must be one of {', '.join(_HOW)}, not {how!r}.")
        check_whole(2, samples=samples)
        check_whole(0, neighbors=neighbors)
        check_type(coverage, float | None, "coverage")
        check_type(false_alarms, float | None, "false_alarms")
        self._require_classes()
        if how != "mean" and not self.fitted:
            raise ConfigError("There is no belief yet: call fit first.")
        if coverage is not None:
            self._calibrated().check(coverage)  # before images are read: can it be kept?
        threshold = None if false_alarms is None else self.ood_threshold(false_alarms)
        ood = None if false_alarms is None and not neighbors else self.ood
        frozen = None if ood is None else self._untouched()
        predict_batch = self._predictor(how, samples)
        untouched = self._zero_shot_scorer() if zero_shot else None
        batches, by_fold = [], []
        for activations in frozen_activations(self.encoder, list(images), progress):
            batch = predict_batch(activations)
            if coverage is not None and self.fold_weights is not None:
                by_fold.append(self._by_fold(activations))
            if ood is not None and frozen is not None:
                f = frozen.encode_images(activations)
                if false_alarms is not None:
                    batch = replace(batch, ood_score=ood.score(f).cpu())
                if neighbors:
                    batch = replace(batch, neighbors=Neighbors(*(column.cpu() for column in ood.nearest(f, neighbors))))
            batches.append(batch if untouched is None else replace(batch, zero_shot=untouched(activations).cpu()))
        prediction = Prediction.joined(self.class_names, batches)
        if threshold is not None and prediction.ood_score is not None:
            prediction = replace(prediction, is_ood=prediction.ood_score > threshold)
        if coverage is not None:
            folds = torch.cat(by_fold, dim=1) if by_fold else None
            prediction = replace(prediction, sets=self.class_sets(prediction.at_mean, coverage, folds))
        return prediction

    @torch.no_grad()
    def logits(self, images: Iterable[ImageSource], progress: Progress = silent) -> Tensor:
        """Return logits (N, C) at the mean of the belief, on the CPU."""
        self._require_classes()
        score = self._scorer()
        rows = [score(batch) for batch in frozen_activations(self.encoder, list(images), progress)]
        return torch.cat(rows).cpu() if rows else torch.empty(0, len(self.class_names))

    @torch.no_grad()
    def linearized_batches(
        self, images: Iterable[ImageSource], scaled: bool = True, progress: Progress = silent
    ) -> list[LogitGaussian]:
        """Return the Gaussians over the logits of images, batch by batch; see `linearized`."""
        if not self.fitted:
            raise ConfigError("There is no belief yet: call fit first.")
        gaussian = self.linearized(scaled)
        return [gaussian(batch) for batch in frozen_activations(self.encoder, list(images), progress)]

    def ood_threshold(self, false_alarms: float = FALSE_ALARMS) -> float | None:
        """Return the out-of-distribution score above which images are flagged; None where there is none."""
        threshold = self.ood_calibration(false_alarms)
        return None if threshold is None else threshold.value

    def ood_calibration(self, false_alarms: float = FALSE_ALARMS) -> Threshold | None:
        """Return that threshold with the interval of its false alarms; None with fewer than 3 known training images."""
        if self.ood is None or len(self.ood.features) < 3:
            return None
        return self.ood.threshold(false_alarms)

    def check_labels(self, images: LabelledImages, progress: Progress = silent) -> LabelCheck:
        """Return which labels are probably wrong, of images of the classes that are set; learns nothing."""
        raise ConfigError("Labels are checked by class residuals: leave the preset out, or give 'residuals'.")

    # calibration

    def calibrate(self, images: LabelledImages, kind: str = "lac", progress: Progress = silent) -> None:
        """Calibrate on images that were not learned from: sets of classes, and the threshold of the OOD score.

        See `kalmanclip.prediction.conformal` and `kalmanclip.prediction.ood`.
        """
        self._require_held_out(images)
        found = self.predict(images.sources, how="mean", progress=progress)
        self.calibration, self.fold_weights = Calibration.of(found.at_mean.numpy(), images.labels, kind), None
        if self.ood is not None:
            self.ood = replace(self.ood, calibration=found.ood_score)

    def class_sets(self, probabilities: Tensor, coverage: float, by_fold: Tensor | None = None) -> list[list[str]]:
        """Return the sets of classes of probabilities (N, C) at the mean, the most probable class first.

        ``by_fold``: those of the classifiers of the folds (K, N, C), where the calibration is by them.
        """
        if not len(probabilities):
            return []
        folds = None if by_fold is None else by_fold.numpy()
        inside = self._calibrated().sets(probabilities.numpy(), coverage, by_fold=folds)
        order = probabilities.argsort(dim=1, descending=True, stable=True).tolist()
        return [[self.class_names[c] for c in row if members[c]] for row, members in zip(order, inside, strict=True)]

    def _by_fold(self, activations: Activations) -> Tensor:
        """Return probabilities (K, N, C) by the classifiers of the folds, on the CPU."""
        assert self.fold_weights is not None
        f = self.encoder.encode_images(activations)
        return (self.backbone.logit_scale * f @ self.fold_weights.mT).softmax(dim=2).cpu()

    def _calibrated(self) -> Calibration:
        if self.calibration is None:
            raise ConfigError(
                "There is nothing to make sets by: fit the preset 'residuals' or 'joint' with two or more images of a "
                "class, or call calibrate with images that were not learned from (on the command line "
                "fit --calibrate). Learning on takes a calibration away."
            )
        return self.calibration

    def fit_covariance_scale(self, images: LabelledImages, progress: Progress = silent) -> float:
        """Fit how much of the belief's covariance predictions average over, on images that were not learned from.

        Class residuals do this by themselves, on training images that are held out in turn. Low-rank parameters keep
        their typical value unless they are told better here.

        Returns:
            The factor by which the covariance is scaled, relative to before.
        """
        self._require_held_out(images)
        batches = self.linearized_batches(images.sources, progress=progress)
        labels = labels_of(images, self.backbone.device).split([len(logits.mean) for logits in batches])
        known = list(zip(batches, labels, strict=True))
        factor = fit_covariance_scale(lambda s: sum(log_likelihood(b.scaled(s), y) for b, y in known), around=1.0)
        self._scale_covariance(factor)
        return factor

    @abstractmethod
    def _scale_covariance(self, factor: float) -> None:
        """Multiply the scale of the covariance that predictions average over."""

    # state

    def state_dict(self) -> State:
        """Return all that was learned, but for the classes and options."""
        tensors: dict[str, Tensor] = {}
        values: dict[str, Any] = {}
        if self.fingerprints:
            tensors["fingerprints"] = torch.tensor(sorted(self.fingerprints))
        if self.expected_accuracy is not None:
            values["held_out"] = self.expected_accuracy._asdict()
        if self.calibration is not None:
            tensors["conformal.scores"] = torch.from_numpy(self.calibration.scores)
            tensors["conformal.labels"] = torch.from_numpy(self.calibration.labels)
            values["conformal"] = self.calibration.kind
            if self.calibration.folds is not None and self.fold_weights is not None:
                tensors["conformal.folds"] = torch.from_numpy(self.calibration.folds)
                tensors["conformal.weights"] = self.fold_weights
        if self.ood is not None:
            tensors |= {"ood.features": self.ood.features.half(), "ood.labels": self.ood.labels}
            values["training_images"] = list(self.ood.names)
            if self.ood.calibration is not None:
                tensors["ood.calibration"] = self.ood.calibration
        return State(tensors, values)

    def load_state_dict(self, state: State, class_names: Sequence[str], templates: Sequence[str]) -> None:
        """Take over what `state_dict` gave, about these classes."""
        self._load(state, class_names)
        self.set_classes(class_names, templates)
        calibration = state.part("conformal")
        if calibration:
            check_rows(calibration, "scores", len(class_names))
            scores, labels = (calibration[name].cpu().numpy() for name in ("scores", "labels"))
            folds, self.fold_weights = calibration.get("folds"), calibration.get("weights")
            _check_folds(folds, self.fold_weights, len(labels), (len(class_names), self.backbone.width))
            numbers = None if folds is None else folds.cpu().numpy()
            self.calibration = Calibration(scores, labels, state.values.get("conformal", "lac"), numbers)
        if "held_out" in state.values:
            self.expected_accuracy = ExpectedAccuracy(**state.values["held_out"])
        if "fingerprints" in state.tensors:
            self.fingerprints = frozenset(state.tensors["fingerprints"].tolist())
        ood = state.part("ood")
        if ood:
            T = self._frozen_texts()
            check_rows(ood, "features", len(class_names))
            held = ood.get("calibration")
            if held is not None and held.ndim != 1:
                raise ConfigError("its scores of held-out images are not a list")
            names = state.values.get("training_images") or [""] * len(ood["labels"])
            detector = OODDetector.of(ood["features"].to(T.dtype), ood["labels"], T, names)
            self.ood = replace(detector, calibration=held)

    @abstractmethod
    def _load(self, state: State, class_names: Sequence[str]) -> None:
        """Take over the belief, before the classes are named."""

    def _require_classes(self) -> None:
        if not self.class_names:
            raise ConfigError("The classifier has no classes yet: call fit first.")

    def _require_held_out(self, images: LabelledImages) -> None:
        if not self.fitted:
            raise ConfigError("There is nothing to calibrate yet: call fit first.")
        if list(images.class_names) != self.class_names or not len(images):
            raise DataError("Give at least one image, and the classes of the classifier in their order.")


def check_rows(tensors: dict[str, Tensor], name: str, classes: int) -> None:
    """Raise `ConfigError` unless there is a label for each row of a tensor, and all labels are among the classes."""
    rows, labels = tensors.get(name), tensors.get("labels")
    fit = rows is not None and labels is not None and labels.ndim == 1 and rows.shape[:1] == labels.shape
    if not fit or labels is None or not bool(((labels >= 0) & (labels < classes)).all()):
        raise ConfigError(f"its {name} and their labels are incomplete or do not fit its classes")


def _check_folds(folds: Tensor | None, weights: Tensor | None, images: int, shape: tuple[int, ...]) -> None:
    """Raise `ConfigError` unless there is a number of a classifier for each image, and its weights, or neither."""
    fit = folds is None and weights is None
    if folds is not None and weights is not None and weights.ndim == 3:
        fit = weights.shape[1:] == shape and folds.shape == (images,)
        fit = fit and bool(((folds >= 0) & (folds < len(weights))).all())
    if not fit:
        raise ConfigError("what was held out in turn is incomplete or does not fit its classes")


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

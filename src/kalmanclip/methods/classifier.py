"""The classifier that the method learns: its classes, its belief, and what it says about images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kalmanclip.data import LabelledImages, class_prompts
from kalmanclip.data.images import ImageSource
from kalmanclip.data.names import name_key
from kalmanclip.encoders import Activations, Backbone, DualEncoder
from kalmanclip.errors import ConfigError, DataError
from kalmanclip.filtering import KalmanFilter, Step
from kalmanclip.methods.base import Needs, Progress, silent
from kalmanclip.methods.classes import ClassResiduals
from kalmanclip.methods.features import frozen_activations, labels_of
from kalmanclip.methods.kalman_config import KalmanConfig
from kalmanclip.methods.predictive import linearised, precise, sampled
from kalmanclip.prediction import SAMPLES, Averaged, Prediction, averaged, expected_softmax, fit_temper, log_score
from kalmanclip.prediction.conformal import Calibration
from kalmanclip.prediction.prediction import Neighbors
from kalmanclip.prediction.unknown import FALSE_ALARMS, KnownImages

LOW_RANK_TEMPER = {"head": 0.03, "towers": 3e-4}
"""How much of the low-rank parameters' covariance predictions average over, by their placement, unless it is fitted:
chosen on training images outside the shots. Inside the towers next to nothing: a product ``B A`` whose ``A`` no image
has spoken about is far from linear within the belief."""

_HOW = ("linearised", "sampled", "mean")


class LogitBelief(NamedTuple):
    """The Gaussian that the belief over the parameters implies for logits, linearised at the mean.

    Attributes:
        mean: (N, C).
        std: (N, C), the marginal standard deviations.
    """

    mean: Tensor
    std: Tensor


class KalmanClassifier:
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
        known: the training images, to tell unknown ones by; None before the first, and where low-rank parameters are
            learned: they move the embeddings of images that were seen before.
        calibration: of the sets of classes; None until `calibrate`, and again as soon as anything is learned.
        temper: how much of the low-rank parameters' covariance a prediction averages over; ``classes.temper`` is that
            of the class residuals.
    """

    def __init__(self, backbone: Backbone, config: KalmanConfig | None = None) -> None:
        self.backbone = backbone
        self.config = config or KalmanConfig()
        self.class_names: list[str] = []
        self.templates: tuple[str, ...] = ()
        self._texts: Activations = ()
        self._start()

    @property
    def texts(self) -> Activations:
        """Activations of all prompts, class by class."""
        return self._texts

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
        self.temper = LOW_RANK_TEMPER[self.config.low_rank.placement]
        self.known: KnownImages | None = None
        self.calibration: Calibration | None = None

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
        if (list(class_names), tuple(templates)) != (self.class_names, self.templates):
            self.calibration = None  # it was about other classes
        before, self.class_names, self.templates = self.class_names, list(class_names), tuple(templates)
        self._texts = self.encoder.text.prefix(tokens)
        self._tell_classes()
        if self.known is not None and self.classes is not None and self.classes.T is not None:
            row = {name: i for i, name in enumerate(before)}
            self.known = self.known.chosen([row.get(name) for name in self.class_names], self.classes.T)

    @torch.no_grad()
    def _tell_classes(self) -> None:
        """Gives the residuals the texts as the towers read them now."""
        if self.classes is not None:
            T = self.encoder.encode_texts(self._texts, len(self.templates))
            self.classes.set_classes(self.class_names, precise(T))

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

    @torch.no_grad()
    def logits_and_familiarity(
        self, images: Iterable[ImageSource], progress: Progress = silent
    ) -> tuple[Tensor, Tensor]:
        """`logits` (N, C), and how familiar the images are (N,); see `kalmanclip.prediction.unknown`."""
        known, classes = self.known, self.classes
        if known is None or classes is None:
            raise ConfigError(
                "This classifier cannot tell unknown images: that takes class residuals alone (preset 'default') that "
                "were fitted with this version."
            )

        def score(activations: Activations) -> tuple[Tensor, Tensor]:
            f = precise(self.encoder.encode_images(activations))
            return classes.logits(f).cpu(), known.score(f).cpu()

        batches = self._each_batch(images, score, progress)
        if not batches:
            return torch.empty(0, len(self.class_names)), torch.empty(0)
        logits, familiarity = (torch.cat(column) for column in zip(*batches, strict=True))
        return logits, familiarity

    def calibrate(self, images: LabelledImages, kind: str = "lac", progress: Progress = silent) -> None:
        """Calibrates sets of classes on images that were not learned from; see `kalmanclip.prediction.conformal`."""
        if not self.fitted:
            raise ConfigError("There is nothing to calibrate yet: call fit first.")
        if list(images.class_names) != self.class_names or not len(images):
            raise DataError("Give at least one image, and the classes of the classifier in their order.")
        probabilities = self.logits(images.sources, progress).softmax(dim=1).numpy()
        self.calibration = Calibration.of(probabilities, images.labels, kind)

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
            return lambda activations: classes.logits(precise(encoder.encode_images(activations)))
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
        with torch.no_grad():
            batches = self._each_batch(images, linearised(self, temper=False), progress)
        if not batches:
            empty = torch.empty(0, len(self.class_names))
            return LogitBelief(empty, empty)
        return LogitBelief(torch.cat([b.mean for b in batches]).cpu(), torch.cat([b.std for b in batches]).cpu())

    @torch.no_grad()
    def predict(
        self,
        images: Iterable[ImageSource],
        *,
        how: str = "linearised",
        samples: int = SAMPLES,
        coverage: float | None = None,
        false_alarms: float = FALSE_ALARMS,
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
            false_alarms: the share of images like those learned from that may be called out-of-distribution.
            neighbors: how many of the most similar training images to name, where they are known.
            zero_shot: whether the untouched model is asked, too.
            progress: told about reading.

        Raises:
            ConfigError: nothing was learned yet (the mean alone will do with the texts), an unknown ``how``, too few
                samples, or sets of classes without a calibration.
        """
        if how not in _HOW:
            raise ConfigError(f"how must be one of {', '.join(_HOW)}, not {how!r}.")
        if not isinstance(samples, int) or samples < 2:
            raise ConfigError(f"samples must be a whole number, at least 2; not {samples!r}.")
        if not self.class_names:
            raise ConfigError("The classifier has no classes yet: call fit first.")
        if how != "mean" and not self.fitted:
            raise ConfigError("There is no belief yet: call fit first.")
        if coverage is not None:
            self.class_sets(torch.empty(0, len(self.class_names)), coverage)  # before images are read: can it be kept?
        threshold = self.ood_threshold(false_alarms)
        batches = self._each_batch(images, self._everything(how, samples, neighbors, zero_shot), progress)
        prediction = Prediction.joined(self.class_names, batches)
        if threshold is not None and prediction.ood_score is not None:
            prediction = prediction.with_(is_ood=prediction.ood_score > threshold)
        if coverage is not None:
            prediction = prediction.with_(sets=self.class_sets(prediction.at_mean, coverage))
        return prediction

    def _everything(
        self, how: str, samples: int, neighbors: int, zero_shot: bool
    ) -> Callable[[Activations], Prediction]:
        """How a batch is predicted, scored and compared; what does not depend on the images is done here, once."""
        predict, known = self._predictor(how, samples), self.known
        untouched = self._scorer(DualEncoder(self.backbone, self.config.low_rank)) if zero_shot else None

        def apply(activations: Activations) -> Prediction:
            batch = predict(activations)
            if known is not None:
                f = precise(self.encoder.encode_images(activations))
                batch = batch.with_(ood_score=-known.score(f).cpu())
                if neighbors:
                    batch = batch.with_(neighbors=Neighbors(*(column.cpu() for column in known.nearest(f, neighbors))))
            return batch if untouched is None else batch.with_(zero_shot=untouched(activations).cpu())

        return apply

    @property
    def training_images(self) -> tuple[tuple[str, ...], list[int]] | None:
        """Names and class numbers of the images learned from; None where they are not kept."""
        return None if self.known is None else (self.known.sources, self.known.labels.tolist())

    def ood_threshold(self, false_alarms: float = FALSE_ALARMS) -> float | None:
        """The out-of-distribution score above which images are flagged; None where the method cannot say."""
        if self.known is None or len(self.known.features) < 3:
            return None
        return -self.known.threshold(false_alarms).value

    def class_sets(self, probabilities: Tensor, coverage: float) -> list[list[str]]:
        """Return the sets of classes of probabilities (N, C) at the mean, the most probable class first.

        Raises:
            ConfigError: nothing was held out to calibrate on, or too little for this coverage.
        """
        if self.calibration is None:
            raise ConfigError(
                "There is nothing to make sets by: fit with calibrate (on the command line --calibrate), or call "
                "calibrate with images that were not learned from. Learning on takes a calibration away."
            )
        inside = self.calibration.sets(probabilities.numpy(), coverage)
        order = probabilities.argsort(dim=1, descending=True, stable=True).tolist()
        return [[self.class_names[c] for c in row if members[c]] for row, members in zip(order, inside, strict=True)]

    def predict_distribution(
        self,
        images: Iterable[ImageSource],
        how: str = "linearised",
        samples: int = SAMPLES,
        progress: Progress = silent,
    ) -> Prediction:
        """Class probabilities averaged over the belief; see `predict`."""
        if not self.fitted:
            raise ConfigError("There is no belief yet: call fit first.")
        return self.predict(images, how=how, samples=samples, progress=progress)

    def _predictor(self, how: str, samples: int) -> Callable[[Activations], Prediction]:
        """How a batch is predicted; what does not depend on the images is done here, once."""
        if how == "linearised":
            gaussian = linearised(self)

            def by_logits(activations: Activations) -> Prediction:
                logits = gaussian(activations)
                return self._prediction(expected_softmax(logits, samples), logits.mean, logits.std)

            return by_logits
        score = self._scorer(self.encoder)
        draw = sampled(self, samples) if how == "sampled" else None

        def by_passes(activations: Activations) -> Prediction:
            mean = score(activations)
            logits = mean.unsqueeze(0) if draw is None else draw(activations)
            return self._prediction(averaged(logits), mean, logits.std(dim=0, correction=0))

        return by_passes

    def _prediction(self, average: Averaged, mean: Tensor, std: Tensor) -> Prediction:
        return Prediction.of(self.class_names, average, mean, std)

    def fit_temper(self, images: LabelledImages, progress: Progress = silent) -> float:
        """Fits how much of the belief's covariance predictions average over, on images that were not learned from.

        Class residuals do this by themselves, on training images that are held out in turn. Low-rank parameters keep
        their typical value unless they are told better here.

        Args:
            images: validation images of the method's classes.
            progress: told about reading.

        Returns:
            The factor by which the covariance is scaled, relative to before; `temper` and ``classes.temper`` have it.
        """
        if not self.fitted:
            raise ConfigError("There is no belief yet: call fit first.")
        if list(images.class_names) != self.class_names or not len(images):
            raise DataError("Give at least one image, and the classes of the classifier in their order.")
        with torch.no_grad():
            batches = self._each_batch(images.sources, linearised(self), progress)
        labels = labels_of(images, self.backbone.device).split([len(logits.mean) for logits in batches])
        known = list(zip(batches, labels, strict=True))
        factor = fit_temper(lambda t: sum(log_score(b.tempered(t), y) for b, y in known), around=1.0)
        self.temper *= factor
        if self.classes is not None:
            self.classes.temper *= factor
        return factor


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

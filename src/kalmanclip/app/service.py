"""One adapter that several people use at once: it answers, learns, and is saved when somebody says so."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from kalmanclip.adapter import read_description
from kalmanclip.app.images import (
    MAX_PICTURES,
    MAX_PIXELS,
    PREVIEW_SIDE,
    Gallery,
    ReceivedPicture,
    Upload,
    preview,
)
from kalmanclip.data import ImageSource, LabelledImages, class_name_from_folder
from kalmanclip.data.images import LazyImage, image_identity, load_image
from kalmanclip.data.labelled import name_key
from kalmanclip.errors import AdapterError, ConfigError, DataError
from kalmanclip.estimator import KalmanCLIP
from kalmanclip.files import lock_folder
from kalmanclip.metrics import ReliabilityBin, expected_calibration_error, reliability_table
from kalmanclip.prediction import LogitGaussian, Prediction
from kalmanclip.prediction.conformal import images_needed

CHOICES = 5  # classes that are shown, the most probable first
NEIGHBOURS = 6  # training pictures that are shown
RANGE = 0.9  # share of the belief in which a probability stays within its range
COVERAGE = 0.9  # probability with which the set of classes holds the right one
MAX_NAME = 80  # characters of a class name: longer ones do not fit into a prompt
LIKELY = 12  # classes to click on; the others are in a list
COMING = 6  # pictures whose labels will be asked for next that are shown
SIDE = 480  # pixels of the preview of a picture that something is said about
_DRAWS = 512


@dataclass(frozen=True)
class Choice:
    """A class, its probability, and the range in which `RANGE` of the belief has it."""

    name: str
    probability: float
    low: float
    high: float


@dataclass(frozen=True)
class Neighbour:
    """A training picture: its name, class, cosine similarity, and a preview where there is one."""

    name: str
    class_name: str
    similarity: float
    preview: str | None


@dataclass(frozen=True)
class Answer:
    """What is said about one picture.

    Attributes:
        choices: the most probable classes.
        picture: share of what a pure guess leaves open that the picture itself leaves open, in 0..1.
        training: share that the few training pictures leave open.
        unknown: whether it looks like nothing that was learned; None: the adapter cannot tell.
        among: the classes that hold the right one with probability `COVERAGE`; None: it was not calibrated for that.
        neighbours: the most similar training pictures.
    """

    choices: tuple[Choice, ...]
    picture: float
    training: float
    unknown: bool | None
    among: tuple[str, ...] | None
    neighbours: tuple[Neighbour, ...]


@dataclass(frozen=True)
class Measured:
    """How good answers are on labelled pictures that were not learned from."""

    images: int
    accuracy: float
    error: float
    rows: tuple[ReliabilityBin, ...]


@dataclass(frozen=True)
class Update:
    """What learning has changed: of ``pictures`` of a class, how many were recognised before and are now.

    Attributes:
        new: whether the class is new.
        measured: on the test pictures, before and after; None without any.
    """

    class_name: str
    pictures: int
    before: int
    after: int
    new: bool
    measured: tuple[Measured, Measured] | None


@dataclass(frozen=True)
class About:
    """What an adapter is, as it is now.

    Attributes:
        folder: its name.
        counts: training pictures by class; None where they were not counted.
        calibration: how many pictures sets of classes are calibrated on.
        unsaved: pictures that were learned since it was last saved.
    """

    folder: str
    backbone: str
    prompts: tuple[str, ...]
    counts: dict[str, int | None]
    options: dict[str, Any]
    calibration: int
    measured: Measured | None
    unsaved: int
    read_only: bool


class ChangedMeanwhileError(AdapterError):
    """Saving would undo what somebody else has saved."""


@dataclass(frozen=True)
class Question:
    """A picture whose label is asked for.

    Attributes:
        position: in the pool.
        name: of the file.
        picture: its pixels, as an address.
        classes: all of them with their probabilities, the most probable first.
    """

    position: int
    name: str
    picture: str
    classes: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Labelling:
    """How far labelling has come.

    Attributes:
        question: None: every picture has a label, or was passed over.
        coming: previews of the pictures after it.
        unlabelled: pictures of the pool without a label.
        expected: the share of them that the adapter expects to tell right, in 0..1.
    """

    question: Question | None
    coming: tuple[str, ...]
    unlabelled: int
    expected: float


class AdapterService:
    """One adapter, and one lock around its belief.

    Args:
        classifier: as it was loaded from the folder.
        folder: of the adapter; nothing in it changes until `save`.
        gallery: previews of the training pictures.
        test: labelled pictures to measure on, of the adapter's classes; None: nothing is measured.
        read_only: whether `save` refuses.
        pool: pictures without labels to ask about; None: nobody is asked.
    """

    def __init__(
        self,
        classifier: KalmanCLIP,
        folder: Path,
        gallery: Gallery | None = None,
        test: LabelledImages | None = None,
        read_only: bool = False,
        pool: Sequence[Path] | None = None,
    ) -> None:
        self._classifier, self._folder, self._gallery = classifier, folder, gallery or Gallery()
        self._test, self._read_only = test, read_only
        self._pool = None if pool is None else classifier.read_pool(pool)
        self._passed_over: set[int] = set()
        self._lock = threading.RLock()
        self._saved, self._unsaved = _state_on_disk(folder), 0
        self._measured = self._measured_saved = self._measure()

    @property
    def class_names(self) -> list[str]:
        """The classes as they are now; nobody is waited for."""
        return self._classifier.class_names_

    def look(self, image: Upload) -> Answer:
        """Return what is said about a picture."""
        with self._lock:
            return answer(self._classifier, image, self._gallery)

    def predict(self, images: Sequence[LazyImage], uncertainty: bool = False) -> Prediction:
        """Return the prediction of pictures, averaged over the belief if ``uncertainty`` is asked for."""
        with self._lock:
            return self._classifier.predict_full(images, how="linearised" if uncertainty else "mean")

    def learn_and_save(self, images: Sequence[ReceivedPicture], class_name: str) -> Update:
        """Learn and save in one step: what cannot be saved is not learned either.

        Pictures are decoded when it is their turn: those of many lessons at once would not fit in memory.

        Raises:
            ChangedMeanwhileError: somebody else has saved the adapter; it is loaded as they left it.
        """
        with self._lock:
            update = self.learn([image.read() for image in images], class_name)
            try:
                self.save()
            except ChangedMeanwhileError as error:
                self.go_back()
                raise ChangedMeanwhileError(
                    "The adapter on disk was changed by somebody else, and is loaded now as they left it. Nothing was "
                    "learned: send the pictures again."
                ) from error
            except BaseException:
                self.go_back()
                raise
            return update

    def learn(self, images: Sequence[Upload], class_name: str) -> Update:
        """Go on learning, in memory; a class that is not known is added."""
        if not images:
            raise DataError("Choose at least one picture to learn from.")
        if len(images) > MAX_PICTURES:
            raise DataError(f"{len(images)} pictures are too many at once; give at most {MAX_PICTURES}.")
        name = _class_name(class_name)
        with self._lock:
            name, new = self._class_named(name)
            return self._learn([Upload(image.image, f"{name}/{image.name}") for image in images], name, new)

    @property
    def asks(self) -> bool:
        """Whether there are pictures without labels to ask about."""
        return self._pool is not None

    def ask(self) -> Labelling:
        """Return the picture whose label would tell most, and what it is expected to be good for."""
        with self._lock:
            if self._pool is None:
                raise ConfigError("There are no pictures to label: start the page with --pool FOLDER.")
            count = 1 + COMING + len(self._passed_over)
            found = self._classifier.suggest(self._pool, count)
            there = [i for i in found.positions if i not in self._passed_over]
            question = None
            if there:
                p = found.probabilities[there[0]]
                order, names = p.argsort(descending=True).tolist(), self._classifier.class_names_
                classes = tuple((names[c], float(p[c])) for c in order)
                picture = preview(self._picture(there[0], SIDE), SIDE)
                question = Question(there[0], image_identity(self._pool.sources[there[0]]), picture, classes)
            coming = tuple(preview(self._picture(i, PREVIEW_SIDE), PREVIEW_SIDE) for i in there[1 : 1 + COMING])
            return Labelling(question, coming, int(found.unlabelled.sum()), found.expected_accuracy)

    def label(self, position: int, class_name: str) -> Update:
        """Learn one picture of the pool, in memory."""
        name = _class_name(class_name)
        with self._lock:
            source = self._asked(position)
            training = self._classifier.training_images_
            if training and image_identity(source) in training.names:
                raise DataError("Somebody else has labelled that picture in the meantime. Go on with the next.")
            return self._learn([source], *self._class_named(name))

    def pass_over(self, position: int) -> None:
        """Do not ask about a picture of the pool again."""
        with self._lock:
            self._asked(position)
            self._passed_over.add(position)

    def _asked(self, position: int) -> ImageSource:
        if self._pool is None or not 0 <= position < len(self._pool.sources):
            raise DataError("That picture is not among those to label.")
        return self._pool.sources[position]

    def _picture(self, position: int, side: int) -> Image.Image:
        return load_image(self._asked(position), side, MAX_PIXELS)

    def _class_named(self, name: str) -> tuple[str, bool]:
        """Return a class name as the adapter writes it, and whether it is new."""
        classes = {name_key(known): known for known in self._classifier.class_names_}
        return classes.get(name_key(name), name), name_key(name) not in classes

    def _learn(self, images: Sequence[ImageSource], name: str, new: bool) -> Update:
        """Go on learning from pictures of one class."""
        before, measured = self._recognised(images, name), self._measured
        self._classifier.partial_fit(images, [name] * len(images))
        self._unsaved += len(images)
        if training := self._classifier.training_images_:
            for position, image in enumerate(images, start=len(training[0]) - len(images)):
                # uploads: their files are gone
                pixels = load_image(image, PREVIEW_SIDE, MAX_PIXELS)
                self._gallery.add(position, training.names[position], pixels)
        self._measured = self._measure()
        both = None if measured is None or self._measured is None else (measured, self._measured)
        return Update(name, len(images), before, self._recognised(images, name), new, both)

    def save(self) -> None:
        """Write the adapter to the folder it came from, unless somebody else has changed it since it was loaded."""
        if self._read_only:
            raise ConfigError("This was started with --read-only: nothing can be saved.")
        with self._lock, lock_folder(self._folder, AdapterError):
            if _state_on_disk(self._folder) != self._saved:
                raise ChangedMeanwhileError(
                    "The adapter on disk was changed by somebody else in the meantime, and saving would undo that. "
                    "Start the page again, or go back to the saved adapter and teach it again."
                )
            self._classifier.save(self._folder)
            self._saved, self._unsaved, self._measured_saved = _state_on_disk(self._folder), 0, self._measured

    def go_back(self) -> None:
        """Forget what was learned since the adapter was last saved."""
        with self._lock:
            saved = _state_on_disk(self._folder)
            self._classifier = KalmanCLIP.load(self._folder, self._classifier.backbone_)
            if saved != self._saved:  # somebody else has saved another state
                names = [] if self._test is None else list(self._test.class_names)
                if self._classifier.class_names_[: len(names)] != names:
                    self._test = None  # its labels count other classes
                self._measured_saved = self._measure()
            self._saved, self._unsaved, self._measured = saved, 0, self._measured_saved

    def about(self) -> About:
        """Return what the adapter is now."""
        with self._lock:
            classifier, counts = self._classifier, dict[str, int | None].fromkeys(self._classifier.class_names_)
            if training := classifier.training_images_:
                found = Counter(training[1])
                counts = {name: found[label] for label, name in enumerate(counts)}
            return About(
                folder=self._folder.resolve().name,
                backbone=classifier.backbone_.name,
                prompts=tuple(classifier.templates),
                counts=counts,
                options=classifier.options_,
                calibration=0 if classifier.calibration_ is None else len(classifier.calibration_),
                measured=self._measured,
                unsaved=self._unsaved,
                read_only=self._read_only,
            )

    def _recognised(self, images: Sequence[ImageSource], class_name: str) -> int:
        names = self._classifier.class_names_
        return sum(names[best] == class_name for best in self._classifier.predict_proba(images).argmax(axis=1))

    def _measure(self) -> Measured | None:
        if self._test is None:
            return None
        probabilities = self._classifier.predict_full(self._test.sources).probabilities.numpy()
        labels = np.array(self._test.labels)
        return Measured(
            images=len(labels),
            accuracy=float((probabilities.argmax(axis=1) == labels).mean()),
            error=expected_calibration_error(probabilities, labels),
            rows=tuple(reliability_table(probabilities, labels)),
        )


def _class_name(given: str) -> str:
    """Return a class name as prompts have it."""
    name = class_name_from_folder(given)
    if not name or not name.isprintable():
        raise DataError("Say which class the pictures show: choose one, or type the name of a new one.")
    if len(name) > MAX_NAME:
        raise DataError(f"The class name has {len(name)} characters; use at most {MAX_NAME}.")
    return name


def _state_on_disk(folder: Path) -> str:
    """Return what tells one saved state of an adapter from another."""
    return str(read_description(folder)["tensors"]["sha256"])


def answer(classifier: KalmanCLIP, image: Upload, gallery: Gallery) -> Answer:
    """Return all there is to say about a picture, from one pass over it."""
    calibration = classifier.calibration_
    calibrated = calibration is not None and len(calibration) >= images_needed(COVERAGE)
    found = classifier.predict_full([image], coverage=COVERAGE if calibrated else None, neighbors=NEIGHBOURS)
    guess = math.log(max(2, len(found.class_names)))
    return Answer(
        choices=_choices(found),
        picture=float(found.aleatoric[0]) / guess,
        training=float(found.epistemic[0]) / guess,
        unknown=None if found.is_ood is None else bool(found.is_ood[0]),
        among=None if found.sets is None else tuple(found.sets[0]),
        neighbours=_neighbours(classifier, found, gallery),
    )


def _choices(prediction: Prediction) -> tuple[Choice, ...]:
    draws = LogitGaussian(prediction.mean, prediction.std.square()).draws(_DRAWS).softmax(dim=2)[:, 0].double()
    ends = torch.tensor([(1 - RANGE) / 2, (1 + RANGE) / 2], dtype=torch.float64)
    p, (low, high) = prediction.probabilities[0].double(), draws.quantile(ends, dim=0)
    low, high = torch.minimum(low, p), torch.maximum(high, p)  # the mean of a skewed distribution may lie outside
    best = p.argsort(descending=True)[:CHOICES].tolist()
    return tuple(Choice(prediction.class_names[c], float(p[c]), float(low[c]), float(high[c])) for c in best)


def _neighbours(classifier: KalmanCLIP, found: Prediction, gallery: Gallery) -> tuple[Neighbour, ...]:
    if found.neighbors is None or classifier.training_images_ is None:
        return ()
    names, labels = classifier.training_images_
    nearest = zip(*(column[0].tolist() for column in found.neighbors), strict=True)
    return tuple(
        Neighbour(names[i], found.class_names[labels[i]], similarity, gallery.show(i, names[i]))
        for similarity, i in nearest
    )

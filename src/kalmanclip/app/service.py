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

from kalmanclip.adapter import read_description
from kalmanclip.app.images import MAX_PICTURES, Gallery, Upload
from kalmanclip.data import LabelledImages, class_name_from_folder
from kalmanclip.data.labelled import name_key
from kalmanclip.errors import AdapterError, ConfigError, DataError
from kalmanclip.estimator import KalmanCLIP
from kalmanclip.metrics import ReliabilityBin, expected_calibration_error, reliability_table
from kalmanclip.prediction import LogitGaussian, Prediction
from kalmanclip.prediction.conformal import images_needed

CHOICES = 5  # classes that are shown, the most probable first
NEIGHBOURS = 6  # training pictures that are shown
RANGE = 0.9  # share of the belief in which a probability stays within its range
COVERAGE = 0.9  # probability with which the set of classes holds the right one
MAX_NAME = 80  # characters of a class name: longer ones do not fit into a prompt
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


class AdapterService:
    """One adapter, and one lock around its belief.

    Args:
        classifier: as it was loaded from the folder.
        folder: of the adapter; nothing in it changes until `save`.
        gallery: previews of the training pictures.
        test: labelled pictures to measure on, of the adapter's classes; None: nothing is measured.
        read_only: whether `save` refuses.
    """

    def __init__(
        self,
        classifier: KalmanCLIP,
        folder: Path,
        gallery: Gallery | None = None,
        test: LabelledImages | None = None,
        read_only: bool = False,
    ) -> None:
        self._classifier, self._folder, self._gallery = classifier, folder, gallery or Gallery()
        self._test, self._read_only = test, read_only
        self._lock = threading.Lock()
        self._saved, self._unsaved = _state_on_disk(folder), 0
        self._measured = self._measured_saved = self._measure()

    def look(self, image: Upload) -> Answer:
        """Return what is said about a picture."""
        with self._lock:
            return answer(self._classifier, image, self._gallery)

    def learn(self, images: Sequence[Upload], class_name: str) -> Update:
        """Go on learning, in memory; a class that is not known is added."""
        if not images:
            raise DataError("Choose at least one picture to learn from.")
        if len(images) > MAX_PICTURES:
            raise DataError(f"{len(images)} pictures are too many at once; give at most {MAX_PICTURES}.")
        name = _class_name(class_name)
        with self._lock:
            classes = {name_key(known): known for known in self._classifier.class_names_}
            new = name_key(name) not in classes
            name = classes.get(name_key(name), name)
            named = [Upload(image.image, f"{name}/{image.name}") for image in images]
            before, measured = self._recognised(named, name), self._measured
            self._classifier.partial_fit(named, [name] * len(named))
            self._unsaved += len(named)
            if training := self._classifier.training_images_:
                for position, image in enumerate(named, start=len(training[0]) - len(named)):
                    self._gallery.add(position, image.name, image.image)  # their files are gone
            self._measured = self._measure()
            both = None if measured is None or self._measured is None else (measured, self._measured)
            return Update(name, len(named), before, self._recognised(named, name), new, both)

    def save(self) -> None:
        """Write the adapter to the folder it came from, unless somebody else has changed it since it was loaded."""
        if self._read_only:
            raise ConfigError("The page was started with --read-only: nothing can be saved.")
        with self._lock:
            if _state_on_disk(self._folder) != self._saved:
                raise AdapterError(
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

    def _recognised(self, images: Sequence[Upload], class_name: str) -> int:
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

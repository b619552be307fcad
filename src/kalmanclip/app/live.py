"""An adapter that several people use at once: it answers, learns, and is saved when somebody says so."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kalmanclip.adapter import read_description
from kalmanclip.app.answers import Answer, answer
from kalmanclip.app.gallery import Gallery
from kalmanclip.app.limits import MAX_PICTURES, Upload
from kalmanclip.config import flatten, to_dict
from kalmanclip.data import LabelledImages, class_name_from_folder
from kalmanclip.data.labelled import name_key
from kalmanclip.errors import AdapterError, ConfigError, DataError
from kalmanclip.estimator import KalmanCLIP
from kalmanclip.metrics import ReliabilityBin, expected_calibration_error, reliability_table

MAX_NAME = 80
"""Characters of a class name: longer ones do not fit into a prompt."""


@dataclass(frozen=True)
class Measured:
    """How good answers are on labelled pictures that were not learned from."""

    images: int
    accuracy: float
    error: float
    rows: tuple[ReliabilityBin, ...]


@dataclass(frozen=True)
class Lesson:
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


class LiveAdapter:
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
        """What is said about a picture."""
        with self._lock:
            return answer(self._classifier, image, self._gallery)

    def learn(self, images: Sequence[Upload], class_name: str) -> Lesson:
        """Goes on learning, in memory; a class that is not known is added.

        Raises:
            DataError: there are no pictures, too many, or no class.
        """
        if not images:
            raise DataError("Choose at least one picture to learn from.")
        if len(images) > MAX_PICTURES:
            raise DataError(f"{len(images)} pictures are too many at once; give at most {MAX_PICTURES}.")
        name = _class_name(class_name)
        with self._lock:
            classes = {name_key(known): known for known in self._classifier.classes_}
            new = name_key(name) not in classes
            name = classes.get(name_key(name), name)
            named = [Upload(image.image, f"{name}/{image.name}") for image in images]
            before, measured = self._recognised(named, name), self._measured
            self._classifier.partial_fit(named, [name] * len(named))
            self._unsaved += len(named)
            self._keep_previews(named)
            self._measured = self._measure()
            both = None if measured is None or self._measured is None else (measured, self._measured)
            return Lesson(name, len(named), before, self._recognised(named, name), new, both)

    def save(self) -> None:
        """Writes the adapter to the folder it came from, completely or not at all.

        Raises:
            ConfigError: it may only be read.
            AdapterError: it was changed by somebody else since it was loaded, or cannot be written.
        """
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
        """Forgets what was learned since the adapter was last saved."""
        with self._lock:
            saved = _state_on_disk(self._folder)
            self._classifier = KalmanCLIP.load(self._folder, self._classifier.backbone)
            if saved != self._saved:  # somebody else has saved another state
                names = [] if self._test is None else list(self._test.class_names)
                if self._classifier.classes_[: len(names)] != names:
                    self._test = None  # its labels count other classes
                self._measured_saved = self._measure()
            self._saved, self._unsaved, self._measured = saved, 0, self._measured_saved

    def about(self) -> About:
        """What the adapter is now."""
        with self._lock:
            method = self._classifier.method
            options = flatten(to_dict(method.config))
            return About(
                folder=self._folder.resolve().name,
                backbone=method.backbone.name,
                prompts=tuple(method.templates),
                counts=self._counts(),
                options=options,
                calibration=0 if method.calibration is None else len(method.calibration),
                measured=self._measured,
                unsaved=self._unsaved,
                read_only=self._read_only,
            )

    def _counts(self) -> dict[str, int | None]:
        names, known = self._classifier.classes_, self._classifier.method.training_images
        if known is None:
            return dict.fromkeys(names)
        counts = known.labels.bincount(minlength=len(names)).tolist()
        return dict(zip(names, counts, strict=True))

    def _recognised(self, images: Sequence[Upload], class_name: str) -> int:
        return int((self._classifier.predict(images) == class_name).sum())

    def _keep_previews(self, images: Sequence[Upload]) -> None:
        """The last training pictures are these; their files are gone, so their previews are kept."""
        known = self._classifier.method.training_images
        if known is not None:
            for position, image in enumerate(images, start=len(known.names) - len(images)):
                self._gallery.add(position, image.name, image.image)

    def _measure(self) -> Measured | None:
        if self._test is None:
            return None
        probabilities = self._classifier.predict_distribution(self._test.sources).probabilities.numpy()
        labels = np.array(self._test.labels)
        return Measured(
            images=len(labels),
            accuracy=float((probabilities.argmax(axis=1) == labels).mean()),
            error=expected_calibration_error(probabilities, labels),
            rows=tuple(reliability_table(probabilities, labels)),
        )


def _class_name(given: str) -> str:
    """As prompts have it."""
    name = class_name_from_folder(given)
    if not name or not name.isprintable():
        raise DataError("Say which class the pictures show: choose one, or type the name of a new one.")
    if len(name) > MAX_NAME:
        raise DataError(f"The class name has {len(name)} characters; use at most {MAX_NAME}.")
    return name


def _state_on_disk(folder: Path) -> str:
    """What tells one saved state of an adapter from another."""
    return str(read_description(folder)["tensors"]["sha256"])

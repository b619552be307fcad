"""``kalmanclip update`` and ``kalmanclip calibrate``: an adapter goes on with further images."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kalmanclip.cli.arguments import (
    Adapter,
    Device,
    earlier_adapter,
    load,
    naming_bad_images,
    save_adapter,
    writable_folder,
)
from kalmanclip.cli.console import bars, command_line, facts, note, percent, some, suggest
from kalmanclip.cli.fit import read_source
from kalmanclip.errors import AdapterError, ConfigError, DataError, RepeatedImagesWarning

if TYPE_CHECKING:
    from kalmanclip.data import LabelledImages
    from kalmanclip.estimator import KalmanCLIP

UPDATE = """
kalmanclip update pets.adapter more_photos/
kalmanclip update pets.adapter kittens/ -o more_pets.adapter
kalmanclip update pets.adapter more_photos.csv
"""
CALIBRATE = """
kalmanclip calibrate pets.adapter held_out_photos/
kalmanclip calibrate pets.adapter held_out_photos/ -o calibrated.adapter
"""

Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="A new folder for the result. Default: the adapter itself is replaced."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an adapter that is already at --output.")]


def update(
    adapter: Adapter,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="New images with their classes, known or new: a folder of class folders, a list, or hf:OWNER/NAME, as "
            "for fit.",
            show_default=False,
        ),
    ],
    output: Output = None,
    epochs: Annotated[int, typer.Option(help="Passes over them, for low-rank parameters.", min=1)] = 1,
    device: Device = None,
    force: Force = False,
) -> None:
    """Learn on from new images; the old ones are not needed. Classes not seen before are added.

    Give images that were not learned from: the same image twice counts twice. A remark says so where it is noticed.
    """
    clf, images = _open(adapter, data, output, device, force)
    before, calibrated = clf.class_names_, clf.calibration_ is not None
    with writable_folder(output) if output else nullcontext():
        with bars() as progress, naming_bad_images(images.sources), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", RepeatedImagesWarning)
            clf.partial_fit(images, epochs=epochs, progress=progress)
        for warning in said:
            note(str(warning.message))
        save_adapter(clf, output or adapter, clf.notes_)
    if calibrated and clf.calibration_ is None:
        note("Sets of classes are no longer calibrated: that was for what it knew before. See kalmanclip calibrate.")
    added = [name for name in clf.class_names_ if name not in before]
    news = [("new classes", some(added))] if added else []
    facts([("classes", len(clf.class_names_)), *news, ("new images", len(images)), ("saved in", output or adapter)])
    suggest((command_line("evaluate", output or adapter, "FOLDER"), "measure it on labelled images it has not seen"))


def calibrate(
    adapter: Adapter,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="Images of the known classes that the adapter was not fitted to: a folder of class folders, a list, "
            "or hf:OWNER/NAME.",
            show_default=False,
        ),
    ],
    output: Output = None,
    device: Device = None,
    force: Force = False,
) -> None:
    """Calibrate sets of classes (predict --sets) on held-out images.

    Images that the adapter has learned from would promise too much and are refused. An earlier calibration is replaced.
    """
    clf, images = _open(adapter, data, output, device, force)
    with writable_folder(output) if output else nullcontext():
        with bars() as progress, naming_bad_images(images.sources):
            if known := int(clf.were_learned(images).sum()):
                raise DataError(
                    f"{known} of {len(images)} images were learned from, and would promise too much. Give others."
                )
            clf.calibrate(images, progress=progress)
        save_adapter(clf, output or adapter, clf.notes_)
    n = len(images)
    calibrated = f"{n} images, for sets with a coverage of up to {percent(n / (n + 1))}"
    facts([("calibrated on", calibrated), ("saved in", output or adapter)])
    suggest((command_line("predict", output or adapter, "IMAGES", "--sets", "0.9"), "sets that hold the true class"))


def _open(
    adapter: Path, data: str, output: Path | None, device: str | None, force: bool
) -> tuple[KalmanCLIP, LabelledImages]:
    """Return the adapter and the images, after a refusal of all that cannot work."""
    from kalmanclip.adapter import read_description

    if output is not None and output.resolve() == adapter.resolve():
        output = None
    if output is not None:
        earlier_adapter(output, force)
    notes = read_description(adapter).get("notes", {})
    if notes.get("epochs_done", 0) < notes.get("epochs", 0):
        raise AdapterError(f"{adapter} holds an interrupted fit. Finish it first: fit --resume.")
    source = read_source(data)
    if source.labelled is None or notes.get("captions"):
        raise ConfigError("Captions are learned in one go: give images with classes, or fit again with all captions.")
    return load(adapter, device), source.labelled

"""What a fit may learn from: a folder of class folders, a list, a data set of Hugging Face; classes or captions."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kalmanclip.errors import DataError

if TYPE_CHECKING:
    from kalmanclip.data import CaptionedImages, CaptionedSplits, ImageSource, LabelledImages, Splits


@dataclass(frozen=True)
class Material:
    """The images of one fit.

    Attributes:
        place: the folder or file, as it was given.
        labelled: images with classes; None if there are captions.
        pairs: images with captions; None if there are classes.
        templates: the data set's own prompt templates; None where it has none.
    """

    place: str
    labelled: LabelledImages | None = None
    pairs: CaptionedImages | None = None
    templates: tuple[str, ...] | None = None


def read_material(place: str) -> Material:
    """Reads what to learn from; of a data set with parts, the train part.

    Args:
        place: a folder, a .csv, .json or .jsonl list, or ``hf:`` and the name of a data set.
    """
    from kalmanclip.data import hub, lists, read_folder
    from kalmanclip.data.resolve import HUB, is_list

    if place.startswith(HUB):
        if hub.has_captions_only(place):
            return Material(place, pairs=caption_splits(place).get("train", place))
        views = hub.read_hugging_face(place)
        return Material(place, _train(views, place), templates=views.templates)
    if not is_list(place):
        if Path(place).is_file():
            raise DataError(f"{place} is neither a folder nor a list; a list ends in .csv, .json or .jsonl")
        return Material(place, read_folder(place))
    if lists.has_captions_only(place):
        return Material(place, pairs=caption_splits(place).get("train", place))
    return Material(place, _train(lists.read_list(place), place))


def caption_splits(place: str) -> CaptionedSplits:
    """The parts of a list of pairs, or of such a data set of Hugging Face."""
    from kalmanclip.data import read_caption_splits, read_hugging_face_captions
    from kalmanclip.data.resolve import HUB

    return read_hugging_face_captions(place) if place.startswith(HUB) else read_caption_splits(place)


def fingerprint(material: Material, images: LabelledImages) -> str:
    """A hash of the images' names, sizes and labels, wherever their folder or list lies.

    Args:
        material: where the images come from.
        images: those of it that are used.
    """
    from kalmanclip.cli import resume

    if material.pairs is None and Path(material.place).is_dir():
        return resume.fingerprint(Path(material.place), images)
    digest = hashlib.sha256()
    root = Path(material.place).parent
    for source, label in zip(images.sources, images.labels, strict=True):
        # the text too: another caption at the same place is another pair
        digest.update(f"{_called(source, root)} {images.class_names[label]}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _called(source: ImageSource, root: Path) -> str:
    from kalmanclip.data.images import content_identity, image_identity

    if not isinstance(source, str | os.PathLike):
        return f"{image_identity(source)} {content_identity(source)}"
    path = Path(source)
    name = path.relative_to(root) if path.is_relative_to(root) else path  # a list may name any file
    return f"{name.as_posix()} {path.stat().st_size if path.exists() else None}"


def _train(views: Splits, place: str) -> LabelledImages:
    if views.train is None:
        raise DataError(f"{place} has nothing to learn from: none of its rows belongs to train")
    return views.train

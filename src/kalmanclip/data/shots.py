"""Choose K images per class: at random, the same for the same seed everywhere, or from published lists.

A shot list is a file ``shot{M}_seed{S}.txt`` beside ``train/`` that names the M images per class of seed S.
"""

import os
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kalmanclip.config import check_whole
from kalmanclip.data.folder import read_text
from kalmanclip.data.labelled import LabelledImages, class_members, shown
from kalmanclip.errors import DataError

_NAME = re.compile(r"shot(\d+)_seed(\d+)\.txt")


def sample_shots(images: LabelledImages, shots: int | None, seed: int, replacement: bool = False) -> LabelledImages:
    """Return `shots` random images of each class, in their original order: the same for the same seed.

    A class's draw depends on the seed, its name and its own images alone, so adding, removing or reordering
    other classes does not change it. Draws are nested: the images for K shots are among those for K + 1.

    Args:
        images: what to draw from; a class without images stays empty.
        shots: K; None returns everything.
        seed: any integer.
        replacement: what happens to a class with fewer than K images. It keeps all it has; if True, it is
            also filled up to K by drawing some of them again, following the protocol of CoOp.
    """
    return images if shots is None else images.subset(sample_indices(images, shots, seed, replacement))


def sample_indices(images: LabelledImages, shots: int | None, seed: int, replacement: bool = False) -> list[int]:
    """Return the positions of the images that `sample_shots` returns, in increasing order."""
    check_whole(1, shots=shots)
    if shots is None:
        return list(range(len(images)))
    chosen: list[int] = []
    for name, candidates in zip(images.class_names, class_members(images, range(len(images))), strict=True):
        # Only random() is promised to give the same numbers in every Python, so nothing else is used.
        generator = random.Random(f"{seed}:{name}")
        ranks = [(generator.random(), position) for position in candidates]
        chosen += [position for _, position in sorted(ranks)[:shots]]
        if replacement and candidates:
            missing = shots - len(candidates)
            chosen += [candidates[int(generator.random() * len(candidates))] for _ in range(missing)]
    return sorted(chosen)


def hold_out(images: LabelledImages, count: int, seed: int) -> tuple[LabelledImages, LabelledImages]:
    """Split off ``count`` random images of each class: (the rest, held out), the same for the same seed.

    Raises:
        DataError: a class would have no image left to learn from.
    """
    check_whole(1, **{"the number of images to hold out": count})
    pairs = zip(images.class_names, images.counts(), strict=True)
    short = [name for name, own in pairs if 0 < own <= count]
    if short:
        raise DataError(
            f"with {count} images of each class held out, {len(short)} classes have none left to learn from "
            f"({shown(short)}); hold out fewer, or give more images"
        )
    held = set(sample_indices(images, count, seed))
    return images.subset(i for i in range(len(images)) if i not in held), images.subset(sorted(held))


@dataclass(frozen=True)
class ShotList:
    """One shot list.

    Attributes:
        name: of the file, so that a record can say where a draw came from.
        positions: of its images in the train split, in the order of the list.
    """

    name: str
    positions: tuple[int, ...]

    def first(self, images: LabelledImages, shots: int) -> list[int]:
        """Return the positions in the train split `images` of the first K of each class, class after class."""
        members = class_members(images, self.positions)
        short = [name for name, own in zip(images.class_names, members, strict=True) if len(own) < shots]
        if short:
            raise DataError(
                f"{self.name} has fewer than {shots} images of {len(short)} classes ({shown(short)}); "
                "complete the list, remove it, or ask for fewer shots"
            )
        return [position for own in members for position in own[:shots]]


@dataclass(frozen=True)
class ShotLists:
    """The lists of a data set, by number of images per class and seed."""

    lists: Mapping[tuple[int, int], ShotList]

    def find(self, shots: int | None, seed: int) -> ShotList | None:
        """Return the list that K shots of a seed are taken from: the shortest of that seed with at least K."""
        if shots is None:
            return None
        sizes = [size for size, own in self.lists if own == seed and size >= shots]
        return self.lists[min(sizes), seed] if sizes else None

    def contents(self) -> Iterator[str]:
        """Yield one line per list, for fingerprints: another list is another data set."""
        for _, entry in sorted(self.lists.items()):
            yield f"{entry.name} {' '.join(map(str, entry.positions))}"


def read_shot_lists(folder: str | os.PathLike[str], train: LabelledImages) -> ShotLists | None:
    """Return the lists in a data set's folder, or None if there are none.

    Args:
        folder: which holds the lists and ``train/``; the lines of a list are paths under ``train/``.
        train: the images of ``train/``, as `read_folder` returns them.

    Raises:
        DataError: a list is empty, or names images that are not there.
    """
    place = Path(folder)
    files = [(match, path) for path in sorted(place.iterdir()) if (match := _NAME.fullmatch(path.name))]
    if not files:
        return None
    paths = [Path(source) if isinstance(source, str | os.PathLike) else None for source in train.sources]
    known = {path.relative_to(place / "train").as_posix(): i for i, path in enumerate(paths) if path is not None}
    lists: dict[tuple[int, int], ShotList] = {}
    for match, path in files:
        lines = [line.strip().replace("\\", "/") for line in read_text(path).splitlines() if line.strip()]
        if not lines:
            raise DataError(f"the shot list {path} is empty; write one image per line, or remove it")
        missing = [line for line in lines if line not in known]
        if missing:
            raise DataError(
                f"the shot list {path} names {len(missing)} images that are not in train/: {shown(missing, 5, str)}. "
                "Its lines are paths under train/, such as cat/1.jpg"
            )
        lists[int(match[1]), int(match[2])] = ShotList(path.name, tuple(known[line] for line in lines))
    return ShotLists(lists)

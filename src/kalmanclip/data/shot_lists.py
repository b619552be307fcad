"""Published draws: files ``shot{M}_seed{S}.txt`` beside ``train/`` that name the M images per class of seed S."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kalmanclip.data.labelled import LabelledImages
from kalmanclip.data.names import shown
from kalmanclip.data.sets.files import read_text
from kalmanclip.errors import DataError

_NAME = re.compile(r"shot(\d+)_seed(\d+)\.txt")
_MISSING_SHOWN = 5


@dataclass(frozen=True)
class ShotList:
    """One list.

    Attributes:
        name: of the file, so that a record can say where a draw came from.
        positions: of its images in the training part, in the order of the list.
    """

    name: str
    positions: tuple[int, ...]

    def first(self, images: LabelledImages, shots: int) -> list[int]:
        """Return the positions of the first K images of each class, class after class.

        Args:
            images: the training part that the list is of.
            shots: K.

        Raises:
            DataError: a class has fewer than K images in the list.
        """
        members: list[list[int]] = [[] for _ in images.class_names]
        for position in self.positions:
            members[images.labels[position]].append(position)
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
    found = ((_NAME.fullmatch(path.name), path) for path in sorted(place.iterdir()))
    files = {(int(match[1]), int(match[2])): path for match, path in found if match}
    if not files:
        return None
    known: dict[str, int] = {}
    for position, source in enumerate(train.sources):
        if isinstance(source, str | os.PathLike):
            known[Path(source).relative_to(place / "train").as_posix()] = position
    return ShotLists({key: _read(path, known) for key, path in files.items()})


def _read(path: Path, known: Mapping[str, int]) -> ShotList:
    lines = [line.strip().replace("\\", "/") for line in read_text(path).splitlines() if line.strip()]
    if not lines:
        raise DataError(f"the shot list {path} is empty; write one image per line, or remove it")
    missing = [line for line in lines if line not in known]
    if missing:
        more = f" and {len(missing) - _MISSING_SHOWN} more" if len(missing) > _MISSING_SHOWN else ""
        raise DataError(
            f"the shot list {path} names {len(missing)} images that are not in train/: "
            f"{', '.join(missing[:_MISSING_SHOWN])}{more}. Its lines are paths under train/, such as cat/1.jpg"
        )
    return ShotList(path.name, tuple(known[line] for line in lines))

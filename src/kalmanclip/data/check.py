"""Check that a data set on this computer is complete and its images readable; download one that is not there."""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

from kalmanclip.data.catalog import DataSet, data_root, find_dataset, incomplete, load_dataset
from kalmanclip.data.images import ImageSource, load_image
from kalmanclip.errors import ConfigError, DataError, ImageError

Progress = Callable[[str, int, int], None]

_CHUNK = 1024  # images given to the threads at a time: a Ctrl-C waits for no more than these


@dataclass(frozen=True)
class Count:
    """How many images there are in a split (or in several, "train+val"), and how many there should be."""

    split: str
    found: int
    expected: int

    @property
    def ok(self) -> bool:
        """Whether nothing is missing or too many."""
        return self.found == self.expected


@dataclass(frozen=True)
class Report:
    """What `check_dataset` found; each of `problems` says what is wrong and what to do, `origin` is `Splits.origin`."""

    name: str
    folder: Path
    origin: str
    classes: int
    counts: tuple[Count, ...]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether everything is as it should be."""
        return not self.problems


def check_dataset(
    dataset: str | DataSet,
    root: str | os.PathLike[str] | None = None,
    *,
    variant: str | None = None,
    decode: bool = True,
    progress: Progress | None = None,
) -> Report:
    """Compare a data set with its description, and try to read every image.

    Args:
        dataset: as `root` and `variant` in `load_dataset`.
        root: see there.
        variant: see there.
        decode: False only looks whether the files are there, which is much faster.
        progress: called with (stage, done, total).
    """
    known = find_dataset(dataset)
    splits = load_dataset(known, root, variant=variant, strict=False)
    folder = known.find(data_root(root))
    assert folder is not None  # load_dataset found it
    sizes = {split: len(images) for split, images in splits.items()}
    counts = [
        Count(names, sum(sizes.get(split, 0) for split in names.split("+")), expected)
        for names, expected in known.counts.get(splits.origin, {}).items()
        if sizes.keys() & {*names.split("+")}  # who only measures need not have train
    ]
    wrong = [f"{c.split} has {c.found} images instead of {c.expected}" for c in counts if not c.ok]
    again = f"remove its folder and run `kalmanclip data get {known.name}`, or unpack it again"
    advice = again if known.download is not None else "unpack it again"
    problems = [f"{problem}; {advice}" for problem in (*incomplete(known, splits), *wrong)]
    sources = [source for _, images in splits.items() for source in images.sources]
    problems += _unreadable_images(sources, decode, progress)
    return Report(known.name, folder, splits.origin, len(splits.class_names), tuple(counts), tuple(problems))


def _unreadable_images(sources: list[ImageSource], decode: bool, progress: Progress | None) -> list[str]:
    """Return a sentence for every image that is missing or cannot be read; the sentence names it."""

    def problem(source: ImageSource) -> str | None:
        if not decode:
            missing = isinstance(source, str | os.PathLike) and not Path(source).is_file()
            return f"{source} does not exist; unpack the data set again" if missing else None
        try:
            load_image(source)
        except ImageError as error:
            return str(error)
        return None

    found: list[str] = []
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for begin in range(0, len(sources), _CHUNK):
            found += filter(None, pool.map(problem, sources[begin : begin + _CHUNK]))
            if progress is not None:
                progress("images", min(begin + _CHUNK, len(sources)), len(sources))
    return found


def get_dataset(dataset: str | DataSet, root: str | os.PathLike[str] | None = None) -> Path:
    """Download a data set with torchvision and return its folder; one that is there is left alone.

    Raises:
        ConfigError: it cannot be downloaded automatically; the message says how to get it.
        DataError: the download failed.
    """
    known, place = find_dataset(dataset), data_root(root)
    found = known.find(place)
    if found is not None:
        return found
    if known.download is None:
        raise ConfigError(f"{known.title} cannot be downloaded automatically ({known.licence}). {known.obtain}")
    import torchvision

    try:
        target = place / known.download.inside
        target.mkdir(parents=True, exist_ok=True)
        with redirect_stdout(sys.stderr):  # torchvision talks about its progress
            for options in known.download.calls:
                getattr(torchvision.datasets, known.download.loader)(target, download=True, **options)
    except Exception as error:  # torchvision, urllib, sockets and disks all have their own
        # The empty folders that a failed download made would look like a data set that is there.
        left = known.find(place)
        for path in sorted([left, *left.rglob("*")], reverse=True) if left else ():
            with suppress(OSError):  # not empty, or not a folder
                path.rmdir()
        raise DataError(
            f"{known.title} could not be downloaded to {place} ({type(error).__name__}: {error}). Is this computer "
            "offline, or its disk full? Try again, or copy the data set from another computer to "
            f"{place / known.folders[0]}; remove what is half there first"
        ) from error
    folder = known.find(place)
    if folder is None:
        raise DataError(f"torchvision downloaded {known.title}, but not to {place / known.folders[0]}; look in {place}")
    return folder

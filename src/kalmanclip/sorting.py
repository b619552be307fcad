"""Pictures into class folders: copies or links beside a report, and nothing that was there before ever changes.

The report, ``sorted.csv``, has one row per picture: its answer, and where it was put. A later run goes on from it: what
has an answer is not looked at again, and what was put somewhere is left alone, even if somebody has moved it since.
"""

from __future__ import annotations

import csv
import filecmp
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from itertools import count
from pathlib import Path

from kalmanclip.adapter import read_description
from kalmanclip.data import read_images
from kalmanclip.errors import ConfigError, DataError
from kalmanclip.files import copy_new, explain, lock_folder, remove_abandoned, write_atomic
from kalmanclip.prediction import Prediction

REPORT = "sorted.csv"
UNSURE = "unsure"
"""The folder of pictures that show nothing known, or no class clearly enough."""

HOW = ("copy", "link", "csv")

_AT_ONCE = 256  # pictures between two reports: no more are looked at again after an interruption
_FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')  # in names of files, on one system or another
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # by Windows
_LONGEST = 60  # characters of a folder's name, of up to four bytes each


@dataclass(frozen=True)
class Row:
    """One picture in the report.

    Attributes:
        image: its absolute path.
        folder: where it belongs: that of its class, or `UNSURE`; empty: it cannot be read.
        answer: the most probable class, or 'none of these'.
        probability: of the most probable class; empty where none fits.
        ood_score: the larger, the less it is like the training images; empty: the adapter has no such score.
        place: where it was put, relative to the report; empty: nowhere yet.
        problem: why it cannot be read.
        modified: when the picture was last changed, in nanoseconds.
        settings: what tells one adapter with its thresholds from another.
    """

    image: str
    folder: str = ""
    answer: str = ""
    probability: str = ""
    ood_score: str = ""
    place: str = ""
    problem: str = ""
    modified: str = ""
    settings: str = ""


COLUMNS = tuple(field.name for field in fields(Row))

Look = Callable[[Sequence[Path]], tuple[Prediction | None, Mapping[int, str]]]
"""Predicts pictures: what is said about those that can be read, and by position why the others cannot."""


def sort_pictures(
    files: Sequence[Path],
    output: Path,
    look: Look,
    class_names: Sequence[str],
    *,
    how: str = "copy",
    unsure: float = 0.5,
    settings: str = "",
    dry_run: bool = False,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> list[Row]:
    """Sort pictures into folders of the output and return their rows.

    Args:
        files: absolute paths; see `pictures_to_sort`.
        output: the folder for the class folders and the report; created if need be.
        look: predicts pictures.
        class_names: of the adapter.
        how: 'copy', 'link' (symbolic, to the absolute path), or 'csv': the report alone.
        unsure: pictures whose most probable class is less probable than this go to `UNSURE`.
        settings: see `settings_of`.
        dry_run: whether nothing at all is written.
        progress: called as ``progress(stage, done, total)``.

    Raises:
        ConfigError: the output was sorted under other settings.
        DataError: the file system refuses.
    """
    folders = folder_names(class_names)

    def answer(part: Sequence[Path]) -> Iterator[Row]:
        for row in _answers(part, look, folders, unsure):
            yield replace(row, modified=_modified(Path(row.image)), settings=settings)

    if dry_run:
        return _sort(files, read_report(output, settings), None, answer, how, progress)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(explain("create", output, error)) from error
    with lock_folder(output, DataError):
        for folder in (output, *(output / name for name in (*folders.values(), UNSURE))):
            remove_abandoned(folder)
        return _sort(files, read_report(output, settings), output, answer, how, progress)


def _sort(
    files: Sequence[Path],
    rows: dict[str, Row],
    output: Path | None,
    answer: Callable[[Sequence[Path]], Iterable[Row]],
    how: str,
    progress: Callable[[str, int, int], None],
) -> list[Row]:
    """Bring the rows of all pictures up to date, and the output with them unless it is None."""
    unknown = {file for file in files if not _answered(rows.get(str(file)), file)}
    todo = [file for file in files if file in unknown or (how != "csv" and not rows[str(file)].place)]
    taken = {_key(row.place) for row in rows.values() if row.place}
    if output is not None:
        write_report(output, rows.values())  # can it be written?
    for start in range(0, len(todo), _AT_ONCE):
        part = todo[start : start + _AT_ONCE]
        if new := [file for file in part if file in unknown]:
            rows.update({row.image: row for row in answer(new)})
        if output is not None:
            try:
                for row in [rows[str(file)] for file in part] if how != "csv" else ():
                    if row.folder:
                        rows[row.image] = replace(row, place=_put(Path(row.image), output, row.folder, how, taken))
            finally:  # whatever was put somewhere is in the report
                write_report(output, rows.values())
        progress("sorting", start + len(part), len(todo))
    return [rows[str(file)] for file in files]


def _answered(row: Row | None, file: Path) -> bool:
    """Tell whether an earlier run has looked at a picture that has not changed since."""
    return row is not None and row.folder != "" and row.modified == _modified(file)


def _answers(files: Sequence[Path], look: Look, folders: Mapping[str, str], unsure: float) -> Iterator[Row]:
    """Yield one row for each picture, put nowhere yet."""
    prediction, problems = look(files)
    position = 0
    for i, file in enumerate(files):
        if i in problems:
            yield Row(str(file), problem=" ".join(problems[i].split()))
            continue
        assert prediction is not None
        best, p = str(prediction.labels[position]), float(prediction.confidence[position])
        stranger = prediction.is_ood is not None and bool(prediction.is_ood[position])
        yield Row(
            str(file),
            folder=UNSURE if stranger or p < unsure else folders[best],
            answer=str(prediction.answers[position]),
            probability="" if stranger else f"{p:.6f}",
            ood_score="" if prediction.ood_score is None else f"{float(prediction.ood_score[position]):.6f}",
        )
        position += 1


def _put(source: Path, output: Path, folder: str, how: str, taken: set[str]) -> str:
    """Copy or link a picture under the first free name, and return where, relative to the output.

    What an interrupted run has put there and not reported any more is taken for its own: it is the same picture.
    """
    place = output / folder
    try:
        place.mkdir(exist_ok=True)
        for number in count(1):
            name = source.name if number == 1 else f"{source.stem} ({number}){source.suffix}"
            target, relative = place / name, f"{folder}/{name}"
            if _key(relative) in taken:
                continue
            if not os.path.lexists(target):
                try:
                    target.symlink_to(source) if how == "link" else copy_new(source, target)
                except FileExistsError:  # somebody else was faster
                    continue
            elif not _same(source, target, how):
                continue
            taken.add(_key(relative))
            return relative
    except OSError as error:
        advice = " On this system links may need a right of their own; --how copy does not." if how == "link" else ""
        raise DataError(explain(how, f"{source} into {place}", error) + "." + advice) from error
    raise AssertionError("unreachable")


def _same(source: Path, target: Path, how: str) -> bool:
    if how == "link":
        return target.is_symlink() and target.readlink() == source
    return target.is_file() and not target.is_symlink() and filecmp.cmp(source, target, shallow=False)


def _key(relative: str) -> str:
    """Return what is compared of names: some disks do not tell upper from lower case."""
    return relative.casefold()


def _modified(file: Path) -> str:
    try:
        return str(file.stat().st_mtime_ns)
    except OSError:  # decoding it has the better message
        return ""


def folder_names(class_names: Sequence[str]) -> dict[str, str]:
    """Return a folder's name for each class, valid on every system; no two are the same, and none is `UNSURE`."""
    found: dict[str, str] = {}
    taken = {_key(UNSURE)}
    for name in class_names:
        plain = _FORBIDDEN.sub("_", name)[:_LONGEST].strip(" ").rstrip(". ")
        if not plain or plain.startswith(".") or _RESERVED.fullmatch(plain):  # nothing, hidden, or a device
            plain = f"_{plain}"
        free = next(f for n in count(1) if _key(f := plain if n == 1 else f"{plain} ({n})") not in taken)
        taken.add(_key(free))
        found[name] = free
    return found


def pictures_to_sort(photos: Path, output: Path) -> list[Path]:
    """Return the absolute paths of all pictures under a folder, but for what lies in an output inside it."""
    inside, outside = Path(os.path.realpath(output)), Path(os.path.realpath(photos))
    if inside == outside:
        raise ConfigError(f"{photos} would be sorted into itself. Choose another folder with -o.")
    found = read_images(outside if photos.exists() else photos)  # who mistyped a path wants to see it as typed
    if inside.is_relative_to(outside):
        found = [path for path in found if not Path(os.path.realpath(path.parent)).is_relative_to(inside)]
    return list(dict.fromkeys(found))


def settings_of(adapter: Path, unsure: float, false_alarms: float) -> str:
    """Return what tells the answers of one adapter under these thresholds from others."""
    description = read_description(adapter)
    learned = description["tensors"]["sha256"], description["class_names"], description["templates"]
    return hashlib.sha256(json.dumps([learned, float(unsure), float(false_alarms)]).encode()).hexdigest()[:12]


def read_report(output: Path, settings: str) -> dict[str, Row]:
    """Return the rows of an earlier run by picture; none without one, nor where it only looked under other settings.

    Raises:
        ConfigError: pictures were put somewhere under other settings, or it is no such report.
    """
    path = output / REPORT
    if not path.exists():
        return {}
    try:
        text = path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise DataError(explain("read", path, error)) from error
    lines = list(csv.reader(io.StringIO(text, newline="")))
    if not lines or tuple(lines[0]) != COLUMNS or any(len(line) != len(COLUMNS) for line in lines):
        raise ConfigError(f"{path} is no report of `kalmanclip sort`. Choose another folder with -o.")
    rows = [Row(*line) for line in lines[1:]]
    if any(row.place and row.settings != settings for row in rows):
        raise ConfigError(
            f"{output} was sorted with another adapter, --unsure or --false-alarms: now a picture could end up in two "
            "folders. Choose a new folder with -o, or go on as before."
        )
    return {row.image: row for row in rows if row.settings == settings}


def write_report(output: Path, rows: Iterable[Row]) -> None:
    """Write the report, completely or not at all."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(map(astuple, rows))
    # names of files are bytes, and not always UTF-8
    write_atomic(output / REPORT, stream.getvalue().encode("utf-8", "surrogateescape"), DataError)

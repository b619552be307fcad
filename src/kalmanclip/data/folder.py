"""Find images on disk: a folder of class folders to learn from, any files and folders to predict."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kalmanclip.data.images import IMAGE_SUFFIXES
from kalmanclip.data.labelled import (
    LabelledImages,
    check_distinct,
    extend_classes,
    find_labels,
    natural_key,
    require_two_classes,
)
from kalmanclip.errors import DataError
from kalmanclip.files import check_path, decode_json

_EXAMPLE = """one folder per class, for example
  {root}/
    cat/    photo1.jpg  photo2.jpg
    dog/    photo3.jpg  photo4.jpg"""

_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}

# Made by archive programs and network disks next to real folders; hidden names are ignored anyway.
_NOT_OURS = {"__macosx", "@eadir"}


def read_folder(
    path: str | os.PathLike[str], class_names: Sequence[str] | None = None, known: Sequence[str] = ()
) -> LabelledImages:
    """Return the images of a folder of class folders; nothing is decoded yet.

    Every folder in `path` is a class, named by `class_name_from_folder`, and its images are all files under
    it, at any depth, whose names end in one of `IMAGE_SUFFIXES`. Hidden files and folders, other files, and
    files lying directly in `path` are ignored. Class names and files are in natural order: case-insensitive,
    numbers by value.

    Args:
        path: the folder.
        class_names: the C classes of an existing adapter. Folders are matched to them regardless of case,
            underscores and spaces, the result has exactly these names, and classes without a folder are fine.
        known: classes to which the folders may add, where `class_names` is not given: the result names these
            first, then the new ones.

    Raises:
        DataError: there is no such folder, it has no class folders or only one, a class folder has no images
            or an unknown name, or two of them mean the same class.
    """
    root = check_path(path, DataError)
    if not root.exists():
        raise DataError(f"the folder {root} does not exist; check the path")
    if not root.is_dir():
        raise DataError(f"{root} is a file, not a folder; give the folder that holds {_EXAMPLE.format(root='data')}")
    folders, files = entries(root)
    if not folders:
        lying = "images lie directly in it" if any(is_image_name(file.name) for file in files) else "it has none"
        raise DataError(f"{root} has no class folders ({lying}); make {_EXAMPLE.format(root=root.name or root)}")
    if all(folder.name.casefold() in _SPLITS and entries(folder)[0] for folder in folders):
        splits = ", ".join(folder.name for folder in folders)
        raise DataError(
            f"{root} holds the splits of a data set ({splits}), not its classes; "
            f"give one of them, for example {folders[-1]}"
        )
    names = [folder.name for folder in folders]
    check_distinct(names, "folder")
    if class_names is None:
        class_names = extend_classes(known, names)
        require_two_classes(class_names, str(root), f"If the class folders lie inside it, pass {folders[0]}")
    sources, labels = [], []
    # Labels before images: a wrong name is found without walking through a large folder.
    for folder, label in zip(folders, find_labels(names, class_names, "folder"), strict=True):
        images = image_files(folder)
        if not images:
            raise DataError(
                f"the class folder {folder} has no images{_what_else(folder)}; add some or remove the folder"
            )
        sources += images
        labels += [label] * len(images)
    return LabelledImages(list(sources), labels, list(class_names))


def read_images(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return image files for prediction from files, folders, or a list of both.

    A file is taken whatever its name; a folder stands for all images under it, in natural order. The order of
    the arguments stays, and so do repeats.

    Raises:
        DataError: nothing was given, a path does not exist, or a folder has no images under it.
    """
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    found: list[Path] = []
    for path in (check_path(path, DataError) for path in paths):
        if not path.exists() and not path.is_symlink():  # a broken link is reported when it is opened
            pattern = " (patterns like *.jpg are the shell's business: list files or give a folder)"
            raise DataError(f"{path} does not exist; check the path{pattern if '*' in str(path) else ''}")
        images = image_files(path) if path.is_dir() else [path]
        if not images:
            raise DataError(f"the folder {path} has no images{_what_else(path)}; give image files or a folder of them")
        found += images
    if not found:
        raise DataError("no images were given; give image files or a folder of them")
    return found


def _what_else(folder: Path) -> str:
    """Say which files there are instead of images, since a folder of .heic photos does not look empty."""
    others = Counter(file.suffix.lower() or file.name for file in entries(folder)[1])
    if not others:
        return ""
    kinds = sorted(others, key=natural_key)[:5]
    return f" (only {', '.join(kinds)} files; images end in {', '.join(IMAGE_SUFFIXES)})"


def is_image_name(name: str) -> bool:
    """Tell by its ending whether a file name is an image's; hidden files (and macOS's "._x.jpg") are not."""
    return not name.startswith(".") and name.lower().endswith(IMAGE_SUFFIXES)


def entries(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the subfolders and the other entries of `folder`, hidden ones left out, each in natural order."""
    try:
        listed = sorted(folder.iterdir(), key=lambda path: natural_key(path.name))
    except OSError as error:
        raise DataError(
            f"cannot list the folder {folder}: {error.strerror}; check its permissions and the path"
        ) from error
    shown = [path for path in listed if not path.name.startswith(".") and path.name.lower() not in _NOT_OURS]
    return [path for path in shown if path.is_dir()], [path for path in shown if not path.is_dir()]


def image_files(folder: Path) -> list[Path]:
    """Return all files under `folder` named like images: in natural order, files before subfolders.

    Links to folders are followed, but no real folder is entered twice, nor one that contains `folder`. A
    broken link that is named like an image is listed, so that opening it says what is missing instead of it
    being lost silently.
    """
    found: list[Path] = []
    to_enter = [folder]
    entered = set(Path(os.path.realpath(folder)).parents)
    while to_enter:
        inner = to_enter.pop()
        resolved = Path(os.path.realpath(inner))
        if resolved not in entered:
            entered.add(resolved)
            folders, files = entries(inner)
            found += [path for path in files if is_image_name(path.name)]
            to_enter += reversed(folders)
    return found


def read_text(path: Path) -> str:
    """Return the text of a file."""
    try:
        return path.read_text(encoding="utf-8-sig")  # some programs begin UTF-8 files with a mark
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; unpack or download the data set again") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}); unpack or download it again") from error


def parse_json(text: str, where: str | Path) -> Any:
    """Return what a JSON text means; `where` says in the message where it stands."""
    try:
        return decode_json(text)
    except ValueError as error:
        raise DataError(f"{where} is not JSON ({error}); correct it, or download it again") from error

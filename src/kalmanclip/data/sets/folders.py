"""Data sets that are folders of class folders."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from kalmanclip.data.names import class_name_from_folder
from kalmanclip.data.sets.description import Reader
from kalmanclip.data.sets.files import first_existing
from kalmanclip.data.sets.views import OURS, Item, Views, make_views, three_way
from kalmanclip.data.walk import entries, image_files
from kalmanclip.errors import DataError


def class_folders(folder: Path) -> list[Path]:
    """Return the class folders in plain alphabetical order, which is the order of everybody's labels."""
    found = sorted(entries(folder)[0], key=lambda path: path.name)
    if not found:
        raise DataError(f"{folder} has no class folders; unpack or download the data set again")
    return found


def folder_items(folders: Iterable[Path], label_of: Callable[[str], int]) -> list[Item]:
    """Return the images of class folders with the labels that `label_of` gives for the folders' names."""
    labels = [(folder, label_of(folder.name)) for folder in folders]
    return [(image, label) for folder, label in labels for image in image_files(folder)]


def unsplit_folders(
    images: tuple[str, ...], rename: Mapping[str, str], ignored: frozenset[str] = frozenset()
) -> Reader:
    """Return a reader for one folder per class and no published split.

    Args:
        images: where the class folders may lie.
        rename: class names in plain English, by folder name.
        ignored: folders that are no classes.
    """

    def read(folder: Path, variant: str | None) -> Views:
        folders = [path for path in class_folders(first_existing(folder, images)) if path.name not in ignored]
        keys = [path.name for path in folders]
        names = [class_name_from_folder(rename.get(key, key)) for key in keys]
        train, val, test = three_way(folder_items(folders, keys.index))
        return make_views(names, train, val, test, split=OURS)

    return read

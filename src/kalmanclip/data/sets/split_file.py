"""CoOp's split files, `split_zhou_<Dataset>.json`: lists of [relative path, label, class name] for each part."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kalmanclip.data.names import class_name_from_folder
from kalmanclip.data.sets.files import read_json
from kalmanclip.data.sets.views import PARTS, SPLIT_FILE, Item, Views, make_views
from kalmanclip.errors import DataError


def read_split_file(path: Path, images: Path, rename: Mapping[str, str]) -> Views:
    """Return the parts that a split file lists.

    Args:
        path: the split file.
        images: the folder where its paths start.
        rename: class names to replace by others; underscores become spaces in all of them.

    Raises:
        DataError: the file does not have the expected form, or its labels contradict each other.
    """
    content = read_json(path)
    if not isinstance(content, dict) or not all(isinstance(content.get(part), list) for part in PARTS):
        raise DataError(f"{path} must hold the lists train, val and test; download it again")
    names: dict[int, str] = {}
    parts: dict[str, list[Item]] = {part: [] for part in PARTS}
    for part in PARTS:
        for number, row in enumerate(content[part]):
            relative, label, name = _checked(row, f"entry {number} of {part!r} in {path}")
            if names.setdefault(label, name) != name:
                raise DataError(f"{path} calls label {label} both {names[label]!r} and {name!r}; download it again")
            parts[part].append((images / relative, label))
    missing = sorted(set(range(len(names))) - set(names))
    if missing:
        raise DataError(f"{path} has labels up to {max(names)} but none that is {missing[0]}; download it again")
    ordered = [class_name_from_folder(rename.get(names[label], names[label])) for label in range(len(names))]
    return make_views(ordered, **parts, split=SPLIT_FILE)


def _checked(row: Any, where: str) -> tuple[str, int, str]:
    match row:
        case [str(relative), int(label), str(name)] if label >= 0:
            return relative, label, name
    raise DataError(f"{where} is {row!r} instead of [relative path, label, class name]; download the file again")

"""What the catalog knows about a data set before any of its files is opened, and what most readers have in common."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from kalmanclip.data.folder import entries, image_files, parse_json, read_text
from kalmanclip.data.labelled import class_name_from_folder
from kalmanclip.data.prompts import DEFAULT_TEMPLATES, validate_templates
from kalmanclip.data.splits import OURS, SPLIT_FILE, SPLITS, Item, Splits, make_splits, train_val_test
from kalmanclip.errors import DataError

Reader: TypeAlias = Callable[[Path, str | None], Splits]
"""From the data set's folder, and a variant where there are several, to its splits."""


@dataclass(frozen=True)
class Download:
    """How torchvision fetches a data set.

    Attributes:
        loader: the name of a class in `torchvision.datasets`.
        calls: the arguments of each call that is needed to get everything.
        inside: the folder under the root that torchvision is given as its own root ("" for the root itself).
    """

    loader: str
    calls: tuple[Mapping[str, Any], ...] = ({},)
    inside: str = ""


@dataclass(frozen=True, eq=False)
class DataSet:
    """One data set.

    Attributes:
        name: what users type.
        title: what people call it.
        classes: the number of classes.
        folders: where it may lie under the root; the first that exists is taken.
        counts: the number of images by where the splits came from (`splits.SPLIT_FILE`, ...), then by split. Splits
            that we cut out of each other are counted together: "train+val".
        licence: in a few words.
        read: reads the data set's own layout; None: one folder per class in `images`, and no published split.
        instructions: how to get it, or what else to know for that, in full sentences.
        templates: prompt templates.
        split_file: the name of CoOp's split file, used when it is there.
        images: where the class folders lie, or the paths in the split file start, under the folder; the first that
            exists is taken.
        rename: class names in plain English instead of those of the class folders or in the split file.
        ignored: folders that are no classes.
        download: how torchvision gets it, if it can.
        variants: the versions there are.
        variant: the version to read unless another is asked for.
    """

    name: str
    title: str
    classes: int
    folders: tuple[str, ...]
    counts: Mapping[str, Mapping[str, int]]
    licence: str
    read: Reader | None = None
    instructions: str = ""
    templates: tuple[str, ...] = DEFAULT_TEMPLATES
    split_file: str | None = None
    images: tuple[str, ...] = ("",)
    rename: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    download: Download | None = None
    variants: tuple[str, ...] = ()
    variant: str | None = None

    def __post_init__(self) -> None:
        validate_templates(self.templates)

    @property
    def obtain(self) -> str:
        """How to get it, in full sentences."""
        automatic = f"`kalmanclip data get {self.name}` downloads it with torchvision."
        split_file = f"To compare with published few-shot results, put CoOp's {self.split_file} into its folder."
        sentences = (automatic * bool(self.download), self.instructions, split_file * bool(self.split_file))
        return " ".join(filter(None, sentences))

    def find(self, root: Path) -> Path | None:
        """Return the data set's folder under `root`, if it is there."""
        return next((root / folder for folder in self.folders if (root / folder).is_dir()), None)

    def read_splits(self, folder: Path, variant: str | None) -> Splits:
        """Return the splits in the data set's folder: of the split file if it is there, else of its own layout."""
        if self.split_file is not None and (folder / self.split_file).is_file():
            splits = read_split_file(folder / self.split_file, first_existing(folder, self.images), self.rename)
        elif self.read is not None:
            splits = self.read(folder, variant)
        else:
            folders = [f for f in class_folders(first_existing(folder, self.images)) if f.name not in self.ignored]
            keys = [path.name for path in folders]
            names = [class_name_from_folder(self.rename.get(key, key)) for key in keys]
            splits = make_splits(names, *train_val_test(folder_items(folders, keys.index)), origin=OURS)
        return replace(splits, templates=self.templates)


def read_split_file(path: Path, images: Path, rename: Mapping[str, str]) -> Splits:
    """Return the splits of one of CoOp's files: lists of [path under `images`, label, class name]."""
    content = parse_json(read_text(path), path)
    if not isinstance(content, dict) or not all(isinstance(content.get(split), list) for split in SPLITS):
        raise DataError(f"{path} must hold the lists train, val and test; download it again")
    names: dict[int, str] = {}
    items: dict[str, list[Item]] = {split: [] for split in SPLITS}
    for split in SPLITS:
        for number, row in enumerate(content[split]):
            match row:
                case [str(relative), int(label), str(name)] if label >= 0:
                    pass
                case _:
                    where = f"entry {number} of {split!r} in {path}"
                    raise DataError(f"{where} is {row!r} instead of [relative path, label, class name]; get it again")
            if names.setdefault(label, name) != name:
                raise DataError(f"{path} calls label {label} both {names[label]!r} and {name!r}; download it again")
            items[split].append((images / relative, label))
    ordered = [class_name_from_folder(rename.get(name, name)) for name in in_label_order(names, path)]
    return make_splits(ordered, items["train"], items["val"], items["test"], origin=SPLIT_FILE)


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


def first_existing(folder: Path, candidates: Sequence[str]) -> Path:
    """Return the first of `candidates` under `folder` that exists."""
    for candidate in candidates:
        if (folder / candidate).exists():
            return folder / candidate
    wanted = " or ".join(candidate or "." for candidate in candidates)
    raise DataError(f"{folder} has no {wanted}; the data set is not complete, unpack or download it again")


def read_rows(path: Path, columns: int, separator: str | None = None) -> Iterator[list[str]]:
    """Yield the lines of a file in `columns` pieces (the last one keeps its spaces); empty lines are skipped."""
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        pieces = line.strip().split(separator, columns - 1)
        if len(pieces) != columns:
            raise DataError(
                f"line {number} of {path} is {line!r}, but {columns} columns are expected; unpack or download it again"
            )
        yield pieces


def whole(text: str, path: Path) -> int:
    """Return a whole number that a file holds."""
    try:
        return int(text)
    except ValueError:
        raise DataError(f"{path} has {text!r} where a number is expected; unpack or download it again") from None


def read_object(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file that holds an object."""
    content = parse_json(read_text(path), path)
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__} instead of names and values; download it again")
    return content


def read_mat(path: Path, name: str) -> np.ndarray:
    """Return one array of a MATLAB file."""
    from scipy.io import loadmat  # type: ignore[import-untyped]

    if not path.is_file():
        raise DataError(f"{path} is missing; unpack or download the data set again")
    try:
        return np.atleast_1d(loadmat(path, squeeze_me=True)[name])
    except Exception as error:  # a damaged file provokes nearly every type there is
        raise DataError(f"{path} is damaged ({error}); download it again") from error


def in_label_order(names: Mapping[int, str], where: Path) -> list[str]:
    """Return names by label as a list; `where` says in the message which file lacks one."""
    for label in range(len(names)):
        if label not in names:
            raise DataError(f"{where} has {len(names)} classes but none with the label {label}; download it again")
    return [names[label] for label in range(len(names))]


def find_label(key: str, keys: Sequence[str], where: Path) -> int:
    """Return the position of `key` in the list of classes; `where` says in the message which file has it."""
    try:
        return keys.index(key)
    except ValueError:
        raise DataError(f"{where} has the class {key!r}, which the list of classes lacks; download it again") from None


def counts(train: int, val: int, test: int) -> dict[str, int]:
    """Return the numbers of images by split."""
    return {"train": train, "val": val, "test": test}

"""Data sets as people spell them: a registered name, a folder, a list, a data set of the Hugging Face hub.

| spelling | meaning |
| --- | --- |
| ``eurosat`` | a registered data set (`registry.DATA_SETS`), under the root |
| ``imagenet_c:fog/3`` | a variant of one |
| ``photos/`` | a folder with ``train/`` and ``test/`` (and ``val/``, if any) of class folders |
| ``train_folder:test_folder`` | two folders of class folders |
| ``photos.csv``, ``.json``, ``.jsonl`` | a list (`lists.read_list`) |
| ``hf:...`` | a data set of the hub (`hugging_face.read_hugging_face`) |
| ``NAME=...`` | any of these, under a name of one's own |
"""

import os
import re
from pathlib import Path

from kalmanclip.data import lists
from kalmanclip.data.folder import read_folder
from kalmanclip.data.hugging_face import PREFIX as HUB
from kalmanclip.data.hugging_face import read_hugging_face
from kalmanclip.data.registry import DATA_SETS, Views, find_dataset, load_dataset
from kalmanclip.data.shot_lists import read_shot_lists
from kalmanclip.errors import ConfigError, DataError

_OWN_NAME = re.compile(r"([^/\\:=,{}]+)=(.+)", re.DOTALL)


def split_name(spelling: str) -> tuple[str | None, str]:
    """Return the name that a spelling gives itself, if any, and the rest: ``pets=photos/`` is "pets", "photos/"."""
    match = None if spelling.startswith(HUB) or Path(spelling).exists() else _OWN_NAME.fullmatch(spelling)
    return (match[1].strip(), match[2]) if match else (None, spelling)


def data_name(spelling: str) -> str:
    """Return what a data set is called in tables: its own name, the registry's, or the folder's or file's."""
    name, place = split_name(spelling)
    if name is not None:
        return name
    if is_registered(place):
        word, _, variant = place.partition(":")
        return find_dataset(word).name + (f":{variant}" if variant else "")
    if place.startswith(HUB):
        return place.removeprefix(HUB).partition("?")[0].rstrip("/").rsplit("/", 1)[-1]
    pair = _pair(place)
    path = (pair[0] if pair else Path(place).expanduser()).resolve()
    return path.stem if is_list(place) else path.name


def is_registered(place: str) -> bool:
    """Whether this is a name of the registry; a folder of that name is meant by ``./name``."""
    return place.partition(":")[0].lower().replace("-", "_") in DATA_SETS


def is_list(place: str) -> bool:
    """Whether this is a list of images, by its ending; a folder may be called so, too."""
    return lists.is_list(place) and not Path(place).is_dir()


def brings_classes(place: str) -> bool:
    """Whether the data set has class names of its own, rather than those that its folders or rows happen to show."""
    return place.startswith(HUB) or is_registered(place)


def read_data(spelling: str, root: str | os.PathLike[str] | None = None) -> Views:
    """Return the parts of a data set; no image is opened.

    Args:
        spelling: see the table above.
        root: where the registered data sets lie; see `registry.data_root`.

    Raises:
        ConfigError: there is no such name.
        DataError: the data set is not there, or not complete.
    """
    _, place = split_name(spelling)
    if place.startswith(HUB):
        return read_hugging_face(place)
    if is_registered(place):
        word, _, variant = place.partition(":")
        try:
            return load_dataset(word, root, variant=variant or None)
        except DataError as error:
            if not Path(place).is_dir():
                raise
            raise DataError(f"{error}. If you mean the folder {place} here, write ./{place}") from error
    if is_list(place):
        return lists.read_list(Path(place).expanduser())
    pair = _pair(place)
    return _read_pair(*pair) if pair else _read_parts(existing_folder(place))


def existing_folder(place: str) -> Path:
    """Return a folder, or say what was probably meant."""
    folder = Path(place).expanduser()
    if folder.is_dir():
        return folder
    if folder.name == place:  # one word: a mistyped name rather than a path
        try:
            find_dataset(place)
        except ConfigError as error:
            raise ConfigError(f"{error}; and there is no folder of that name either") from error
    raise DataError(f"There is no folder {folder}. Check the path, or give one of: {', '.join(DATA_SETS)}.")


def _pair(place: str) -> tuple[Path, Path] | None:
    """The two folders of ``train:test``; a colon may also be part of a path."""
    if Path(place).expanduser().exists():
        return None
    cuts = [match.start() for match in re.finditer(":", place)]
    pairs = [(Path(place[:cut]).expanduser(), Path(place[cut + 1 :]).expanduser()) for cut in cuts]
    return next((pair for pair in pairs if all(folder.is_dir() for folder in pair)), None)


def _read_pair(train: Path, test: Path) -> Views:
    images = read_folder(train)
    return Views(images, None, read_folder(test, images.class_names))


def _read_parts(folder: Path) -> Views:
    missing = [part for part in ("train", "test") if not (folder / part).is_dir()]
    if missing:
        raise DataError(
            f"{folder} has no folder {missing[0]}/. A data set to compare on is a folder with train/ and test/ "
            "(and val/, if there is one), each with one folder per class; or two folders, spelled train:test."
        )
    train = read_folder(folder / "train")
    val = read_folder(folder / "val", train.class_names) if (folder / "val").is_dir() else None
    test = read_folder(folder / "test", train.class_names)
    return Views(train, val, test, shot_lists=read_shot_lists(folder, train))

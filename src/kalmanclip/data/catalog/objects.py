"""Objects, textures and actions: Caltech-101, DTD, UCF101."""

import re
from pathlib import Path

from kalmanclip.data.catalog.base import (
    DataSet,
    Download,
    counts,
    in_label_order,
    read_rows,
    unsplit_folders,
    whole,
)
from kalmanclip.data.labelled import class_name_from_folder
from kalmanclip.data.splits import OURS, PUBLISHED, SPLIT_FILE, SPLITS, Item, Splits, make_splits, train_val
from kalmanclip.errors import DataError

_CALTECH_NAMES = {"airplanes": "airplane", "Faces": "face", "Leopards": "leopard", "Motorbikes": "motorbike"}


def read_dtd(folder: Path, variant: str | None) -> Splits:
    """Read DTD: labels/{train,val,test}<partition>.txt, lines "banded/banded_0002.jpg"."""
    base = folder if (folder / "labels").is_dir() else folder / "dtd"  # torchvision's archive has a folder in it
    rows = {
        split: [row[0].split("/") for row in read_rows(base / "labels" / f"{split}{variant}.txt", 1)]
        for split in SPLITS
    }
    keys = sorted({key for found in rows.values() for key, *_ in found})
    items = {
        split: [(base.joinpath("images", *row), keys.index(row[0])) for row in found] for split, found in rows.items()
    }
    return make_splits(list(map(class_name_from_folder, keys)), items["train"], items["val"], items["test"])


def read_ucf(folder: Path, variant: str | None) -> Splits:
    """Read UCF101, the middle frame of each video: ucfTrainTestlist/{trainlist01,testlist01}.txt, classInd.txt."""
    lists = folder / "ucfTrainTestlist"
    path = lists / "classInd.txt"
    keys = {key: whole(number, path) - 1 for number, key in read_rows(path, 2)}

    def items(file: str) -> list[Item]:
        found: list[Item] = []
        for (row,) in read_rows(lists / file, 1):
            key, _, video = row.split()[0].partition("/")  # the training list also has the label
            if key not in keys or not video:
                raise DataError(f"{lists / file} has the class {key!r}, which classInd.txt lacks; download it again")
            place = "_".join(_words(key))
            found.append((folder / "UCF-101-midframes" / place / Path(video).with_suffix(".jpg"), keys[key]))
        return found

    train, val = train_val(items("trainlist01.txt"))
    names = {label: " ".join(_words(key)) for key, label in keys.items()}
    return make_splits(in_label_order(names, path), train, val, items("testlist01.txt"))


def _words(key: str) -> list[str]:
    """ "ApplyEyeMakeup" -> Apply, Eye, Makeup."""
    return re.findall("[A-Z][^A-Z]*", key) or [key]


DATA_SETS = (
    DataSet(
        name="caltech101",
        title="Caltech-101",
        classes=100,
        folders=("caltech-101", "caltech101"),
        read=unsplit_folders(
            ("101_ObjectCategories",), _CALTECH_NAMES, ignored=frozenset({"BACKGROUND_Google", "Faces_easy"})
        ),
        counts={SPLIT_FILE: counts(4128, 1649, 2465), OURS: {"train+val+test": 8242}},
        licence="CC BY 4.0",
        instructions="As in CoOp, background and Faces_easy are left out: 100 classes.",
        split_file="split_zhou_Caltech101.json",
        images=("101_ObjectCategories",),
        rename=_CALTECH_NAMES,
        download=Download("Caltech101"),
    ),
    DataSet(
        name="dtd",
        title="Describable Textures",
        classes=47,
        folders=("dtd",),
        read=read_dtd,
        counts={SPLIT_FILE: counts(2820, 1128, 1692), PUBLISHED: counts(1880, 1880, 1880)},
        licence="research",
        templates=("{} texture.",),
        split_file="split_zhou_DescribableTextures.json",
        images=("images", "dtd/images"),
        download=Download("DTD"),
        variants=tuple(str(partition) for partition in range(1, 11)),
        variant="1",
    ),
    DataSet(
        name="ucf101",
        title="UCF101 (middle frames)",
        classes=101,
        folders=("ucf101",),
        read=read_ucf,
        counts={SPLIT_FILE: counts(7639, 1898, 3783), PUBLISHED: {"train+val": 9537, "test": 3783}},
        licence="not stated; research",
        instructions="Get UCF-101-midframes.zip as CoOp's instructions say (the middle frame of every video), and "
        "unpack it to ucf101/UCF-101-midframes/; put ucfTrainTestlist/ of the UCF101 site next to it.",
        templates=("a photo of a person doing {}.",),
        split_file="split_zhou_UCF101.json",
        images=("UCF-101-midframes",),
    ),
)

"""Objects, textures, actions, scenes and small images: Caltech-101, DTD, UCF101, SUN397, EuroSAT, MNIST and others."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kalmanclip.data.catalog.base import (
    DataSet,
    Download,
    Reader,
    counts,
    find_label,
    first_existing,
    in_label_order,
    read_rows,
    whole,
)
from kalmanclip.data.folder import image_files
from kalmanclip.data.labelled import class_name_from_folder
from kalmanclip.data.splits import (
    OURS,
    PUBLISHED,
    SPLIT_FILE,
    SPLITS,
    Item,
    Splits,
    make_splits,
    train_val,
    train_val_test,
)
from kalmanclip.errors import DataError


def read_dtd(folder: Path, variant: str | None) -> Splits:
    """Read DTD: labels/{train,val,test}<partition>.txt, lines "banded/banded_0002.jpg"."""
    base = first_existing(folder, ("labels", "dtd/labels")).parent  # torchvision's archive has a folder in it
    rows = {split: [row for (row,) in read_rows(base / "labels" / f"{split}{variant}.txt", 1)] for split in SPLITS}
    keys = sorted({row.split("/")[0] for found in rows.values() for row in found})
    train, val, test = (
        [(base / "images" / row, keys.index(row.split("/")[0])) for row in rows[split]] for split in SPLITS
    )
    return make_splits(list(map(class_name_from_folder, keys)), train, val, test)


def read_ucf(folder: Path, variant: str | None) -> Splits:
    """Read UCF101, the middle frame of each video: ucfTrainTestlist/{trainlist01,testlist01}.txt, classInd.txt."""
    lists = folder / "ucfTrainTestlist"
    path = lists / "classInd.txt"
    numbers = {whole(number, path) - 1: key for number, key in read_rows(path, 2)}
    keys = in_label_order(numbers, path)
    names = [" ".join(re.findall("[A-Z][^A-Z]*", key)) or key for key in keys]  # ApplyEyeMakeup: Apply Eye Makeup

    def items(file: str) -> list[Item]:
        found: list[Item] = []
        for (row,) in read_rows(lists / file, 1):
            key, _, video = row.split()[0].partition("/")  # the training list also has the label
            if not video:
                raise DataError(f"{lists / file} has the class {key!r} without a video; download it again")
            label = find_label(key, keys, lists / file)
            place = folder / "UCF-101-midframes" / names[label].replace(" ", "_")
            found.append((place / Path(video).with_suffix(".jpg"), label))
        return found

    return make_splits(names, *train_val(items("trainlist01.txt")), items("testlist01.txt"))


def read_sun(folder: Path, variant: str | None) -> Splits:
    """Read SUN397: ClassName.txt; split by Training_01.txt and Testing_01.txt if they are there, else by us."""
    base = first_existing(folder, ("SUN397", ""))
    keys = [key for (key,) in read_rows(first_existing(folder, ("ClassName.txt", "SUN397/ClassName.txt")), 1)]
    names = list(map(_scene_name, keys))

    def items(path: Path) -> list[Item]:
        rows = [row for (row,) in read_rows(path, 1)]
        return [(base / row.lstrip("/"), find_label(row.rsplit("/", 1)[0], keys, path)) for row in rows]

    for place in (folder, base):
        if (place / "Training_01.txt").is_file():
            return make_splits(names, *train_val(items(place / "Training_01.txt")), items(place / "Testing_01.txt"))
    everything: list[Item] = []
    for label, key in enumerate(keys):
        own = base / key[1:]
        if not own.is_dir():
            raise DataError(f"{base} has no folder {key[1:]}, which ClassName.txt names; unpack the data set again")
        # The folders of some classes lie inside those of others.
        inner = {base / other[1:] for other in keys if other.startswith(f"{key}/")}
        everything += [(path, label) for path in image_files(own) if not inner & set(path.parents)]
    return make_splits(names, *train_val_test(everything), origin=OURS)


def read_places(folder: Path, variant: str | None) -> Splits:
    """Read Places365: lists of the development kit; the published val has labels and becomes test (test has none)."""
    path = folder / "categories_places365.txt"
    names = {whole(label, path): _scene_name(key) for key, label in read_rows(path, 2)}

    def items(split: str, images: Path) -> list[Item]:
        lines = folder / f"places365_{split}.txt"
        return [(images / image.lstrip("/"), whole(label, lines)) for image, label in read_rows(lines, 2)]

    # Who only wants to measure need not have the 1.8 million images for training.
    sizes = [folder / f"data_{size}_standard" for size in ("256", "large")]
    train_images = next((path for path in sizes if path.is_dir()), None)
    train = items("train_standard", train_images) if train_images is not None else None
    test = items("val", first_existing(folder, ("val_256", "val_large")))
    return make_splits(in_label_order(names, folder), train, test=test)


def _scene_name(key: str) -> str:
    """ "/a/apartment_building/outdoor" -> "outdoor apartment building"."""
    return class_name_from_folder(" ".join(reversed(key.strip("/").split("/")[1:])))


def torchvision_arrays(loader: str, class_names: Sequence[str] | None = None) -> Reader:
    """Return a reader for `torchvision.datasets.<loader>`; `class_names` are better than torchvision's own."""

    def read(folder: Path, variant: str | None) -> Splits:
        import torchvision

        try:
            train, test = (getattr(torchvision.datasets, loader)(folder.parent, train=part) for part in (True, False))
        except Exception as error:  # torchvision's reading of damaged files fails in many ways
            raise DataError(
                f"torchvision cannot read {folder} ({error}); remove the folder and download it again"
            ) from error
        items = [list(zip(np.asarray(part.data), map(int, part.targets), strict=True)) for part in (train, test)]
        return make_splits(class_names or [name.replace("_", " ") for name in train.classes], items[0], test=items[1])

    return read


DATA_SETS = (
    DataSet(
        name="caltech101",
        title="Caltech-101",
        classes=100,
        folders=("caltech-101", "caltech101"),
        counts={SPLIT_FILE: counts(4128, 1649, 2465), OURS: {"train+val+test": 8242}},
        licence="CC BY 4.0",
        instructions="As in CoOp, background and Faces_easy are left out: 100 classes.",
        split_file="split_zhou_Caltech101.json",
        images=("101_ObjectCategories",),
        rename={"airplanes": "airplane", "Faces": "face", "Leopards": "leopard", "Motorbikes": "motorbike"},
        ignored=("BACKGROUND_Google", "Faces_easy"),
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
    DataSet(
        name="sun397",
        title="SUN397",
        classes=397,
        folders=("sun397", "SUN397"),
        read=read_sun,
        counts={
            SPLIT_FILE: counts(15_880, 3970, 19_850),
            PUBLISHED: {"train+val": 19_850, "test": 19_850},
            OURS: {"train+val+test": 108_754},
        },
        licence="research; the images belong to their owners",
        instructions="To split it as its authors do, put Training_01.txt and Testing_01.txt of Partitions.zip there.",
        split_file="split_zhou_SUN397.json",
        images=("SUN397", ""),
        download=Download("SUN397"),
    ),
    DataSet(
        name="places365",
        title="Places365 (standard)",
        classes=365,
        folders=("places365",),
        read=read_places,
        counts={PUBLISHED: {"train": 1_803_460, "test": 36_500}},
        licence="research, non-commercial; the images belong to their owners",
        instructions="The small version is about 25 GB. Its labelled val split is our test split.",
        download=Download(
            "Places365",
            calls=({"split": "val", "small": True}, {"split": "train-standard", "small": True}),
            inside="places365",
        ),
    ),
    DataSet(
        name="eurosat",
        title="EuroSAT (RGB)",
        classes=10,
        folders=("eurosat", "EuroSAT"),
        counts={SPLIT_FILE: counts(13_500, 5400, 8100), OURS: {"train+val+test": 27_000}},
        licence="MIT",
        templates=("a centered satellite photo of {}.",),
        split_file="split_zhou_EuroSAT.json",
        images=("2750", "EuroSAT_RGB"),
        rename={
            "AnnualCrop": "Annual Crop Land",
            "HerbaceousVegetation": "Herbaceous Vegetation Land",
            "Highway": "Highway or Road",
            "Industrial": "Industrial Buildings",
            "Pasture": "Pasture Land",
            "PermanentCrop": "Permanent Crop Land",
            "Residential": "Residential Buildings",
            "SeaLake": "Sea or Lake",
        },
        download=Download("EuroSAT"),
    ),
    DataSet(
        name="mnist",
        title="MNIST",
        classes=10,
        folders=("MNIST", "mnist/MNIST"),
        read=torchvision_arrays("MNIST", [str(digit) for digit in range(10)]),
        counts={PUBLISHED: {"train": 60_000, "test": 10_000}},
        licence="CC BY-SA 3.0",
        download=Download("MNIST"),
    ),
    DataSet(
        name="fashion_mnist",
        title="Fashion-MNIST",
        classes=10,
        folders=("FashionMNIST", "fashion_mnist/FashionMNIST"),
        read=torchvision_arrays(
            "FashionMNIST",
            ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
        ),
        counts={PUBLISHED: {"train": 60_000, "test": 10_000}},
        licence="MIT",
        download=Download("FashionMNIST"),
    ),
    DataSet(
        name="cifar10",
        title="CIFAR-10",
        classes=10,
        folders=("cifar-10-batches-py", "cifar10/cifar-10-batches-py"),
        read=torchvision_arrays("CIFAR10"),
        counts={PUBLISHED: {"train": 50_000, "test": 10_000}},
        licence="not stated; research",
        download=Download("CIFAR10"),
    ),
    DataSet(
        name="cifar100",
        title="CIFAR-100",
        classes=100,
        folders=("cifar-100-python", "cifar100/cifar-100-python"),
        read=torchvision_arrays("CIFAR100"),
        counts={PUBLISHED: {"train": 50_000, "test": 10_000}},
        licence="not stated; research",
        download=Download("CIFAR100"),
    ),
)

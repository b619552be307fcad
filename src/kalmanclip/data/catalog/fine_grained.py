"""Kinds of one thing: pets, food, flowers, cars, aircraft."""

from pathlib import Path

from kalmanclip.data.catalog.base import (
    DataSet,
    Download,
    counts,
    find_label,
    first_existing,
    in_label_order,
    read_mat,
    read_object,
    read_rows,
    whole,
)
from kalmanclip.data.labelled import class_name_from_folder
from kalmanclip.data.splits import PUBLISHED, SPLIT_FILE, Item, Splits, make_splits, train_val
from kalmanclip.errors import DataError


def read_pets(folder: Path, variant: str | None) -> Splits:
    """Read Oxford-IIIT Pet: annotations/{trainval,test}.txt, lines "Abyssinian_100 1 1 1"; labels start at 1."""
    names: dict[int, str] = {}
    items: dict[str, list[Item]] = {"trainval": [], "test": []}
    for split, found in items.items():
        path = folder / "annotations" / f"{split}.txt"
        for image, number, _, _ in read_rows(path, 4):
            label = whole(number, path) - 1
            names[label] = class_name_from_folder(image.rsplit("_", 1)[0]).lower()
            found.append((folder / "images" / f"{image}.jpg", label))
    return make_splits(in_label_order(names, folder), *train_val(items["trainval"]), items["test"])


def read_food(folder: Path, variant: str | None) -> Splits:
    """Read Food-101: meta/{train,test}.json, {"apple_pie": ["apple_pie/1005649", ...]}."""
    lists = {split: read_object(folder / "meta" / f"{split}.json") for split in ("train", "test")}
    keys = sorted(lists["train"])

    def items(split: str) -> list[Item]:
        return [
            (folder / "images" / f"{image}.jpg", find_label(key, keys, folder / "meta" / f"{split}.json"))
            for key, images in sorted(lists[split].items())
            for image in images
        ]

    return make_splits(list(map(class_name_from_folder, keys)), *train_val(items("train")), items("test"))


def read_flowers(folder: Path, variant: str | None) -> Splits:
    """Read Flowers102: imagelabels.mat, setid.mat; names from cat_to_name.json if it is there, else torchvision's."""
    labels = read_mat(folder / "imagelabels.mat", "labels")
    names = _flower_names(folder)

    def items(key: str) -> list[Item]:
        found: list[Item] = []
        for number in map(int, read_mat(folder / "setid.mat", key)):
            if not 1 <= number <= len(labels):
                raise DataError(f"{folder / 'setid.mat'} lists image {number}, which has no label; download it again")
            found.append((folder / "jpg" / f"image_{number:05d}.jpg", int(labels[number - 1]) - 1))
        return found

    return make_splits(names, items("trnid"), items("valid"), items("tstid"))


def _flower_names(folder: Path) -> list[str]:
    path = folder / "cat_to_name.json"
    if path.is_file():
        content = read_object(path)
        return in_label_order({whole(number, path) - 1: str(name) for number, name in content.items()}, path)
    import torchvision

    names = getattr(torchvision.datasets.Flowers102, "classes", None)
    if names is None:  # older than 0.21
        raise DataError(f"{folder} has no cat_to_name.json with the flowers' names, nor has this torchvision; get one")
    return [str(name).rstrip("?") for name in names]


def read_cars(folder: Path, variant: str | None) -> Splits:
    """Read Stanford Cars: MATLAB lists; "Audi TT Hatchback 2011" becomes "2011 Audi TT Hatchback", as in CoOp."""
    names = [
        " ".join([words[-1], *words[:-1]])
        for words in (str(name).split() for name in read_mat(folder / "devkit" / "cars_meta.mat", "class_names"))
    ]

    def items(images: str, annotations: str) -> list[Item]:
        rows = read_mat(folder / annotations, "annotations")
        return [(folder / images / str(row["fname"]), int(row["class"]) - 1) for row in rows]

    train = items("cars_train", "devkit/cars_train_annos.mat")
    return make_splits(names, *train_val(train), items("cars_test", "cars_test_annos_withlabels.mat"))


def read_aircraft(folder: Path, variant: str | None) -> Splits:
    """Read FGVC-Aircraft: images_variant_{train,val,test}.txt, lines "1025794 707-320"; classes in variants.txt."""
    base = first_existing(folder, ("data", ""))
    names = [row[0] for row in read_rows(base / "variants.txt", 1)]

    def items(split: str) -> list[Item]:
        path = base / f"images_variant_{split}.txt"
        return [
            (base / "images" / f"{image}.jpg", find_label(name, names, path)) for image, name in read_rows(path, 2, " ")
        ]

    return make_splits(names, items("train"), items("val"), items("test"))


DATA_SETS = (
    DataSet(
        name="oxford_pets",
        title="Oxford-IIIT Pet",
        classes=37,
        folders=("oxford_pets", "oxford-iiit-pet"),
        read=read_pets,
        counts={SPLIT_FILE: counts(2944, 736, 3669), PUBLISHED: {"train+val": 3680, "test": 3669}},
        licence="CC BY-SA 4.0",
        templates=("a photo of a {}, a type of pet.",),
        split_file="split_zhou_OxfordPets.json",
        images=("images",),
        download=Download("OxfordIIITPet"),
    ),
    DataSet(
        name="food101",
        title="Food-101",
        classes=101,
        folders=("food-101", "food101"),
        read=read_food,
        counts={SPLIT_FILE: counts(50_500, 20_200, 30_300), PUBLISHED: {"train+val": 75_750, "test": 25_250}},
        licence="fair use of the images' owners (foodspotting.com); research",
        templates=("a photo of {}, a type of food.",),
        split_file="split_zhou_Food101.json",
        images=("images",),
        download=Download("Food101"),
    ),
    DataSet(
        name="flowers102",
        title="Oxford Flowers 102",
        classes=102,
        folders=("oxford_flowers", "flowers-102", "flowers102"),
        read=read_flowers,
        counts={SPLIT_FILE: counts(4093, 1633, 2463), PUBLISHED: counts(1020, 1020, 6149)},
        licence="research",
        templates=("a photo of a {}, a type of flower.",),
        split_file="split_zhou_OxfordFlowers.json",
        images=("jpg",),
        download=Download("Flowers102"),
    ),
    DataSet(
        name="stanford_cars",
        title="Stanford Cars",
        classes=196,
        folders=("stanford_cars",),
        read=read_cars,
        counts={SPLIT_FILE: counts(6509, 1635, 8041), PUBLISHED: {"train+val": 8144, "test": 8041}},
        licence="research, non-commercial",
        instructions="Its authors' page is gone. From a copy, put cars_train/, cars_test/, devkit/ and "
        "cars_test_annos_withlabels.mat into stanford_cars/.",
        split_file="split_zhou_StanfordCars.json",
    ),
    DataSet(
        name="fgvc_aircraft",
        title="FGVC-Aircraft",
        classes=100,
        folders=("fgvc_aircraft", "fgvc-aircraft-2013b"),
        read=read_aircraft,
        counts={PUBLISHED: counts(3334, 3333, 3333)},
        licence="research, non-commercial",
        templates=("a photo of a {}, a type of aircraft.",),
        download=Download("FGVCAircraft"),
    ),
)

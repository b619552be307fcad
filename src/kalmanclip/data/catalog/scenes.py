"""Places: SUN397, Places365, and EuroSAT from above."""

from pathlib import Path

from kalmanclip.data.catalog.base import (
    DataSet,
    Download,
    counts,
    first_existing,
    in_label_order,
    read_rows,
    unsplit_folders,
    whole,
)
from kalmanclip.data.folder import image_files
from kalmanclip.data.labelled import class_name_from_folder
from kalmanclip.data.splits import OURS, PUBLISHED, SPLIT_FILE, Item, Splits, make_splits, train_val, train_val_test
from kalmanclip.errors import DataError

_EUROSAT_NAMES = {
    "AnnualCrop": "Annual Crop Land",
    "HerbaceousVegetation": "Herbaceous Vegetation Land",
    "Highway": "Highway or Road",
    "Industrial": "Industrial Buildings",
    "Pasture": "Pasture Land",
    "PermanentCrop": "Permanent Crop Land",
    "Residential": "Residential Buildings",
    "SeaLake": "Sea or Lake",
}


def read_sun(folder: Path, variant: str | None) -> Splits:
    """Read SUN397: ClassName.txt; split by Training_01.txt and Testing_01.txt if they are there, else by us."""
    base = folder / "SUN397" if (folder / "SUN397").is_dir() else folder
    keys = [row[0] for row in read_rows(first_existing(folder, ("ClassName.txt", "SUN397/ClassName.txt")), 1)]
    names = list(map(_scene_name, keys))
    for place in (folder, base):
        if (place / "Training_01.txt").is_file():
            train, val = train_val(_sun_items(place / "Training_01.txt", base, keys))
            return make_splits(names, train, val, _sun_items(place / "Testing_01.txt", base, keys))
    missing = next((key for key in keys if not (base / key[1:]).is_dir()), None)
    if missing is not None:
        raise DataError(f"{base} has no folder {missing[1:]}, which ClassName.txt names; unpack the data set again")
    everything: list[Item] = [
        (p, label) for label, key in enumerate(keys) for p in _own_images(base / key[1:], keys, key)
    ]
    return make_splits(names, *train_val_test(everything), origin=OURS)


def read_places(folder: Path, variant: str | None) -> Splits:
    """Read Places365: lists of the development kit; the published val has labels and becomes test (test has none)."""
    path = folder / "categories_places365.txt"
    categories = {key: whole(label, path) for key, label in read_rows(path, 2)}
    names = {label: _scene_name(key) for key, label in categories.items()}

    def items(split: str, images: Path) -> list[Item]:
        lines = folder / f"places365_{split}.txt"
        return [(images / image.lstrip("/"), whole(label, lines)) for image, label in read_rows(lines, 2)]

    # Who only wants to measure need not have the 1.8 million images for training.
    sizes = [folder / f"data_{size}_standard" for size in ("256", "large")]
    train_images = next((path for path in sizes if path.is_dir()), None)
    train = items("train_standard", train_images) if train_images is not None else None
    test = items("val", first_existing(folder, ("val_256", "val_large")))
    return make_splits(in_label_order(names, folder), train, test=test)


def _sun_items(path: Path, base: Path, keys: list[str]) -> list[Item]:
    labels = {key: label for label, key in enumerate(keys)}
    found: list[Item] = []
    for (row,) in read_rows(path, 1):
        key = row.rsplit("/", 1)[0]
        if key not in labels:
            raise DataError(f"{path} has the class {key!r}, which ClassName.txt lacks; download it again")
        found.append((base / row.lstrip("/"), labels[key]))
    return found


def _own_images(folder: Path, keys: list[str], key: str) -> list[Path]:
    """Return the images of a SUN397 class, without those of classes whose folders lie inside its own."""
    inner = {folder / other.removeprefix(f"{key}/") for other in keys if other.startswith(f"{key}/")}
    return [path for path in image_files(folder) if not inner & set(path.parents)]


def _scene_name(key: str) -> str:
    """ "/a/apartment_building/outdoor" -> "outdoor apartment building"."""
    return class_name_from_folder(" ".join(reversed(key.strip("/").split("/")[1:])))


DATA_SETS = (
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
        read=unsplit_folders(("2750", "EuroSAT_RGB"), _EUROSAT_NAMES),
        counts={SPLIT_FILE: counts(13_500, 5400, 8100), OURS: {"train+val+test": 27_000}},
        licence="MIT",
        templates=("a centered satellite photo of {}.",),
        split_file="split_zhou_EuroSAT.json",
        images=("2750", "EuroSAT_RGB"),
        rename=_EUROSAT_NAMES,
        download=Download("EuroSAT"),
    ),
)

"""Data sets whose parts are lists in files next to the images: one reader each, because each list is different."""

import re
from pathlib import Path

from kalmanclip.data.names import class_name_from_folder
from kalmanclip.data.sets.files import first_existing, read_mat, read_object, read_rows, whole
from kalmanclip.data.sets.views import OURS, Item, Views, hold_out, make_views, three_way
from kalmanclip.data.walk import image_files
from kalmanclip.errors import DataError


def read_pets(folder: Path, variant: str | None) -> Views:
    """Oxford-IIIT Pet: annotations/{trainval,test}.txt, lines "Abyssinian_100 1 1 1"; labels start at 1."""
    names: dict[int, str] = {}

    def items(part: str) -> list[Item]:
        found: list[Item] = []
        path = folder / "annotations" / f"{part}.txt"
        for image, label, _, _ in read_rows(path, 4):
            names[whole(label, path) - 1] = class_name_from_folder(image.rsplit("_", 1)[0]).lower()
            found.append((folder / "images" / f"{image}.jpg", whole(label, path) - 1))
        return found

    train, val = hold_out(items("trainval"))
    test = items("test")
    return make_views(_ordered(names, folder), train, val, test)


def read_food(folder: Path, variant: str | None) -> Views:
    """Food-101: meta/{train,test}.json, {"apple_pie": ["apple_pie/1005649", ...]}."""
    lists = {part: read_object(folder / "meta" / f"{part}.json") for part in ("train", "test")}
    keys = sorted(lists["train"])

    def items(part: str) -> list[Item]:
        return [
            (folder / "images" / f"{image}.jpg", _label(keys, key, folder / "meta" / f"{part}.json"))
            for key, images in sorted(lists[part].items())
            for image in images
        ]

    train, val = hold_out(items("train"))
    return make_views(list(map(class_name_from_folder, keys)), train, val, items("test"))


def read_dtd(folder: Path, variant: str | None) -> Views:
    """DTD: labels/{train,val,test}<partition>.txt, lines "banded/banded_0002.jpg"."""
    base = folder if (folder / "labels").is_dir() else folder / "dtd"  # torchvision's archive has a folder in it
    rows = {
        part: [row[0].split("/") for row in read_rows(base / "labels" / f"{part}{variant}.txt", 1)]
        for part in ("train", "val", "test")
    }
    keys = sorted({key for part in rows.values() for key, *_ in part})
    items = {
        part: [(base.joinpath("images", *row), keys.index(row[0])) for row in found] for part, found in rows.items()
    }
    return make_views(list(map(class_name_from_folder, keys)), items["train"], items["val"], items["test"])


def read_aircraft(folder: Path, variant: str | None) -> Views:
    """FGVC-Aircraft: images_variant_{train,val,test}.txt, lines "1025794 707-320"; classes in variants.txt."""
    base = folder / "data" if (folder / "data").is_dir() else folder
    names = [row[0] for row in read_rows(base / "variants.txt", 1)]

    def items(part: str) -> list[Item]:
        path = base / f"images_variant_{part}.txt"
        return [
            (base / "images" / f"{image}.jpg", _label(names, name, path)) for image, name in read_rows(path, 2, " ")
        ]

    return make_views(names, items("train"), items("val"), items("test"))


def read_flowers(folder: Path, variant: str | None) -> Views:
    """Flowers102: imagelabels.mat and setid.mat; names from cat_to_name.json if it is there, else torchvision's."""
    labels = read_mat(folder / "imagelabels.mat", "labels")
    names = _flower_names(folder)

    def items(key: str) -> list[Item]:
        found: list[Item] = []
        for number in map(int, read_mat(folder / "setid.mat", key)):
            if not 1 <= number <= len(labels):
                raise DataError(f"{folder / 'setid.mat'} lists image {number}, which has no label; download it again")
            found.append((folder / "jpg" / f"image_{number:05d}.jpg", int(labels[number - 1]) - 1))
        return found

    return make_views(names, items("trnid"), items("valid"), items("tstid"))


def read_cars(folder: Path, variant: str | None) -> Views:
    """Stanford Cars: MATLAB lists; "AM General Hummer SUV 2000" becomes "2000 AM General Hummer SUV", as in CoOp."""
    names = [
        " ".join([words[-1], *words[:-1]])
        for words in (str(name).split() for name in read_mat(folder / "devkit" / "cars_meta.mat", "class_names"))
    ]

    def items(images: str, annotations: str) -> list[Item]:
        rows = read_mat(folder / annotations, "annotations")
        return [(folder / images / str(row["fname"]), int(row["class"]) - 1) for row in rows]

    train, val = hold_out(items("cars_train", "devkit/cars_train_annos.mat"))
    return make_views(names, train, val, items("cars_test", "cars_test_annos_withlabels.mat"))


def read_places(folder: Path, variant: str | None) -> Views:
    """Places365: lists of the development kit; the published val has labels and becomes test (test has none)."""
    path = folder / "categories_places365.txt"
    categories = {key: whole(label, path) for key, label in read_rows(path, 2)}
    names = {label: _scene_name(key) for key, label in categories.items()}

    def items(part: str, images: Path) -> list[Item]:
        lines = folder / f"places365_{part}.txt"
        return [(images / image.lstrip("/"), whole(label, lines)) for image, label in read_rows(lines, 2)]

    # Who only wants to measure need not have the 1.8 million images for training.
    sizes = [folder / f"data_{size}_standard" for size in ("256", "large")]
    train_images = next((path for path in sizes if path.is_dir()), None)
    train = items("train_standard", train_images) if train_images is not None else None
    test = items("val", first_existing(folder, ("val_256", "val_large")))
    return make_views(_ordered(names, folder), train, test=test)


def read_sun(folder: Path, variant: str | None) -> Views:
    """SUN397: ClassName.txt; split by Training_01.txt and Testing_01.txt if they are there, else by us."""
    base = folder / "SUN397" if (folder / "SUN397").is_dir() else folder
    keys = [row[0] for row in read_rows(first_existing(folder, ("ClassName.txt", "SUN397/ClassName.txt")), 1)]
    names = list(map(_scene_name, keys))
    for place in (folder, base):
        if (place / "Training_01.txt").is_file():
            train, val = hold_out(_sun_items(place / "Training_01.txt", base, keys))
            return make_views(names, train, val, _sun_items(place / "Testing_01.txt", base, keys))
    missing = next((key for key in keys if not (base / key[1:]).is_dir()), None)
    if missing is not None:
        raise DataError(f"{base} has no folder {missing[1:]}, which ClassName.txt names; unpack the data set again")
    everything: list[Item] = [
        (p, label) for label, key in enumerate(keys) for p in _own_images(base / key[1:], keys, key)
    ]
    return make_views(names, *three_way(everything), split=OURS)


def read_ucf(folder: Path, variant: str | None) -> Views:
    """UCF101, the middle frame of each video: ucfTrainTestlist/{trainlist01,testlist01}.txt, classInd.txt."""
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

    train, val = hold_out(items("trainlist01.txt"))
    names = {label: " ".join(_words(key)) for key, label in keys.items()}
    return make_views(_ordered(names, path), train, val, items("testlist01.txt"))


def _ordered(names: dict[int, str], where: Path) -> list[str]:
    """Names by label, without gaps."""
    for label in range(len(names)):
        if label not in names:
            raise DataError(f"{where} has {len(names)} classes but none with the label {label}; download it again")
    return [names[label] for label in range(len(names))]


def _label(keys: list[str], key: str, path: Path) -> int:
    try:
        return keys.index(key)
    except ValueError:
        raise DataError(f"{path} has the class {key!r}, which the list of classes lacks; download it again") from None


def _scene_name(key: str) -> str:
    """ "/a/apartment_building/outdoor" -> "outdoor apartment building"."""
    return class_name_from_folder(" ".join(reversed(key.strip("/").split("/")[1:])))


def _words(key: str) -> list[str]:
    """ "ApplyEyeMakeup" -> Apply, Eye, Makeup."""
    return re.findall("[A-Z][^A-Z]*", key) or [key]


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
    """The images of a SUN397 class, without those of classes whose folders lie inside its own."""
    inner = {folder / other.removeprefix(f"{key}/") for other in keys if other.startswith(f"{key}/")}
    return [path for path in image_files(folder) if not inner & set(path.parents)]


def _flower_names(folder: Path) -> list[str]:
    path = folder / "cat_to_name.json"
    if path.is_file():
        content = read_object(path)
        return _ordered({whole(number, path) - 1: str(name) for number, name in content.items()}, path)
    import torchvision

    names = getattr(torchvision.datasets.Flowers102, "classes", None)
    if names is None:  # older than 0.21
        raise DataError(f"{folder} has no cat_to_name.json with the flowers' names, nor has this torchvision; get one")
    return [str(name).rstrip("?") for name in names]

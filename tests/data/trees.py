"""Small made-up trees in the real layout of every data set."""

import gzip
import json
import pickle
from pathlib import Path

import numpy as np
from PIL import Image

WORDNET = ("n01440764", "n01443537", "n01498041")  # labels 0, 1 and 6


def picture(path: Path, shade: int = 100) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (shade, shade, shade)).save(path)
    return path


def text(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def pets(root, folder="oxford-iiit-pet"):
    base = root / folder
    for part, numbers in (("trainval", range(10)), ("test", range(10, 14))):
        rows = [
            f"{breed}_{i} {label} 1 1" for label, breed in ((1, "Abyssinian"), (2, "american_bulldog")) for i in numbers
        ]
        text(base / "annotations" / f"{part}.txt", *rows)
        for row in rows:
            picture(base / "images" / f"{row.split()[0]}.jpg")
    return base


def food101(root):
    base = root / "food-101"
    for part, numbers in (("train", range(5)), ("test", range(5, 7))):
        lists = {name: [f"{name}/{i}" for i in numbers] for name in ("baby_back_ribs", "apple_pie")}
        text(base / "meta" / f"{part}.json", json.dumps(lists))
        for images in lists.values():
            for image in images:
                picture(base / "images" / f"{image}.jpg")
    return base


def sun397(root, partition=False):
    base = root / "SUN397"
    keys = ["/a/abbey", "/o/oast_house", "/c/church/indoor", "/c/church/outdoor"]
    text(base / "ClassName.txt", *keys)
    for key in keys:
        for i in range(10):
            picture(base / f"{key[1:]}/sun_{i}.jpg")
    if partition:
        text(base / "Training_01.txt", *(f"{key}/sun_{i}.jpg" for key in keys for i in range(5)))
        text(base / "Testing_01.txt", *(f"{key}/sun_{i}.jpg" for key in keys for i in range(5, 10)))
    return base


def dtd(root, nested=True):
    base = root / "dtd" / "dtd" if nested else root / "dtd"
    for number, part in enumerate(("train", "val", "test")):
        rows = [f"{name}/{name}_{number}{i}.jpg" for name in ("banded", "zigzagged") for i in range(2)]
        text(base / "labels" / f"{part}1.txt", *rows)
        text(base / "labels" / f"{part}2.txt", rows[0], rows[2])
        for row in rows:
            picture(base / "images" / row)
    return root / "dtd"


def class_tree(folder, names, images=10, suffix="jpg"):
    for shade, name in enumerate(names):
        for i in range(images):
            picture(folder / name / f"{name}_{i}.{suffix}", shade)
    return folder


def eurosat(root):
    return class_tree(root / "eurosat" / "2750", ["AnnualCrop", "Forest", "SeaLake"]).parent


def caltech101(root):
    names = ["BACKGROUND_Google", "Faces", "Faces_easy", "airplanes", "wild_cat"]
    return class_tree(root / "caltech101" / "101_ObjectCategories", names).parent


def _idx(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))


def mnist(root, name="MNIST"):
    for part, count in (("train", 20), ("t10k", 10)):
        _idx(root / name / "raw" / f"{part}-images-idx3-ubyte", np.arange(count * 784).reshape(count, 28, 28))
        _idx(root / name / "raw" / f"{part}-labels-idx1-ubyte", np.arange(count) % 10)
    return root / name


def _pickle(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content))


def cifar10(root):
    base = root / "cifar-10-batches-py"
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        _pickle(base / name, {"data": np.zeros((10, 3072), np.uint8), "labels": list(range(10))})
    _pickle(base / "batches.meta", {"label_names": [f"name_{i}" for i in range(10)]})
    return base


def cifar100(root):
    base = root / "cifar-100-python"
    for name in ("train", "test"):
        _pickle(base / name, {"data": np.zeros((100, 3072), np.uint8), "fine_labels": list(range(100))})
    _pickle(base / "meta", {"fine_label_names": [f"fine_{i}" for i in range(100)]})
    return base


def places365(root, train=True):
    base = root / "places365"
    text(base / "categories_places365.txt", "/a/airfield 0", "/a/apartment_building/outdoor 1")
    text(base / "places365_train_standard.txt", "/a/airfield/1.jpg 0", "/a/apartment_building/outdoor/2.jpg 1")
    text(base / "places365_val.txt", "Places365_val_1.jpg 1", "Places365_val_2.jpg 0")
    for i in (1, 2):
        picture(base / "val_256" / f"Places365_val_{i}.jpg")
    if train:
        picture(base / "data_256_standard" / "a/airfield/1.jpg")
        picture(base / "data_256_standard" / "a/apartment_building/outdoor/2.jpg")
    return base


def flowers102(root):
    from scipy.io import savemat

    base = root / "flowers-102"
    base.mkdir(parents=True)
    savemat(base / "imagelabels.mat", {"labels": np.arange(306) % 102 + 1})
    ids = {"trnid": np.arange(1, 103), "valid": np.arange(103, 205), "tstid": np.arange(205, 307)}
    savemat(base / "setid.mat", ids)
    for i in range(1, 307):
        picture(base / "jpg" / f"image_{i:05d}.jpg")
    return base


def stanford_cars(root):
    from scipy.io import savemat

    base = root / "stanford_cars"
    (base / "devkit").mkdir(parents=True)
    names = np.array(["AM General Hummer SUV 2000", "smart fortwo Convertible 2012"], dtype=object)
    savemat(base / "devkit" / "cars_meta.mat", {"class_names": names})
    for part, file in (("train", "devkit/cars_train_annos.mat"), ("test", "cars_test_annos_withlabels.mat")):
        rows = [(f"{i:05d}.jpg", i % 2 + 1) for i in range(10)]
        savemat(base / file, {"annotations": np.array(rows, dtype=[("fname", object), ("class", object)])})
        for name, _ in rows:
            picture(base / f"cars_{part}" / name)
    return base


def fgvc_aircraft(root, nested=True):
    base = root / ("fgvc-aircraft-2013b/data" if nested else "fgvc_aircraft")
    text(base / "variants.txt", "707-320", "Boeing 717")
    for number, part in enumerate(("train", "val", "test")):
        text(base / f"images_variant_{part}.txt", f"1{number} 707-320", f"2{number} Boeing 717")
        for label in (1, 2):
            picture(base / "images" / f"{label}{number}.jpg")
    return base


def ucf101(root):
    base = root / "ucf101"
    lists = base / "ucfTrainTestlist"
    text(lists / "classInd.txt", "1 ApplyEyeMakeup", "2 Archery")
    videos = {
        part: [f"{key}/v_{key}_g{g:02d}_c01.avi" for key in ("ApplyEyeMakeup", "Archery") for g in numbers]
        for part, numbers in (("train", range(5)), ("test", range(5, 7)))
    }
    text(lists / "trainlist01.txt", *(f"{video} {1 if 'Eye' in video else 2}" for video in videos["train"]))
    text(lists / "testlist01.txt", *videos["test"])
    for video in (*videos["train"], *videos["test"]):
        key, name = video.split("/")
        place = {"ApplyEyeMakeup": "Apply_Eye_Makeup"}.get(key, key)
        picture(base / "UCF-101-midframes" / place / name.replace(".avi", ".jpg"))
    return base


def imagenet(root, coop=False):
    base = root / "imagenet" / "images" if coop else root / "imagenet"
    class_tree(base / "train", WORDNET, 3)
    class_tree(base / "val", WORDNET, 2)
    return root / "imagenet"


def imagenet_v2(root):
    return class_tree(root / "imagenetv2" / "imagenetv2-matched-frequency-format-val", ["0", "10", "2"], 1).parent


def imagenet_sketch(root):
    return class_tree(root / "imagenet-sketch" / "images", WORDNET, 2).parent


def imagenet_a(root):
    return class_tree(root / "imagenet-adversarial" / "imagenet-a", WORDNET[::-1], 2).parent


def imagenet_r(root):
    return class_tree(root / "imagenet-r", WORDNET[1:], 2)


def imagenet_c(root):
    class_tree(root / "imagenet-c" / "fog" / "3", WORDNET, 1)
    class_tree(root / "imagenet-c" / "noise" / "shot_noise" / "1", WORDNET, 2)
    return root / "imagenet-c"


def split_file(path, names=("american_bulldog", "Abyssinian"), counts=(3, 1, 2), images=None):
    """A split_zhou file with `counts` images of each class, and the images themselves under `images`."""
    content = {
        part: [[f"{name}_{part}{i}.jpg", label, name] for label, name in enumerate(names) for i in range(count)]
        for part, count in zip(("train", "val", "test"), counts, strict=True)
    }
    text(path, json.dumps(content))
    for rows in content.values():
        for relative, _, _ in rows if images is not None else ():
            picture(images / relative)
    return path

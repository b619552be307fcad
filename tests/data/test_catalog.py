"""Data sets by name: every layout, every source of a split, and what incomplete copies are told."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
from tests.data import trees

from kalmanclip.data import LabelledImages, catalog
from kalmanclip.data.catalog import DATA_SETS, data_root, find_dataset, load_dataset
from kalmanclip.data.catalog.imagenet import imagenet_class_names, wordnet_ids
from kalmanclip.data.splits import OURS, PUBLISHED, SPLIT_FILE, Splits, train_val, train_val_test
from kalmanclip.errors import ConfigError, DataError

DOCS = Path(__file__).parents[2] / "docs" / "datasets.md"


def load(name, root, classes=None, **options):
    """Reads a made-up tree, which has fewer classes than the real thing."""
    if classes is None:
        return load_dataset(name, root, strict=False, **options)
    return load_dataset(dataclasses.replace(DATA_SETS[name], classes=classes), root, **options)


def sizes(splits):
    return {part: len(images) for part, images in splits.items()}


def all_exist(splits):
    return all(Path(source).exists() for _, images in splits.items() for source in images.sources)


# name, builder, number of classes, sizes, split, class names
LAYOUTS = [
    ("oxford_pets", trees.pets, (16, 4, 8), PUBLISHED, ["abyssinian", "american bulldog"]),
    ("food101", trees.food101, (8, 2, 4), PUBLISHED, ["apple pie", "baby back ribs"]),
    ("sun397", trees.sun397, (20, 8, 12), OURS, ["abbey", "oast house", "indoor church", "outdoor church"]),
    (
        "sun397",
        lambda root: trees.sun397(root, partition=True),
        (16, 4, 20),
        PUBLISHED,
        ["abbey", "oast house", "indoor church", "outdoor church"],
    ),
    ("dtd", trees.dtd, (4, 4, 4), PUBLISHED, ["banded", "zigzagged"]),
    ("dtd", lambda root: trees.dtd(root, nested=False), (4, 4, 4), PUBLISHED, ["banded", "zigzagged"]),
    ("eurosat", trees.eurosat, (15, 6, 9), OURS, ["Annual Crop Land", "Forest", "Sea or Lake"]),
    ("caltech101", trees.caltech101, (15, 6, 9), OURS, ["face", "airplane", "wild cat"]),
    ("places365", trees.places365, (2, None, 2), PUBLISHED, ["airfield", "outdoor apartment building"]),
    (
        "stanford_cars",
        trees.stanford_cars,
        (8, 2, 10),
        PUBLISHED,
        ["2000 AM General Hummer SUV", "2012 smart fortwo Convertible"],
    ),
    ("fgvc_aircraft", trees.fgvc_aircraft, (2, 2, 2), PUBLISHED, ["707-320", "Boeing 717"]),
    ("fgvc_aircraft", lambda r: trees.fgvc_aircraft(r, nested=False), (2, 2, 2), PUBLISHED, ["707-320", "Boeing 717"]),
    ("ucf101", trees.ucf101, (8, 2, 4), PUBLISHED, ["Apply Eye Makeup", "Archery"]),
]


@pytest.mark.parametrize(("name", "build", "counts", "split", "names"), LAYOUTS)
def test_own_layout(tmp_path, name, build, counts, split, names):
    build(tmp_path)
    splits = load(name, tmp_path, classes=len(names))
    expected = {part: n for part, n in zip(("train", "val", "test"), counts, strict=True) if n is not None}
    assert (sizes(splits), splits.origin, splits.class_names) == (expected, split, names)
    assert splits.templates == DATA_SETS[name].templates
    assert all_exist(splits)
    sources = [source for _, images in splits.items() for source in images.sources]
    assert len(set(sources)) == len(sources)
    again = load(name, tmp_path)
    assert [images.sources for _, images in again.items()] == [images.sources for _, images in splits.items()]


def test_flowers(tmp_path):
    base = trees.flowers102(tmp_path)
    splits = load_dataset("flowers102", tmp_path)
    assert sizes(splits) == {"train": 102, "val": 102, "test": 102}
    assert splits.class_names[0] == "pink primrose"
    assert all_exist(splits)
    trees.text(base / "cat_to_name.json", json.dumps({str(i): f"flower {i}" for i in range(1, 103)}))
    assert load_dataset("flowers102", tmp_path).class_names[:2] == ["flower 1", "flower 2"]


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_mnist_and_its_like(tmp_path, name, folder):
    trees.mnist(tmp_path, folder)
    splits = load_dataset(name, tmp_path)
    assert sizes(splits) == {"train": 20, "test": 10}
    assert splits.train.sources[0].shape == (28, 28)
    assert splits.train.labels[:11] == [*range(10), 0]
    assert splits.class_names[9] == {"mnist": "9", "fashion_mnist": "ankle boot"}[name]


@pytest.mark.parametrize(
    ("name", "build", "first"), [("cifar10", trees.cifar10, 50), ("cifar100", trees.cifar100, 100)]
)
def test_cifar(tmp_path, monkeypatch, name, build, first):
    import torchvision

    build(tmp_path)
    with pytest.raises(DataError, match=r"cannot read .*download it again"):  # torchvision knows the real checksums
        load_dataset(name, tmp_path)
    loader = getattr(torchvision.datasets, name.upper())
    monkeypatch.setattr(loader, "_check_integrity", lambda self: True)
    monkeypatch.setattr(loader, "meta", {**loader.meta, "md5": None})
    splits = load_dataset(name, tmp_path)
    assert sizes(splits) == {"train": first, "test": first // 5 if name == "cifar10" else 100}
    assert splits.train.sources[0].shape == (32, 32, 3)
    assert "_" not in splits.class_names[3]


@pytest.mark.parametrize("coop", [False, True])
def test_imagenet(tmp_path, coop):
    trees.imagenet(tmp_path, coop)
    splits = load("imagenet", tmp_path)
    assert sizes(splits) == {"train": 9, "test": 6}
    assert splits.test.labels == [0, 0, 1, 1, 6, 6]
    assert splits.class_names == imagenet_class_names()
    assert len(wordnet_ids()) == len(set(wordnet_ids())) == len(splits.class_names) == 1000
    assert list(wordnet_ids()) == sorted(wordnet_ids())
    with pytest.raises(DataError, match=r"997 classes have no images in train: 'great white shark'"):
        load_dataset("imagenet", tmp_path)


@pytest.mark.parametrize("build", [trees.imagenet_a, trees.imagenet_r])
def test_subsets_of_imagenet(tmp_path, build):
    """Labels count the classes that are there; imagenet_labels leads back to the 1000."""
    build(tmp_path)
    name = build.__name__
    splits = load(name, tmp_path)
    expected = [trees.WORDNET.index(i) for i in trees.WORDNET] if name == "imagenet_a" else [0, 1]
    assert splits.train is None
    assert sorted(set(splits.test.labels)) == expected
    assert splits.imagenet_labels == ((0, 1, 6) if name == "imagenet_a" else (1, 6))
    assert splits.class_names[-1] == imagenet_class_names()[6]
    for source, label in zip(splits.test.sources, splits.test.labels, strict=True):
        assert wordnet_ids()[source.parent.name] == splits.imagenet_labels[label]
    with pytest.raises(DataError, match=r"classes instead of 200"):
        load_dataset(name, tmp_path)


def test_label_map_mismatch(tmp_path):
    trees.imagenet_a(tmp_path)
    trees.picture(tmp_path / "imagenet-adversarial" / "imagenet-a" / "n99999999" / "x.jpg")
    with pytest.raises(DataError, match="'n99999999' is not the WordNet id"):
        load("imagenet_a", tmp_path)


def test_imagenet_v2_folders_are_numbers(tmp_path):
    trees.imagenet_v2(tmp_path)
    splits = load("imagenet_v2", tmp_path)
    assert {(s.parent.name, label) for s, label in zip(splits.test.sources, splits.test.labels, strict=True)} == {
        ("0", 0),
        ("10", 10),
        ("2", 2),
    }
    with pytest.raises(DataError, match="no imagenetv2-top-images"):
        load("imagenet_v2", tmp_path, variant="top-images")
    trees.picture(tmp_path / "imagenetv2" / "imagenetv2-matched-frequency-format-val" / "1000" / "x.jpg")
    with pytest.raises(DataError, match=r"outside 0\.\.999"):
        load("imagenet_v2", tmp_path)


def test_imagenet_sketch_and_c(tmp_path):
    trees.imagenet_sketch(tmp_path)
    trees.imagenet_c(tmp_path)
    assert load("imagenet_sketch", tmp_path).test.labels == [0, 0, 1, 1, 6, 6]
    assert load("imagenet_c", tmp_path, variant="fog/3").test.labels == [0, 1, 6]
    assert len(load("imagenet_c", tmp_path, variant="shot_noise/1").test) == 6
    with pytest.raises(ConfigError, match=r"variant='fog/3'"):
        load("imagenet_c", tmp_path)
    with pytest.raises(ConfigError, match="no variant 'fog/6'"):
        load("imagenet_c", tmp_path, variant="fog/6")
    with pytest.raises(DataError, match="no snow/1"):
        load("imagenet_c", tmp_path, variant="snow/1")


def test_dtd_partitions(tmp_path):
    trees.dtd(tmp_path)
    assert sizes(load("dtd", tmp_path, variant="2")) == {"train": 2, "val": 2, "test": 2}
    with pytest.raises(ConfigError, match="no variant '11'"):
        load("dtd", tmp_path, variant="11")


def test_places_without_the_training_images(tmp_path):
    trees.places365(tmp_path, train=False)
    assert sizes(load("places365", tmp_path)) == {"test": 2}


# ---- split files

SPLIT_SETS = [dataset for dataset in DATA_SETS.values() if dataset.split_file]


@pytest.mark.parametrize("dataset", SPLIT_SETS, ids=lambda dataset: dataset.name)
def test_split_file_is_honoured(tmp_path, dataset):
    folder = tmp_path / dataset.folders[0]
    trees.split_file(folder / dataset.split_file, images=folder / dataset.images[-1])
    splits = load(dataset.name, tmp_path, classes=2)
    assert (sizes(splits), splits.origin) == ({"train": 6, "val": 2, "test": 4}, SPLIT_FILE)
    assert splits.class_names == ["american bulldog", "Abyssinian"]
    assert splits.templates == dataset.templates
    assert all_exist(splits)


def test_split_file_comes_before_the_own_split(tmp_path):
    base = trees.pets(tmp_path)
    assert load("oxford_pets", tmp_path).origin == PUBLISHED
    trees.split_file(base / "split_zhou_OxfordPets.json", images=base / "images")
    assert load("oxford_pets", tmp_path).origin == SPLIT_FILE


def test_split_file_with_names_in_plain_english(tmp_path):
    folder = trees.eurosat(tmp_path)
    trees.split_file(folder / "split_zhou_EuroSAT.json", ["AnnualCrop", "Sea or Lake", "River"])
    assert load("eurosat", tmp_path).class_names == ["Annual Crop Land", "Sea or Lake", "River"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "is not JSON"),
        ("[]", "lists train, val and test"),
        ('{"train": [], "test": []}', "lists train, val and test"),
        ('{"train": [["a.jpg", 0]], "val": [], "test": []}', "entry 0 of 'train'"),
        ('{"train": [["a.jpg", "0", "x"]], "val": [], "test": []}', "instead of .relative path, label, class name"),
        ('{"train": [["a.jpg", 0, "x"]], "val": [["b.jpg", 0, "y"]], "test": []}', "label 0 both 'x' and 'y'"),
        ('{"train": [["a.jpg", 0, "x"], ["a.jpg", 2, "y"]], "val": [], "test": []}', "none with the label 1"),
    ],
)
def test_damaged_split_file(tmp_path, content, problem):
    base = trees.pets(tmp_path)
    (base / "split_zhou_OxfordPets.json").write_text(content)
    with pytest.raises(DataError, match=problem):
        load("oxford_pets", tmp_path)


# ---- incomplete copies


def test_not_there(tmp_path):
    with pytest.raises(DataError, match=r"Oxford-IIIT Pet was not found.*oxford_pets or .*kalmanclip data get oxford_"):
        load_dataset("oxford_pets", tmp_path)


def test_unknown_name():
    with pytest.raises(ConfigError, match=r"called 'oxford_pet'\. Did you mean oxford_pets\?"):
        find_dataset("oxford_pet")
    assert find_dataset("Oxford-Pets").name == "oxford_pets"


def test_missing_split(tmp_path):
    base = trees.pets(tmp_path)
    (base / "annotations" / "test.txt").unlink()
    with pytest.raises(DataError, match=r"test\.txt is missing; unpack or download"):
        load("oxford_pets", tmp_path)


def test_wrong_number_of_classes(tmp_path):
    trees.pets(tmp_path)
    with pytest.raises(DataError, match=r"2 classes instead of 37.*data check oxford_pets"):
        load_dataset("oxford_pets", tmp_path)


def test_class_without_images(tmp_path):
    folder = trees.eurosat(tmp_path)
    (folder / "2750" / "River").mkdir()
    with pytest.raises(DataError, match=r"1 classes have no images in train: 'River'"):
        load("eurosat", tmp_path, classes=4)


def test_lists_without_images(tmp_path):
    base = trees.pets(tmp_path)
    for image in (base / "images").iterdir():
        image.unlink()
    with pytest.raises(DataError, match=r"first image of train, .*jpg, does not exist.*data check oxford_pets"):
        load("oxford_pets", tmp_path, classes=2)


@pytest.mark.parametrize(
    ("name", "build", "file", "content", "problem"),
    [
        ("oxford_pets", trees.pets, "annotations/trainval.txt", "Abyssinian_1 1", "line 1 .*4 columns"),
        ("oxford_pets", trees.pets, "annotations/trainval.txt", "Abyssinian_1 one 1 1", "'one' where a number"),
        ("oxford_pets", trees.pets, "annotations/trainval.txt", "Abyssinian_1 4 1 1", "none with the label 2"),
        ("food101", trees.food101, "meta/test.json", '{"soup": ["soup/1"]}', "class 'soup'"),
        ("fgvc_aircraft", trees.fgvc_aircraft, "images_variant_val.txt", "1 Concorde", "class 'Concorde'"),
        ("sun397", lambda r: trees.sun397(r, True), "Testing_01.txt", "/z/zoo/sun_1.jpg", "class '/z/zoo'"),
        ("sun397", trees.sun397, "ClassName.txt", "/z/zoo", "no folder z/zoo"),
        ("food101", trees.food101, "meta/test.json", "[]", "holds a list"),
        ("ucf101", trees.ucf101, "ucfTrainTestlist/testlist01.txt", "Archery", "class 'Archery'"),
        ("ucf101", trees.ucf101, "ucfTrainTestlist/testlist01.txt", "Zoo/v_1.avi", "class 'Zoo'"),
        ("flowers102", trees.flowers102, "setid.mat", "no MATLAB", "setid.mat is damaged"),
    ],
)
def test_damaged_lists(tmp_path, name, build, file, content, problem):
    base = build(tmp_path)
    (base / file).write_text(content)
    with pytest.raises(DataError, match=problem):
        load(name, tmp_path)


def test_damaged_arrays(tmp_path):
    folder = trees.mnist(tmp_path)
    (folder / "raw" / "train-images-idx3-ubyte").write_bytes(b"x")
    with pytest.raises(DataError, match=r"cannot read .*MNIST.*download it again"):
        load_dataset("mnist", tmp_path)


def test_empty_folders(tmp_path):
    for dataset in DATA_SETS.values():
        (tmp_path / dataset.folders[0]).mkdir(parents=True, exist_ok=True)
    for dataset in DATA_SETS.values():
        with pytest.raises(DataError):
            load_dataset(dataset, tmp_path, variant=dataset.variants[0] if dataset.variants else None)


# ---- the table, roots, cuts


def test_descriptions_are_complete():
    import torchvision

    assert len(DATA_SETS) == sum(len(getattr(module, "DATA_SETS", ())) for module in catalog._MODULES)  # no name twice
    for name, dataset in DATA_SETS.items():
        assert dataset.name == name
        assert dataset.licence
        assert dataset.obtain.endswith((".", ")"))
        assert dataset.counts
        assert dataset.variant is None or dataset.variant in dataset.variants
        assert dataset.download is None or hasattr(torchvision.datasets, dataset.download.loader)
        assert (SPLIT_FILE in dataset.counts) == (dataset.split_file is not None)


@pytest.mark.skipif(not DOCS.is_file(), reason="there is no folder docs/")
def test_the_docs_list_all():
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\d+) \|$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [(name, str(dataset.classes)) for name, dataset in DATA_SETS.items()]


def test_prompts():
    assert DATA_SETS["eurosat"].templates == ("a centered satellite photo of {}.",)
    assert DATA_SETS["dtd"].templates == ("{} texture.",)
    assert DATA_SETS["imagenet"].templates == ("a photo of a {}.",)


def test_root(tmp_path, monkeypatch):
    monkeypatch.delenv("KALMANCLIP_DATA", raising=False)
    assert str(data_root()) == "data"
    monkeypatch.setenv("KALMANCLIP_DATA", str(tmp_path))
    assert data_root() == tmp_path
    assert str(data_root("elsewhere")) == "elsewhere"


@pytest.mark.parametrize("count", [1, 2, 3, 10, 11])
def test_cuts_lose_nothing(count):
    items = [(f"{label}/{i}.jpg", label) for label in range(3) for i in range(count)]
    for parts in (train_val(items), train_val_test(items)):
        assert sorted(item for part in parts for item in part) == sorted(items)
        assert {label for _, label in parts[0]} == {0, 1, 2}
    assert len(train_val(items)[1]) == 3 * (count - max(1, round(0.8 * count)))


def test_cuts_stay_the_same_for_ever():
    """Results depend on them."""
    items = [(f"anywhere/{i}.jpg", 0) for i in range(10)]
    assert [source for source, _ in train_val(items)[1]] == ["anywhere/3.jpg", "anywhere/9.jpg"]
    elsewhere = [(f"else/where/{i}.jpg", 0) for i in range(10)]
    assert [source for source, _ in train_val(elsewhere)[1]] == ["else/where/3.jpg", "else/where/9.jpg"]


def test_views_must_agree():
    one, other = LabelledImages(["a"], [0], ["x"]), LabelledImages(["a"], [0], ["y"])
    with pytest.raises(DataError, match="different class names"):
        Splits(one, None, other)
    with pytest.raises(DataError, match="none of train"):
        Splits(None, None, None)

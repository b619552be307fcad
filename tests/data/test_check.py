"""Checking copies of data sets, and getting them."""

import dataclasses

import pytest
import torchvision
from tests.data import trees

from kalmanclip.data.catalog import DATA_SETS
from kalmanclip.data.check import Count, check_dataset, get_dataset
from kalmanclip.data.splits import PUBLISHED, SPLIT_FILE
from kalmanclip.errors import ConfigError, DataError

PETS = dataclasses.replace(DATA_SETS["oxford_pets"], classes=2, counts={PUBLISHED: {"train+val": 20, "test": 8}})


def test_complete(tmp_path):
    base = trees.pets(tmp_path)
    calls = []
    report = check_dataset(PETS, tmp_path, progress=lambda *call: calls.append(call))
    assert report.ok
    assert (report.folder, report.origin, report.classes) == (base, PUBLISHED, 2)
    assert report.counts == (Count("train+val", 20, 20), Count("test", 8, 8))
    assert calls[-1] == ("images", 28, 28)


def test_missing_and_damaged_images_are_named_one_by_one(tmp_path):
    images = trees.pets(tmp_path) / "images"
    (images / "Abyssinian_1.jpg").unlink()
    (images / "Abyssinian_2.jpg").write_bytes(b"no image")
    (images / "Abyssinian_11.jpg").write_bytes((images / "Abyssinian_11.jpg").read_bytes()[:400])
    problems = check_dataset(PETS, tmp_path).problems
    assert len(problems) == 3
    assert any("Abyssinian_1.jpg does not exist" in problem for problem in problems)
    assert any("Abyssinian_2.jpg is not an image" in problem for problem in problems)
    assert any("Abyssinian_11.jpg is damaged" in problem and "download it again" in problem for problem in problems)
    (problem,) = check_dataset(PETS, tmp_path, decode=False).problems
    assert "Abyssinian_1.jpg does not exist" in problem


def test_wrong_counts_and_classes(tmp_path):
    trees.pets(tmp_path)
    problems = check_dataset("oxford_pets", tmp_path).problems
    assert [problem.split(";")[0] for problem in problems] == [
        "there are 2 classes instead of 37",
        "train+val has 20 images instead of 3680",
        "test has 8 images instead of 3669",
    ]
    assert all("kalmanclip data get oxford_pets" in problem for problem in problems)


def test_counts_of_the_split_file(tmp_path):
    base = trees.pets(tmp_path)
    trees.split_file(base / "split_zhou_OxfordPets.json", images=base / "images")
    counted = dataclasses.replace(PETS, counts={SPLIT_FILE: {"train": 6, "val": 2, "test": 4}})
    assert check_dataset(counted, tmp_path).ok


def test_class_without_images(tmp_path):
    folder = trees.eurosat(tmp_path)
    (folder / "2750" / "River").mkdir()
    dataset = dataclasses.replace(DATA_SETS["eurosat"], classes=4, counts={})
    (problem,) = check_dataset(dataset, tmp_path).problems
    assert "1 classes have no images in train: 'River'" in problem


def test_a_part_that_nobody_needs_may_be_absent(tmp_path):
    trees.places365(tmp_path, train=False)
    dataset = dataclasses.replace(DATA_SETS["places365"], classes=2, counts={PUBLISHED: {"train": 9, "test": 2}})
    assert check_dataset(dataset, tmp_path).ok


def test_arrays(tmp_path):
    trees.mnist(tmp_path)
    (first, second) = check_dataset("mnist", tmp_path).problems
    assert "train has 20 images instead of 60000" in first
    assert "test has 10" in second


# ---- get


def test_get_what_is_there(tmp_path):
    folder = trees.pets(tmp_path)
    assert get_dataset(PETS, tmp_path) == folder


@pytest.mark.parametrize("name", [name for name, dataset in DATA_SETS.items() if dataset.download is None])
def test_get_by_hand(tmp_path, name):
    with pytest.raises(ConfigError, match="cannot be downloaded automatically"):
        get_dataset(name, tmp_path)


@pytest.mark.parametrize(("name", "module"), [("oxford_pets", "oxford_iiit_pet"), ("places365", "places365")])
def test_get_offline(tmp_path, monkeypatch, name, module):
    def offline(*args, **kwargs):
        (tmp_path / DATA_SETS[name].folders[-1] / "raw").mkdir(parents=True)  # as torchvision does before it fails
        raise OSError("Network is unreachable")

    monkeypatch.setattr(f"torchvision.datasets.{module}.download_and_extract_archive", offline)
    for _ in range(2):  # the first failure leaves nothing that looks like a data set
        with pytest.raises(DataError, match=r"could not be downloaded.*Network is unreachable.*offline"):
            get_dataset(name, tmp_path)


@pytest.mark.parametrize("name", [name for name, dataset in DATA_SETS.items() if dataset.download is not None])
def test_get_calls_torchvision(tmp_path, monkeypatch, name):
    """The arguments fit the real loaders; what they would unpack is made up."""
    import inspect

    dataset = DATA_SETS[name]
    real = inspect.signature(getattr(torchvision.datasets, dataset.download.loader).__init__)
    calls = []

    def loader(root, **options):
        real.bind(None, root, **options)
        calls.append(options)
        (tmp_path / dataset.folders[-1]).mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(torchvision.datasets, dataset.download.loader, loader)
    assert get_dataset(name, tmp_path).is_relative_to(tmp_path)
    assert len(calls) == len(dataset.download.calls)
    assert all(call["download"] for call in calls)


@pytest.mark.parametrize("name", ["oxford_pets", "dtd", "food101", "sun397", "eurosat", "caltech101", "mnist"])
def test_torchvision_finds_our_trees(tmp_path, name):
    """The made-up trees are in torchvision's layout: its own loaders read them."""
    builders = {"oxford_pets": trees.pets}
    builders.get(name, getattr(trees, name, None))(tmp_path)
    loader = getattr(torchvision.datasets, DATA_SETS[name].download.loader)
    assert len(loader(tmp_path)) > 0

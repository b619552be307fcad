"""How people spell data sets, and test images for classes that are known already."""

import pytest
from tests.data import trees

from kalmanclip.data.catalog.imagenet import imagenet_class_names
from kalmanclip.data.resolve import data_name, read_data, read_shift, split_name
from kalmanclip.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("EuroSAT", "eurosat"),
        ("imagenet-c:fog/3", "imagenet_c:fog/3"),
        ("fog=imagenet-c:fog/3", "fog"),
        ("some/where/photos/", "photos"),
        ("some/where/photos.csv", "photos"),
        ("hf:owner/name", "name"),
        ("hf:owner/name:config?label=kind&test=validation", "name:config"),
        ("mine=hf:owner/name?label=kind", "mine"),
        ("two words=a:b", "two words"),
    ],
)
def test_names(spelling, name):
    assert data_name(spelling) == name


def test_what_exists_is_taken_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b").mkdir()
    assert split_name("a=b") == (None, "a=b")
    assert split_name("c=a=b") == ("c", "a=b")


def test_two_folders_may_have_colons_in_their_names(tmp_path):
    for part in ("a:b", "c:d"):
        trees.class_tree(tmp_path / part, ["cat", "dog"], 2)
    splits = read_data(f"x={tmp_path}/a:b:{tmp_path}/c:d")
    assert [source.parts[-3] for source in (splits.train.sources[0], splits.test.sources[0])] == ["a:b", "c:d"]


def test_a_word_that_is_nothing_is_taken_for_a_mistyped_name():
    with pytest.raises(ConfigError, match="Did you mean eurosat"):
        read_data("eurosta")
    with pytest.raises(DataError, match="There is no folder"):
        read_data("photos/eurosta")


def test_a_folder_with_a_registered_name_is_pointed_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as absent:
        read_data("eurosat", tmp_path / "elsewhere")
    for part in ("train", "test"):
        trees.class_tree(tmp_path / "eurosat" / part, ["cat", "dog"], 2)
    with pytest.raises(DataError, match=r"write \./eurosat$"):
        read_data("eurosat", tmp_path / "elsewhere")
    assert "./eurosat" not in str(absent.value)
    assert read_data("./eurosat").train is not None


@pytest.fixture
def complete(monkeypatch):
    """Three classes pass for all of ImageNet's."""
    monkeypatch.setattr("kalmanclip.data.catalog.incomplete", lambda dataset, splits: [])


def test_relatives_of_imagenet_are_measured_among_their_own_classes(tmp_path, complete):
    trees.imagenet_a(tmp_path)
    names = imagenet_class_names()
    shift = read_shift("imagenet_a", tmp_path, names, tuple(range(1000)))
    assert shift.columns == (0, 1, 6)
    assert shift.images.class_names == [names[i] for i in shift.columns]
    assert shift.images.counts() == [2, 2, 2]
    few = read_shift("imagenet_a", tmp_path, [names[i] for i in (6, 5, 1, 0)])  # by name, where there are no numbers
    assert few.columns == (3, 2, 0)
    reordered = read_shift("imagenet_a", tmp_path, ["x"] * 3, (6, 1, 0))
    assert reordered.columns == (2, 1, 0)


def test_a_relative_with_classes_that_are_not_known_is_refused(tmp_path, complete):
    trees.imagenet_a(tmp_path)
    with pytest.raises(DataError, match="none of the known classes"):
        read_shift("imagenet_a", tmp_path, ["x", "y"], (0, 1))
    with pytest.raises(DataError, match="none of the known classes"):
        read_shift("imagenet_a", tmp_path, ["x", "y"])


def test_folders_and_lists_are_measured_among_all_classes(tmp_path):
    trees.class_tree(tmp_path / "photos", ["dog", "cat"], 2)
    shift = read_shift(f"{tmp_path}/photos", None, ["cat", "cow", "dog"])
    assert (shift.images.counts(), shift.columns) == ([2, 0, 2], (0, 1, 2))
    image = next((tmp_path / "photos" / "dog").iterdir()).relative_to(tmp_path)
    (tmp_path / "list.csv").write_text(f"image,class\n{image},Dog\n")
    assert read_shift(f"{tmp_path}/list.csv", None, ["cat", "cow", "dog"]).images.labels == [2]


def test_a_folder_with_parts_is_measured_on_its_test_part(tmp_path):
    for part, count in (("train", 3), ("test", 1)):
        trees.class_tree(tmp_path / part, ["cat", "dog"], count)
    assert len(read_shift(str(tmp_path), None, ["cat", "dog"]).images) == 2

"""Folders of class folders, and lists of files and folders, as people really have them."""

import os
import random
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from kalmanclip.data.folder import read_folder, read_images
from kalmanclip.data.images import load_image
from kalmanclip.data.labelled import class_name_from_folder, natural_key
from kalmanclip.errors import DataError, ImageError

as_root = hasattr(os, "geteuid") and os.geteuid() == 0


def make(root, *files):
    """Make files (their folders too); nothing here decodes them."""
    for file in files:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return root


def relative(paths, root):
    return [path.relative_to(root).as_posix() for path in paths]


# ---- read_folder


def test_classes_and_files_in_natural_order(tmp_path):
    make(tmp_path, "class10/a.png", "Class2/img10.png", "Class2/IMG9.PNG", "Class2/img1.jpg", "apple/x.webp")
    data = read_folder(tmp_path)
    assert data.class_names == ["apple", "Class2", "class10"]
    assert relative(data.sources, tmp_path) == [
        "apple/x.webp",
        "Class2/img1.jpg",
        "Class2/IMG9.PNG",
        "Class2/img10.png",
        "class10/a.png",
    ]
    assert data.labels == [0, 1, 1, 1, 2]
    assert data.counts() == [1, 3, 1]


@pytest.mark.parametrize("spelling", ["x_1", "x 1"])
def test_labels_follow_the_names_not_the_spelling_of_the_folders(tmp_path, spelling):
    """An underscore sorts after "!", a space before it."""
    make(tmp_path, "x!/1.png", f"{spelling}/2.png")
    data = read_folder(tmp_path)
    assert data.class_names == ["x 1", "x!"]
    labels = dict(zip(relative(data.sources, tmp_path), data.labels, strict=True))
    assert labels == {"x!/1.png": 1, f"{spelling}/2.png": 0}


def test_sources_can_be_loaded(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (2, 2)).save(tmp_path / name / "x.png")
    assert [load_image(source).size for source in read_folder(str(tmp_path)).sources] == [(2, 2), (2, 2)]


def test_order_does_not_depend_on_the_file_system(tmp_path, monkeypatch):
    make(tmp_path, *(f"{c}/{i}.png" for c in "abc" for i in range(12)))
    expected = read_folder(tmp_path)
    real = type(tmp_path).iterdir

    def shuffled(path):
        listed = list(real(path))
        random.Random(1).shuffle(listed)
        return iter(listed)

    monkeypatch.setattr(type(tmp_path), "iterdir", shuffled)
    again = read_folder(tmp_path)
    assert (again.sources, again.labels) == (expected.sources, expected.labels)


def test_what_is_ignored_and_what_is_found_deeper(tmp_path):
    make(
        tmp_path,
        *("cat/1.jpg", "cat/deep/er/2.jpg", "dog/3.jpg"),
        *("cat/notes.txt", "cat/Thumbs.db", "cat/.DS_Store", "cat/._1.jpg", "cat/.hidden/4.jpg"),
        *("README.md", "overview.png", ".git/5.jpg", "__MACOSX/cat/6.jpg", "dog/@eaDir/3.jpg"),
    )
    data = read_folder(tmp_path)
    assert relative(data.sources, tmp_path) == ["cat/1.jpg", "cat/deep/er/2.jpg", "dog/3.jpg"]
    assert data.class_names == ["cat", "dog"]


def test_a_folder_named_like_an_image_is_a_folder(tmp_path):
    make(tmp_path, "cat/album.jpg/1.png", "dog/2.png")
    assert relative(read_folder(tmp_path).sources, tmp_path) == ["cat/album.jpg/1.png", "dog/2.png"]


def test_links_are_followed_but_not_in_circles_nor_upwards(tmp_path):
    root, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    make(root, "cat/1.png", "cat/inner/2.png", "dog/3.png")
    make(elsewhere, "4.png")
    (root / "cat" / "self").symlink_to(root / "cat")
    (root / "cat" / "up").symlink_to(root)  # would make the dog a cat
    (root / "cat" / "further").symlink_to(tmp_path)
    (root / "cat" / "inner" / "round").symlink_to(root / "cat" / "inner")
    (root / "cat" / "knot").symlink_to(root / "cat" / "knot")
    (root / "dog" / "more").symlink_to(elsewhere)
    (root / "dog" / "more_again").symlink_to(elsewhere)
    (root / "emu").symlink_to(elsewhere)
    data = read_folder(root)
    assert relative(data.sources, root) == [
        "cat/1.png",
        "cat/inner/2.png",
        "dog/3.png",
        "dog/more/4.png",
        "emu/4.png",
    ]


def test_broken_link_is_kept_for_the_reader_to_complain_about(tmp_path):
    make(tmp_path, "cat/1.png", "dog/2.png")
    (tmp_path / "dog" / "lost.png").symlink_to(tmp_path / "gone.png")
    data = read_folder(tmp_path)
    assert len(data) == 3
    with pytest.raises(ImageError, match=r"lost\.png is a link to a file that is gone"):
        load_image(data.sources[2])


def test_missing_and_file(tmp_path):
    make(tmp_path, "file.png")
    with pytest.raises(DataError, match=r"nowhere does not exist; check"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"file\.png is a file, not a folder"):
        read_folder(tmp_path / "file.png")


def test_images_without_class_folders_get_an_example_tree(tmp_path):
    make(tmp_path, "1.png", "2.png")
    with pytest.raises(DataError, match=r"(?s)images lie directly in it.*one folder per class.*cat/.*\.jpg"):
        read_folder(tmp_path)


def test_nothing_at_all(tmp_path):
    make(tmp_path, ".hidden/1.png", "readme.txt")
    with pytest.raises(DataError, match=r"no class folders.*it has none"):
        read_folder(tmp_path)


@pytest.mark.parametrize("class_names", [None, ["cat", "dog", "emu"]])
def test_empty_class_folder_is_named(tmp_path, class_names):
    make(tmp_path, "cat/1.png", "emu/2.png")
    (tmp_path / "dog").mkdir()
    with pytest.raises(DataError, match=r"dog has no images; add some or remove"):
        read_folder(tmp_path, class_names)


def test_class_folder_of_other_files_says_which(tmp_path):
    make(tmp_path, "cat/1.png", "dog/1.HEIC", "dog/2.heic")
    with pytest.raises(DataError, match=r"dog has no images \(only \.heic files; images end in .*\.jpg"):
        read_folder(tmp_path)


def test_one_class_is_not_enough_unless_the_names_are_known(tmp_path):
    make(tmp_path, "cat/1.png")
    with pytest.raises(DataError, match=r"only one class, 'cat'.*pass .*cat$"):
        read_folder(tmp_path)
    assert read_folder(tmp_path, ["dog", "cat"]).labels == [1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("golden_retriever", "golden retriever"),
        ("Golden Retriever", "golden_retriever"),
        ("golden__retriever", "_golden retriever"),
        (unicodedata.normalize("NFC", "café"), unicodedata.normalize("NFD", "café")),
    ],
)
@pytest.mark.parametrize("class_names", [None, ["golden retriever", "café", "poodle"]])
def test_two_folders_for_one_class_are_both_named(tmp_path, one, other, class_names):
    make(tmp_path, f"{one}/1.png", f"{other}/2.png", "poodle/3.png")
    with pytest.raises(DataError) as caught:
        read_folder(tmp_path, class_names)
    assert repr(one) in str(caught.value)
    assert repr(other) in str(caught.value)


def test_folder_without_a_name_for_a_class(tmp_path):
    make(tmp_path, "__/1.png", "cat/2.png")
    with pytest.raises(DataError, match="'__' gives an empty class name"):
        read_folder(tmp_path)


def test_known_names_are_matched_and_kept_as_they_are(tmp_path):
    make(tmp_path, "golden_retriever/1.png", "POODLE/2.png")
    data = read_folder(tmp_path, ["poodle", "pug", "Golden Retriever"])
    assert data.class_names == ["poodle", "pug", "Golden Retriever"]
    assert dict(zip(relative(data.sources, tmp_path), data.labels, strict=True)) == {
        "golden_retriever/1.png": 2,
        "POODLE/2.png": 0,
    }
    assert data.counts() == [1, 0, 1]


def test_unknown_folder_lists_the_known_and_suggests(tmp_path):
    make(tmp_path, "poodel/1.png", "pug/2.png")
    with pytest.raises(DataError, match=r"'poodel' is none.*mean 'poodle'\? Known: 'poodle', 'pug'"):
        read_folder(tmp_path, ["poodle", "pug"])
    make(tmp_path, "zzzzzz/1.png")
    many = ["poodel", *(f"class {i}" for i in range(30)), "pug"]
    with pytest.raises(DataError, match=r"'zzzzzz' is none of the known classes\. Known: .* and 12 more") as caught:
        read_folder(tmp_path, many)
    assert "mean" not in str(caught.value)


def test_known_names_must_differ(tmp_path):
    make(tmp_path, "cat/1.png")
    with pytest.raises(DataError, match="class names 'cat' and 'Cat'"):
        read_folder(tmp_path, ["cat", "Cat"])


def test_parts_of_a_data_set_are_not_classes(tmp_path):
    make(tmp_path, "Train/cat/1.png", "Train/dog/2.png", "test/cat/3.png", "test/dog/4.png")
    with pytest.raises(DataError, match=r"splits of a data set \(test, Train\).*give one of them.*Train$"):
        read_folder(tmp_path)
    assert len(read_folder(tmp_path / "Train")) == 2
    make(tmp_path / "other", "train/1.png", "plane/2.png")  # a train may be a train
    assert read_folder(tmp_path / "other").class_names == ["plane", "train"]


@pytest.mark.skipif(as_root, reason="root may list everything")
def test_unreadable_class_folder(tmp_path):
    make(tmp_path, "cat/1.png", "dog/2.png")
    (tmp_path / "dog").chmod(0)
    try:
        with pytest.raises(DataError, match=r"cannot list the folder .*dog.*permissions"):
            read_folder(tmp_path)
    finally:
        (tmp_path / "dog").chmod(0o700)


# ---- names


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("golden_retriever", "golden retriever"),
        ("  Golden__Retriever\t_", "Golden Retriever"),
        ("T-shirt", "T-shirt"),
        ("7", "7"),
        (unicodedata.normalize("NFD", "café"), "café"),
    ],
)
def test_class_name_from_folder(folder, name):
    assert class_name_from_folder(folder) == name


@settings(deadline=None)
@given(st.text())
def test_class_name_is_settled_after_one_pass(name):
    once = class_name_from_folder(name)
    assert class_name_from_folder(once) == once
    assert "_" not in once


@settings(deadline=None)
@given(st.lists(st.text(alphabet="ab01 9A_é"), unique=True))
def test_natural_order_is_one_order(names):
    backwards = names[::-1]
    assert sorted(backwards, key=natural_key) == sorted(names, key=natural_key)
    assert len({natural_key(name) for name in names}) == len(names)


def test_natural_order_examples():
    names = ["img10", "IMG2", "img1", "2", "10", "b", "A", "a01", "a1"]
    assert sorted(names, key=natural_key) == ["2", "10", "A", "a01", "a1", "b", "img1", "IMG2", "img10"]


# ---- read_images


def test_files_and_folders_are_flattened_in_the_order_given(tmp_path):
    make(tmp_path, "b/10.png", "b/9.png", "b/c/1.jpg", "b/x.txt", "a.png", "no_suffix")
    found = read_images([tmp_path / "b", str(tmp_path / "a.png"), tmp_path / "no_suffix", tmp_path / "a.png"])
    assert relative(found, tmp_path) == ["b/9.png", "b/10.png", "b/c/1.jpg", "a.png", "no_suffix", "a.png"]
    assert read_images(tmp_path / "a.png") == [tmp_path / "a.png"]
    assert relative(read_images(str(tmp_path / "b")), tmp_path) == ["b/9.png", "b/10.png", "b/c/1.jpg"]


def test_nothing_to_predict(tmp_path):
    make(tmp_path, "empty/x.txt", "1.png")
    with pytest.raises(DataError, match=r"gone\.png does not exist"):
        read_images([tmp_path / "1.png", tmp_path / "gone.png"])
    with pytest.raises(DataError, match=r"\*\.png does not exist.*patterns"):
        read_images(tmp_path / "*.png")
    with pytest.raises(DataError, match=r"empty has no images \(only \.txt files"):
        read_images(tmp_path / "empty")
    with pytest.raises(DataError, match="no images were given"):
        read_images([])

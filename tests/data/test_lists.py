"""Lists as data sets: formats, columns, parts, and rows that cannot work."""

import json

import pytest
from tests.data.trees import picture, text

from kalmanclip.data.lists import has_captions_only, is_list, read_caption_splits, read_captions, read_list
from kalmanclip.data.pairs import CaptionedImages
from kalmanclip.errors import DataError

ROWS = [
    {"image": "a.png", "class": "sea_lion", "split": "train", "caption": "a lion, at sea"},
    {"image": "inner/b.png", "class": "cat", "split": "train", "caption": "a cat"},
    {"image": "c.png", "class": "cat", "split": "validation", "caption": "another"},
    {"image": "d.png", "class": "Sea_Lion", "split": "TEST", "caption": "the last"},
]


def write(folder, kind, rows=ROWS):
    for row in rows:
        picture(folder / row.get("image", row.get("path", "x.png")))
    path = folder / f"list.{kind}"
    if kind == "csv":
        lines = [",".join(rows[0]), *(",".join(f'"{value}"' for value in row.values()) for row in rows)]
        return text(path, *lines)
    return text(path, json.dumps(rows)) if kind == "json" else text(path, *map(json.dumps, rows))


@pytest.mark.parametrize("kind", ["csv", "json", "jsonl"])
def test_all_formats(tmp_path, kind):
    path = write(tmp_path, kind, [row | {"class": row["class"].lower()} for row in ROWS])
    splits = read_list(path)
    assert splits.class_names == ["cat", "sea lion"]
    assert splits.train.sources == [tmp_path / "a.png", tmp_path / "inner" / "b.png"]
    assert [splits.train.labels, splits.val.labels, splits.test.labels] == [[1, 0], [0], [1]]
    pairs = read_captions(path)
    assert pairs.captions == [row["caption"] for row in ROWS]
    assert read_captions(path, "train").captions == ["a lion, at sea", "a cat"]


def test_other_column_names_and_no_split(tmp_path):
    path = write(tmp_path, "csv", [{"Path": "x.png", "Label": "dog"}, {"Path": "x.png", "Label": "cat"}])
    splits = read_list(path)
    assert (len(splits.train), splits.val, splits.test) == (2, None, None)


def test_class_names(tmp_path):
    rows = [{"path": "a.png", "label": 1}, {"path": "b.png", "label": 0}]
    for kind in ("csv", "json"):
        assert read_list(write(tmp_path, kind, rows), ["cat", "dog"]).train.labels == [1, 0]
    assert read_list(write(tmp_path, "csv", rows)).class_names == ["0", "1"]
    with pytest.raises(DataError, match="numbers without names"):
        read_list(write(tmp_path, "json", rows))
    named = write(tmp_path, "csv", ROWS)
    assert read_list(named, ["sea lion", "cat"]).train.labels == [0, 1]
    with pytest.raises(DataError, match="none of the known classes"):
        read_list(named, ["cat", "dog"])


def test_byte_order_mark(tmp_path):
    path = write(tmp_path, "csv", [ROWS[0], ROWS[1]])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(read_list(path).train) == 2


@pytest.mark.parametrize(
    ("kind", "content", "problem"),
    [
        ("csv", "image,class\na.png\n", "line 2 of .*no value for class or label .*image, class"),
        ("csv", "file,class\na.png,cat\n", "no value for image or path"),
        ("csv", "image,class,split\na.png,cat,holdout\na.png,dog,train\n", "split 'holdout'"),
        ("csv", "image,class\n", "no rows"),
        ("csv", "image,class\nb.png,cat\na.png,dog\n", r"1 of 2 images are missing: .*b\.png \(line 2"),
        ("csv", "image,class\na.png,cat\n", "only one class"),
        ("json", "{}", "must hold a list"),
        ("json", "[1]", "entry 0 of"),
        ("json", "[", "is not JSON"),
        ("jsonl", '{"image": "a.png"}\n{\n', "line 2 of .* is not JSON"),
        ("txt", "", r"\.csv, \.json"),
    ],
)
def test_refused(tmp_path, kind, content, problem):
    picture(tmp_path / "a.png")
    path = tmp_path / f"list.{kind}"
    path.write_text(content)
    with pytest.raises(DataError, match=problem):
        read_list(path)


def test_absent(tmp_path):
    with pytest.raises(DataError, match=r"there is no list .*list\.csv"):
        read_list(tmp_path / "list.csv")


def test_captions_are_checked(tmp_path):
    with pytest.raises(DataError, match="no value for caption or text"):
        read_captions(write(tmp_path, "json", [{"image": "a.png", "caption": ""}]))
    with pytest.raises(DataError, match="no rows with split 'val'"):
        read_captions(write(tmp_path, "json", [{"image": "a.png", "caption": "x"}]), "val")
    with pytest.raises(DataError, match="2 images but 1 captions"):
        CaptionedImages(["a", "b"], ["x"])
    with pytest.raises(DataError, match="image 1 is ' '"):
        CaptionedImages(["a", "b"], ["x", " "])


def test_pairs():
    pairs = CaptionedImages(["a.png", "b.png"], ["a sea lion.", "a cat."])
    assert (len(pairs), pairs.subset([1]).captions) == (2, ["a cat."])


@pytest.mark.parametrize("kind", ["csv", "json", "jsonl"])
def test_parts_of_pairs(tmp_path, kind):
    splits = read_caption_splits(write(tmp_path, kind))
    assert splits.train.captions == ["a lion, at sea", "a cat"]
    assert (splits.val.captions, splits.test.captions) == (["another"], ["the last"])
    assert (splits.get(None, "x"), splits.get("val", "x")) == (splits.test, splits.val)
    whole = read_caption_splits(write(tmp_path, kind, [{"path": "a.png", "text": "x"}]))
    assert (whole.val, whole.test) == (None, None)
    assert whole.get(None, "x") is whole.train
    with pytest.raises(DataError, match=r"list.csv has no split 'test'; it has train"):
        whole.get("test", "list.csv")


def test_what_a_list_is_about(tmp_path):
    assert not has_captions_only(write(tmp_path, "csv"))  # both: classes
    assert has_captions_only(write(tmp_path, "json", [{"image": "a.png", "caption": "x", "class": None}]))
    with pytest.raises(DataError, match=r"class \(or label\), or caption \(or text\); it has image, captoin"):
        has_captions_only(write(tmp_path, "json", [{"image": "a.png"}, {"image": "a.png", "captoin": "x"}]))
    assert [is_list(name) for name in ("a.CSV", "a.jsonl", "photos")] == [True, True, False]

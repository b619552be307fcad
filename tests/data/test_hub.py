"""Data sets of Hugging Face, made here: saved folders, parquet, image folders; columns, labels, parts, errors."""

import io
import sys

import numpy as np
import pytest
from PIL import Image

from kalmanclip.data import index_pairs, load_image, read_hugging_face, read_hugging_face_captions
from kalmanclip.data.hub import has_captions_only
from kalmanclip.data.images import content_identity, image_identity
from kalmanclip.data.labelled import fingerprint
from kalmanclip.errors import ConfigError, DataError, ImageError

datasets = pytest.importorskip("datasets", reason="the package `datasets` (extra [huggingface]) is not installed")


@pytest.fixture(autouse=True)
def _own_cache_and_no_network(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()


def pixels(value):
    return np.full((4, 6, 3), value, dtype=np.uint8)


def picture(value):
    return Image.fromarray(pixels(value))


def encoded(value):
    stream = io.BytesIO()
    picture(value).save(stream, "PNG")
    return stream.getvalue()


def table(values, **columns):
    """Rows with an image of one grey each; features are given as (values, feature)."""
    rows = {"image": [picture(v) for v in values]} | {name: given for name, (given, _) in columns.items()}
    features = datasets.Features({"image": datasets.Image()} | {name: f for name, (_, f) in columns.items()})
    return datasets.Dataset.from_dict(rows, features=features)


PETS = datasets.ClassLabel(names=["tabby_cat", "dog"])


@pytest.fixture
def saved(tmp_path):
    parts = {
        "train": table([0, 50, 100], label=([0, 1, 0], PETS)),
        "validation": table([150], label=([1], PETS)),
        "test": table([200, 250], label=([1, 0], PETS)),
    }
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "pets")
    return tmp_path / "pets"


@pytest.mark.parametrize("prefix", ["hf:", ""])
def test_saved_folder(saved, prefix):
    splits = read_hugging_face(f"{prefix}{saved}")
    assert splits.class_names == ["tabby cat", "dog"]
    assert [part.labels for _, part in splits.items()] == [[0, 1, 0], [1], [1, 0]]
    assert [name for name, _ in splits.items()] == ["train", "val", "test"]
    assert np.array_equal(np.asarray(load_image(splits.test.sources[1])), pixels(250))
    assert splits.templates == ("a photo of a {}.",)


def test_images_have_an_identity_wherever_they_lie(saved, tmp_path):
    one = read_hugging_face(f"hf:{saved}")
    assert image_identity(one.train.sources[2]) == "pets/train/2"
    moved = saved.rename(tmp_path / "elsewhere")
    (tmp_path / "other").mkdir()
    other = read_hugging_face(f"hf:{moved.rename(tmp_path / 'other' / 'pets')}")
    assert fingerprint(one.train) == fingerprint(other.train)


def test_content_is_that_of_the_file(tmp_path):
    """Tables that repeat an image for each of its captions are common: it is one image all the same."""
    table([7, 8, 7], text=(["x", "y", "z"], datasets.Value("string"))).save_to_disk(tmp_path / "d")
    pairs = read_hugging_face_captions(str(tmp_path / "d")).train
    first, second, again = map(content_identity, pairs.sources)
    assert first == again != second
    assert index_pairs(pairs).matches == [(0, 0), (1, 1), (0, 2)]


def test_names_templates_and_splits_can_be_chosen(saved):
    splits = read_hugging_face(
        f"hf:{saved}?test=validation&template=art%20of%20{{}}", class_names=["cat", "hound"], train="test"
    )
    assert splits.class_names == ["cat", "hound"]
    assert (len(splits.train), splits.val, len(splits.test)) == (2, None, 1)
    assert splits.templates == ("art of {}",)
    assert read_hugging_face(str(saved), templates=["a {}", "the {}"]).templates == ("a {}", "the {}")


def test_one_split_and_string_labels(tmp_path):
    labels = ["sea_lion", "cat", "", "cat"]
    table([1, 2, 3, 4], label=(labels, datasets.Value("string"))).save_to_disk(tmp_path / "one")
    splits = read_hugging_face(str(tmp_path / "one"))
    assert (splits.class_names, splits.train.labels, splits.test) == (["cat", "sea lion"], [1, 0, 0], None)
    assert np.asarray(load_image(splits.train.sources[2]))[0, 0, 0] == 4  # the row without a label was left out


def test_unlabelled_parts_are_no_parts(tmp_path):
    parts = {"train": table([1, 2], label=([0, 1], PETS)), "test": table([3], label=([-1], PETS))}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "d")
    assert read_hugging_face(str(tmp_path / "d")).test is None
    table([3], label=([None], PETS)).save_to_disk(tmp_path / "none")
    with pytest.raises(DataError, match=r"no row of .* has a value in the column 'label'"):
        read_hugging_face(str(tmp_path / "none"))


def test_numbers_need_names(tmp_path):
    table([1, 2], label=([1, 0], datasets.Value("int64"))).save_to_disk(tmp_path / "d")
    with pytest.raises(DataError, match="pass class_names"):
        read_hugging_face(str(tmp_path / "d"))
    assert read_hugging_face(str(tmp_path / "d"), class_names=["cat", "dog"]).train.labels == [1, 0]


def test_parquet_file_and_folder(tmp_path):
    folder = tmp_path / "parquet"
    folder.mkdir()
    table([7, 9], label=([1, 0], PETS)).to_parquet(folder / "train-00000-of-00001.parquet")
    table([8], label=([1], PETS)).to_parquet(folder / "test-00000-of-00001.parquet")
    splits = read_hugging_face(f"hf:{folder}")
    assert (splits.class_names, splits.train.labels, splits.test.labels) == (["tabby cat", "dog"], [1, 0], [1])
    assert np.asarray(load_image(splits.test.sources[0]))[0, 0, 0] == 8
    alone = read_hugging_face(f"hf:{folder / 'train-00000-of-00001.parquet'}")
    assert (len(alone.train), alone.test) == (2, None)


def test_bytes_of_other_programs(tmp_path):
    import pyarrow
    import pyarrow.parquet

    columns = {"photo": [encoded(5), b"no image"], "label": ["cat", "dog"]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "bare.parquet")
    splits = read_hugging_face(str(tmp_path / "bare.parquet"))
    assert np.asarray(load_image(splits.train.sources[0]))[0, 0, 0] == 5
    with pytest.raises(ImageError, match=r"bare.parquet/train/1 is not an image"):
        load_image(splits.train.sources[1])
    with pytest.raises(ImageError, match="more than the limit of 10"):
        load_image(splits.train.sources[0], max_pixels=10)


def test_image_folder_with_captions(tmp_path):
    folder = tmp_path / "photos"
    (folder / "train").mkdir(parents=True)
    for name, value in {"a.png": 10, "b.png": 20}.items():
        picture(value).save(folder / "train" / name)
    (folder / "train" / "metadata.csv").write_text("file_name,text\nb.png,a bright one\na.png,a {dark} one\n")
    pairs = read_hugging_face_captions(f"hf:{folder}").train
    shades = [int(np.asarray(load_image(source))[0, 0, 0]) for source in pairs.sources]
    assert sorted(zip(pairs.captions, shades, strict=True)) == [("a bright one", 20), ("a {dark} one", 10)]
    assert has_captions_only(f"hf:{folder}")


def test_several_captions_of_an_image_are_several_pairs(tmp_path):
    texts = [["a cat", "an animal"], [], ["a dog", " "]]
    feature = datasets.Sequence(datasets.Value("string"))
    table([1, 2, 3], captions=(texts, feature)).save_to_disk(tmp_path / "d")
    pairs = read_hugging_face_captions(str(tmp_path / "d")).train
    assert pairs.captions == ["a cat", "an animal", "a dog"]
    assert [image_identity(source) for source in pairs.sources] == ["d/train/0", "d/train/0", "d/train/2"]


def test_classes_go_before_captions(tmp_path):
    strings = datasets.Value("string")
    both = table([1, 2], label=([0, 1], PETS), text=(["x", "y"], strings))
    both.save_to_disk(tmp_path / "both")
    assert not has_captions_only(str(tmp_path / "both"))
    assert has_captions_only(f"{tmp_path / 'both'}?caption=text")
    assert read_hugging_face_captions(str(tmp_path / "both")).train.captions == ["x", "y"]


def test_ambiguous_and_missing_columns(tmp_path):
    two = {"coarse": ([0, 1], PETS), "fine": ([1, 0], PETS)}
    table([1, 2], **two).save_to_disk(tmp_path / "two")
    with pytest.raises(ConfigError, match=r"several label columns .*\?label=COLUMN"):
        read_hugging_face(str(tmp_path / "two"))
    assert read_hugging_face(f"{tmp_path / 'two'}?label=fine").train.labels == [1, 0]
    with pytest.raises(ConfigError, match="no column 'colour'; it has image, coarse, fine"):
        read_hugging_face(f"{tmp_path / 'two'}?label=colour")
    with pytest.raises(DataError, match="no caption column"):
        read_hugging_face_captions(str(tmp_path / "two"))
    datasets.Dataset.from_dict({"label": ["a", "b"]}).save_to_disk(tmp_path / "blind")
    with pytest.raises(DataError, match="no image column"):
        read_hugging_face(str(tmp_path / "blind"))


def test_splits_that_are_not_understood(tmp_path):
    parts = {"left": table([1], label=([0], PETS)), "right": table([2], label=([1], PETS))}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "d")
    with pytest.raises(ConfigError, match="splits left, right; say which is which"):
        read_hugging_face(str(tmp_path / "d"))
    splits = read_hugging_face(f"{tmp_path / 'd'}?train=left&test=right")
    assert (splits.train.labels, splits.test.labels) == ([0], [1])
    with pytest.raises(ConfigError, match="no split 'middle'"):
        read_hugging_face(f"{tmp_path / 'd'}?train=middle")


@pytest.mark.parametrize(
    ("spelling", "error", "problem"),
    [
        ("hf:", ConfigError, "needs the name"),
        ("hf:owner/name?colour=red", ConfigError, "no choice 'colour'; known: image, label"),
        ("hf:owner/name?label", ConfigError, "cannot be read"),
        ("hf:./no/such/folder", DataError, "no file or folder"),
        ("hf:owner/name", DataError, r"owner/name .*save_to_disk"),
    ],
)
def test_refused(spelling, error, problem):
    with pytest.raises(error, match=problem):
        read_hugging_face(spelling)


def test_wrong_number_of_class_names(saved):
    with pytest.raises(ConfigError, match=r"3 class names were given, but .* has 2"):
        read_hugging_face(str(saved), class_names=["a", "b", "c"])


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("Config name is missing.\nPlease pick one among ['a', 'b']", r"hf:owner/name:CONFIG; known: \['a', 'b'\]"),
        ("Dataset scripts are no longer supported, but found x.py", "execute a script"),
    ],
)
def test_what_the_package_says_is_explained(monkeypatch, message, problem):
    def refuse(path, name=None, revision=None):
        assert (path, name, revision) == ("owner/name", None, "v1")
        raise ValueError(message)

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(DataError, match=problem):
        read_hugging_face("hf:owner/name?revision=v1")


def test_scripts_are_not_executed(tmp_path):
    folder = tmp_path / "scripted"
    folder.mkdir()
    (folder / "scripted.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    with pytest.raises(DataError, match="cannot be read"):
        read_hugging_face(str(folder))
    assert not (tmp_path / "executed").exists()


def test_without_the_package_or_with_an_old_one(monkeypatch, saved):
    monkeypatch.setattr(datasets, "__version__", "3.6.0")
    with pytest.raises(ConfigError, match=r"install 4\.0 or newer"):
        read_hugging_face(str(saved))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"pip install \"kalmanclip\[huggingface\]\""):
        read_hugging_face(str(saved))


def test_damaged(saved):
    (saved / "train" / "state.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read as a data set"):
        read_hugging_face(str(saved))

"""The few-shot task: what is drawn from where, drawing again from a record, and what is refused."""

import dataclasses
import json

import numpy as np
import pytest

from kalmanclip.data import DEFAULT_TEMPLATES, LabelledImages, sample_shots
from kalmanclip.data.task import FewShotTask, few_shot_task
from kalmanclip.errors import ConfigError, DataError


def images_of(counts, prefix="", names=None):
    names = names or [f"class {i}" for i in range(len(counts))]
    sources = [f"{prefix}{name}/{i}" for name, count in zip(names, counts, strict=True) for i in range(count)]
    return LabelledImages(sources, [label for label, count in enumerate(counts) for _ in range(count)], names)


@pytest.mark.parametrize(("shots", "validation"), [(1, 1), (2, 2), (4, 4), (8, 4)])
def test_sizes(shots, validation):
    train, val, test = images_of([20, 30]), images_of([10, 10], "val/"), images_of([3, 3], "test/")
    task = few_shot_task(train, val, test, shots, 1, "a {}.")
    assert task.train.counts() == [shots, shots]
    assert task.validation.counts() == [validation, validation]
    assert all(source.startswith("val/") for source in task.validation.sources)
    assert task.test is test
    assert (task.seed, task.templates, task.draw.validation_from) == (1, ("a {}.",), "val")
    assert task.train.sources == sample_shots(train, shots, 1).sources == train.subset(task.draw.train).sources


def test_without_val_split_the_rest_of_train_serves():
    train = images_of([20, 6, 4])
    task = few_shot_task(train, None, None, 4, 2)
    assert task.train.counts() == [4, 4, 4]
    assert task.validation.counts() == [4, 2, 0]
    assert not set(task.train.sources) & set(task.validation.sources)
    assert task.draw.validation_from == "train"


def test_nothing_left_over():
    task = few_shot_task(images_of([2, 2]), None, None, 2, 1)
    assert (task.validation, task.draw.validation_from) == (None, None)


def test_short_classes():
    train, val = images_of([2, 9]), images_of([1, 9], "val/")
    task = few_shot_task(train, val, None, 4, 1)
    assert (task.train.counts(), task.validation.counts()) == ([4, 4], [4, 4])
    task = few_shot_task(train, val, None, 4, 1, replacement=False)
    assert (task.train.counts(), task.validation.counts()) == ([2, 4], [1, 4])
    with pytest.raises(DataError, match=r"1 classes have no training images \('class 1'\)"):
        few_shot_task(images_of([2, 0]), val, None, 4, 1)


def test_everything():
    task = few_shot_task(images_of([3, 3]), images_of([5, 6], "val/"), None, None, 1)
    assert (len(task.train), len(task.validation)) == (6, 11)
    assert few_shot_task(images_of([3, 3]), None, None, None, 1).validation is None


@pytest.mark.parametrize("with_val", [True, False])
def test_again_from_a_record(with_val):
    train, val = images_of([20, 3]), images_of([9, 9], "val/") if with_val else None
    task = few_shot_task(train, val, None, 4, 3, ["a {}.", "the {}."])
    record = json.loads(json.dumps(task.to_dict()))
    again = FewShotTask.from_dict(record, train, val)
    assert (again.train.sources, again.validation.sources) == (task.train.sources, task.validation.sources)
    assert (again.draw, again.seed, again.templates) == (task.draw, 3, ("a {}.", "the {}."))
    moved = LabelledImages([f"elsewhere/{source}" for source in train.sources], train.labels, train.class_names)
    assert len(FewShotTask.from_dict(record, moved, val).train) == 8


def test_record_of_other_images():
    train, val = images_of([20, 3]), images_of([9, 9], "val/")
    record = few_shot_task(train, val, None, 4, 3).to_dict()
    with pytest.raises(DataError, match="the train split is not the one"):
        FewShotTask.from_dict(record, images_of([20, 4]), val)
    with pytest.raises(DataError, match="the val split is not the one"):
        FewShotTask.from_dict(record, train)
    for damaged in ({}, {"draw": {"shots": 1}, "templates": []}, {"draw": 3, "templates": []}):
        with pytest.raises(DataError, match="not the record"):
            FewShotTask.from_dict(damaged, train, val)
    with pytest.raises(ConfigError, match="no draw to record"):
        FewShotTask(train).to_dict()


def test_arrays_are_told_apart_by_their_pixels():
    pixels = np.arange(6 * 16, dtype=np.uint8).reshape(6, 4, 4)
    train = LabelledImages(list(pixels), [0, 0, 0, 1, 1, 1], ["a", "b"])
    record = few_shot_task(train, None, None, 1, 1).to_dict()
    FewShotTask.from_dict(record, LabelledImages(list(pixels.copy()), train.labels, train.class_names))
    with pytest.raises(DataError, match="not the one"):
        FewShotTask.from_dict(record, LabelledImages(list(pixels[::-1]), train.labels, train.class_names))


def test_task_holds_what_it_is_given():
    images = images_of([2, 2])
    task = FewShotTask(images, validation=images.subset([0]), test=images.subset([]), templates=["a {}."], seed=3)
    assert task.class_names == ["class 0", "class 1"]
    assert task.templates == ("a {}.",)
    assert task.prompts == [["a class 0."], ["a class 1."]]
    assert task.seed == 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        task.seed = 4


def test_task_defaults():
    task = FewShotTask(images_of([1]))
    assert (task.validation, task.test, task.templates) == (None, None, DEFAULT_TEMPLATES)


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize(
    ("names", "problem"),
    [(["cat"], "1 classes instead of 2"), (["dog", "cat"], "class 0 is 'dog' instead of 'cat'")],
)
def test_splits_must_agree_on_the_classes(split, names, problem):
    train = images_of([1, 1], names=["cat", "dog"])
    with pytest.raises(DataError, match=f"the {split} images .*{problem}"):
        FewShotTask(train, **{split: images_of([1] * len(names), names=names)})


def test_templates_are_checked():
    with pytest.raises(ConfigError):
        FewShotTask(images_of([1]), templates=("no hole",))

"""Labelled images: what is accepted, what is refused and why."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kalmanclip.data.labelled import LabelledImages, from_lists
from kalmanclip.errors import DataError


def test_length_counts_and_subset():
    data = LabelledImages(["a", "b", "c", "d"], [0, 2, 2, 0], ["x", "y", "z"])
    assert len(data) == 4
    assert data.counts() == [2, 0, 2]
    part = data.subset([3, 1, 1])
    assert (part.sources, part.labels, part.class_names) == (["d", "b", "b"], [0, 2, 2], ["x", "y", "z"])
    assert len(data.subset([])) == 0
    assert data.subset(np.array([1])).sources == ["b"]


@pytest.mark.parametrize("indices", [[4], [-1], [0, 99]])
def test_subset_outside(indices):
    with pytest.raises(DataError, match=r"outside 0\.\.3"):
        LabelledImages(list("abcd"), [0] * 4, ["x"]).subset(indices)


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), max_size=30), st.data())
def test_counts_and_subset_agree_with_counting(labels, data):
    images = LabelledImages([str(i) for i in range(len(labels))], labels, list("abcde"))
    assert images.counts() == [labels.count(label) for label in range(5)]
    chosen = data.draw(st.lists(st.sampled_from(range(len(labels))))) if labels else []
    part = images.subset(chosen)
    assert [(int(source), label) for source, label in zip(part.sources, part.labels, strict=True)] == [
        (i, labels[i]) for i in chosen
    ]


@pytest.mark.parametrize(
    ("sources", "labels", "names", "problem"),
    [
        (["a"], [0, 1], ["x", "y"], "1 images but 2 labels"),
        (["a"], [2], ["x", "y"], r"label 2 of image 0 is outside 0\.\.1"),
        (["a", "b"], [0, -1], ["x", "y"], "label -1 of image 1"),
        (["a"], [0.0], ["x"], "0.0 of image 0 is not an integer"),
        (["a"], ["x"], ["x"], "'x' of image 0 is not an integer"),
        ([], [], [], "no class names"),
        (["a"], [0], [" "], "not a class name"),
        (["a"], [0], [0], "not a class name"),
    ],
)
def test_refused(sources, labels, names, problem):
    with pytest.raises(DataError, match=problem):
        LabelledImages(sources, labels, names)


def test_frozen_and_independent_of_the_lists_it_was_made_from():
    labels = [0, 1]
    data = LabelledImages(("a", "b"), labels, ("x", "y"))
    labels[0] = 1
    assert data.labels == [0, 1]
    assert isinstance(data.sources, list)
    assert isinstance(data.class_names, list)
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.labels = [1, 1]


def test_two_classes_may_share_a_name():
    """ImageNet's list has 'missile' and 'sunglasses' twice."""
    assert LabelledImages(["a"], [1], ["missile", "missile"]).counts() == [0, 1]


# ---- from_lists


def test_strings_give_their_own_classes_in_folder_order():
    data = from_lists(["a", "b", "c", "d"], ["big_class10", "Big class2", "big_class10", "apple"])
    assert data.class_names == ["apple", "Big class2", "big class10"]
    assert data.labels == [2, 1, 2, 0]


def test_strings_with_known_names():
    data = from_lists(["a", "b"], ["DOG", "sea_lion"], ["sea lion", "cat", "dog"])
    assert data.labels == [2, 0]
    assert data.class_names == ["sea lion", "cat", "dog"]
    with pytest.raises(DataError, match=r"label 'dgo' is none.*mean 'dog'\?"):
        from_lists(["a"], ["dgo"], ["cat", "dog"])


@pytest.mark.parametrize("labels", [[0, 1], np.array([0, 1]), torch.tensor([0, 1]), np.array([0, 1], np.uint8), (0, 1)])
def test_integers_with_names(labels):
    data = from_lists(np.zeros((2, 8, 8), np.uint8), labels, ["cat", "dog"])
    assert data.labels == [0, 1]
    assert all(type(label) is int for label in data.labels)
    assert data.sources[0].shape == (8, 8)


def test_numpy_strings():
    assert from_lists(["a", "b"], np.array(["cat", "dog"])).class_names == ["cat", "dog"]


@pytest.mark.parametrize("labels", [[0, 1], np.array([0, 1]), torch.tensor([0, 1])])
def test_integers_without_names_are_refused_with_the_way_out(labels):
    with pytest.raises(DataError, match=r"pass class_names.*range\(10\)\] for digits"):
        from_lists(["a", "b"], labels)


def test_digits_are_legitimate_names():
    assert from_lists(["a", "b"], [3, 9], [str(i) for i in range(10)]).class_names[9] == "9"
    assert from_lists(["a", "b"], ["10", "9"]).class_names == ["9", "10"]


@pytest.mark.parametrize(
    ("sources", "labels", "problem"),
    [
        (["a"], ["x", "y"], "1 images but 2 labels"),
        (["a", "b"], ["x", 1], "mix"),
        ([], [], "no images"),
        (["a", "b"], ["cat", "cat"], "only one class, 'cat'"),
        (["a", "b", "c"], ["Cat", "cat", "dog"], "'Cat' and 'cat' give the same class name"),
        (["a", "b", "c"], ["sea_lion", "sea lion", "dog"], "'sea lion' and 'sea_lion'"),
        (["a", "b"], ["", "dog"], "empty class name"),
    ],
)
def test_lists_refused(sources, labels, problem):
    with pytest.raises(DataError, match=problem):
        from_lists(sources, labels)


def test_one_class_or_none_is_fine_when_the_names_are_known():
    assert from_lists(["a"], ["cat"], ["cat", "dog"]).labels == [0]
    assert len(from_lists([], [], ["cat", "dog"])) == 0

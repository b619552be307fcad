"""Pairs: distinct images and texts, and the task that is made of them. Captions are taken as they are."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests.data.trees import picture

from kalmanclip.data import CaptionedImages, class_prompts, index_pairs, task_from_pairs
from kalmanclip.data.images import LazyImage
from kalmanclip.data.pairs import caption_key
from kalmanclip.errors import DataError

HARD = ["a {} in {braces}", "snake_case stays", "snake case stays", "Ünïcode  and CAPITALS", "100 % [red]"]


def test_captions_are_taken_as_they_are():
    task = task_from_pairs(CaptionedImages([Path(f"{i}.png") for i in range(5)], HARD), seed=3)
    assert (task.class_names, task.train.labels, task.seed) == (HARD, [0, 1, 2, 3, 4], 3)
    assert [prompt for (prompt,) in task.prompts] == HARD
    assert class_prompts(task.templates, HARD[:1]) == [["a {} in {braces}"]]
    spaced = CaptionedImages(["1", "2"], [" x\n", "y"])  # but for the white space around them
    assert task_from_pairs(spaced).class_names == index_pairs(spaced).texts == ["x", "y"]


def test_equal_captions_are_one_text():
    captions = ["A cat.", "a dog", " a  cat.", "a_cat."]  # case and white space do not make another text
    task = task_from_pairs(CaptionedImages(["1", "2", "3", "4"], captions))
    assert (task.class_names, task.train.labels) == (["A cat.", "a dog", "a_cat."], [0, 1, 0, 2])


def test_a_model_may_have_its_own_idea_of_equal():
    task = task_from_pairs(CaptionedImages(["1", "2", "3"], ["x", "y", "z"]), same=["k", "l", "k"])
    assert (task.class_names, task.train.labels) == (["x", "y"], [0, 1, 0])


def test_one_caption_tells_nothing_apart():
    with pytest.raises(DataError, match="1 different captions are too few"):
        task_from_pairs(CaptionedImages(["1", "2"], ["x", "X"]))


class Computed(LazyImage):
    def __init__(self, identity):
        self._identity = identity

    @property
    def identity(self):
        return self._identity

    def load(self, max_pixels):
        return Image.new("RGB", (2, 2))


def test_index_has_every_image_and_text_once():
    array, other = np.zeros((2, 2, 3), dtype=np.uint8), np.ones((2, 2, 3), dtype=np.uint8)
    sources = [Path("a/1.png"), "a/./1.png", Path("b/1.png"), Computed("c"), Computed("c"), array, array.copy(), other]
    index = index_pairs(CaptionedImages(sources, ["x", "y", "x", "z", "Z ", "x", "y", "x"]))
    assert index.matches == [(0, 0), (0, 1), (1, 0), (2, 2), (2, 2), (3, 0), (3, 1), (4, 0)]
    assert (len(index.sources), index.texts) == (5, ["x", "y", "z"])


def test_copies_of_a_file_are_one_image(tmp_path):
    first, other = picture(tmp_path / "a.png"), picture(tmp_path / "b.png", 9)
    copy = tmp_path / "elsewhere.png"
    copy.write_bytes(first.read_bytes())
    index = index_pairs(CaptionedImages([first, other, copy], ["x", "y", "z"]))
    assert (index.sources, index.matches) == ([first, other], [(0, 0), (1, 1), (0, 2)])


captions = st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=12)


@given(captions)
def test_every_pair_keeps_its_caption(captions):
    pairs = CaptionedImages([Path(f"{i}.png") for i in range(len(captions))], captions)
    index = index_pairs(pairs)
    assert [caption_key(index.texts[t]) for _, t in index.matches] == list(map(caption_key, captions))
    assert len(set(map(caption_key, index.texts))) == len(index.texts)
    if len(index.texts) > 1:
        task = task_from_pairs(pairs)
        assert (task.class_names, task.train.labels) == (index.texts, [t for _, t in index.matches])

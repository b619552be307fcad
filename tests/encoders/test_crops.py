"""Crops that are cut on the device, against Pillow's."""

import numpy as np
import pytest
import torch
from PIL import Image

from kalmanclip.encoders import crops
from kalmanclip.encoders.crops import Pictures, cut_boxes
from kalmanclip.encoders.features import decoded, fresh_crops
from kalmanclip.encoders.preprocess import RandomCrop

BICUBIC, FLIP = Image.Resampling.BICUBIC, Image.Transpose.FLIP_LEFT_RIGHT


def pictures():
    """Of several sizes, smooth with noise, so that a shift by half a pixel shows."""
    rng = np.random.default_rng(0)
    for width, height in ((64, 64), (200, 90), (33, 120), (40, 31)):
        x, y = np.meshgrid(np.linspace(0, 7, width), np.linspace(0, 5, height))
        waves = np.stack([np.sin(x + y), np.cos(2 * x), np.sin(3 * y)], axis=-1)
        yield Image.fromarray((120 + 80 * waves + rng.normal(0, 15, waves.shape)).clip(0, 255).astype(np.uint8))


def test_boxes_are_resized_as_pillow_does():
    """Smaller and larger, at the edges and within, mirrored or not, all in one batch: to one level of grey."""
    images = list(pictures())
    boxes = [(0, 0, 64, 64), (20, 3, 180, 88), (0, 90, 33, 120), (11, 10, 23, 25)]
    flips = [False, True, False, True]
    tensors = [torch.from_numpy(np.array(image)) for image in images]
    found = cut_boxes(tensors, boxes, flips, 32)
    for image, box, flip, ours in zip(images, boxes, flips, found, strict=True):
        theirs = image.resize((32, 32), BICUBIC, box=box)
        theirs = np.array(theirs.transpose(FLIP) if flip else theirs).astype(float)
        difference = np.abs(ours.numpy() - theirs)
        assert difference.max() <= 1, (box, difference.max())  # Pillow rounds twice
        assert difference.mean() < 0.3


@pytest.mark.parametrize("room", [None, 0])
def test_a_picture_has_the_crops_of_the_slow_reference(tiny, room, monkeypatch):
    """Wherever it is kept; another crop in every pass, and the same one when it is asked for again."""
    if room is not None:
        monkeypatch.setattr(crops, "free_bytes", lambda device: room)
    images = list(pictures())
    kept = Pictures(images, 1, torch.device("cpu"))
    seen = []
    for number in (0, 1, 0):
        crop = RandomCrop(tiny, (0.3, 1.0), 7, number)
        found = kept.crops([3, 1, 1], crop)
        for position, ours in zip((3, 1, 1), found, strict=True):
            theirs = np.array(crop.cut(images[position])).astype(float)
            assert np.abs(ours.numpy() - theirs).max() <= 1
        seen.append(found)
    assert torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[0], seen[1])


def test_fresh_crops_are_prepared_like_all_images(tiny):
    images, positions = list(pictures()), torch.tensor([2, 0])
    found = fresh_crops(tiny, images, (0.3, 1.0), 5)(positions, 4)
    (theirs,) = decoded(tiny, [images[2], images[0]], RandomCrop(tiny, (0.3, 1.0), 5, 4))
    assert found.shape == theirs.shape
    level = 1 / 255 / 0.25  # one level of grey, normalised
    assert (found - theirs).abs().max() < 1.1 * level


def test_a_preparation_that_takes_no_bytes_is_cut_by_pillow(tiny):
    import dataclasses

    own = dataclasses.replace(tiny, preprocess=lambda image: tiny.preprocess(image))
    images, positions = list(pictures()), torch.tensor([1, 3])
    found = fresh_crops(own, images, (0.3, 1.0), 5)(positions, 2)
    (theirs,) = decoded(own, [images[1], images[3]], RandomCrop(own, (0.3, 1.0), 5, 2))
    assert torch.equal(found, theirs)

"""Parallel decoding: order, sizes, errors by name, bounded memory, no threads left behind."""

import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from kalmanclip.data.images import image_batches
from kalmanclip.errors import ConfigError, ImageError


def to_tensor(image):
    return torch.from_numpy(np.array(image.resize((4, 4)))).movedim(2, 0).float()


def grey(value):
    return np.full((2, 2), value, dtype=np.uint8)


@settings(deadline=None)
@given(count=st.integers(0, 20), batch_size=st.integers(1, 7), workers=st.sampled_from([0, 1, 3, None]))
def test_order_and_shapes(count, batch_size, workers):
    batches = list(image_batches([grey(i) for i in range(count)], to_tensor, batch_size, workers))
    assert [len(batch) for batch in batches] == [
        min(batch_size, count - start) for start in range(0, count, batch_size)
    ]
    assert all(batch.shape[1:] == (3, 4, 4) for batch in batches)
    assert [int(image[0, 0, 0]) for batch in batches for image in batch] == list(range(count))


def test_order_when_early_images_take_longest():
    def slow_first(image):
        value = image.getpixel((0, 0))[0]
        time.sleep(0.02 if value < 2 else 0)
        return to_tensor(image)

    (batch,) = image_batches([grey(i) for i in range(10)], slow_first, 10, workers=4)
    assert batch[:, 0, 0, 0].tolist() == list(range(10))


def test_work_is_done_in_parallel():
    meeting = threading.Barrier(3, timeout=600)  # breaks unless three are inside at once

    def meet(image):
        meeting.wait()
        return to_tensor(image)

    assert len(list(image_batches([grey(0)] * 6, meet, 3, workers=3))) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_file_is_named_and_the_rest_is_not_decoded(tmp_path, workers):
    paths = []
    for i in range(200):
        paths.append(tmp_path / f"{i}.png")
        Image.fromarray(grey(i)).save(paths[-1])
    paths[5].write_bytes(b"not an image")
    decoded = []

    def count(image):
        decoded.append(image)
        return to_tensor(image)

    batches = image_batches(paths, count, 4, workers)
    assert len(next(batches)) == 4
    with pytest.raises(ImageError, match=r"5\.png"):
        next(batches)
    assert len(decoded) < 20


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_array_is_named_by_position(workers):
    with pytest.raises(ImageError, match=r"image number 3 .*shape \(7,\)"):
        list(image_batches([grey(0), grey(1), grey(2), np.zeros(7, np.uint8)], to_tensor, 2, workers))


def test_reads_lazily_ahead_of_the_consumer_and_no_further():
    taken = []

    def endless():
        while True:
            taken.append(1)
            yield grey(0)

    batches = image_batches(endless(), to_tensor, 4, workers=2)
    next(batches)
    assert len(taken) <= 4 + 4 + 2 + 1


def test_stopping_early_leaves_no_threads():
    before = set(threading.enumerate())
    batches = image_batches([grey(0)] * 100, to_tensor, 2, workers=3)
    next(batches)
    assert set(threading.enumerate()) - before
    batches.close()
    assert not set(threading.enumerate()) - before


def test_stopping_early_drops_the_work_that_waits():
    done = []

    def slow(image):
        done.append(1)
        time.sleep(0.1 if len(done) > 40 else 0)  # all that wait: four seconds
        return to_tensor(image)

    batches = image_batches([grey(0)] * 500, slow, 40, workers=1)
    next(batches)  # 41 more are waiting now
    batches.close()
    assert len(done) < 40 + 40


def test_transform_errors_and_uneven_shapes():
    def fail(image):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(image_batches([grey(0)], fail, 1, workers=1))
    with pytest.raises(ConfigError, match="different shapes"):
        list(image_batches([grey(0), np.zeros((3, 3))], lambda im: torch.zeros(3, *im.size), 2, workers=1))


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"batch_size": 1, "workers": -1}])
def test_options_are_checked_at_the_call(options):
    with pytest.raises(ConfigError):
        image_batches([], to_tensor, **options)


def test_min_side_is_passed_on(tmp_path):
    path = tmp_path / "x.jpg"
    Image.new("RGB", (512, 512)).save(path)
    sizes = []

    def note(image):
        sizes.append(image.size)
        return to_tensor(image)

    list(image_batches([path], note, 1, workers=1, min_side=32))
    list(image_batches([path], note, 1, workers=1))
    assert sizes == [(64, 64), (512, 512)]

"""Corruptions: the same every time, in any thread; a share of a training set; what happens without the package."""

import sys
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.trees import picture

from kalmanclip.data import LabelledImages, image_batches, load_image
from kalmanclip.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, CorruptedImage, contaminate, corrupt, corrupted
from kalmanclip.errors import ConfigError, ImageError


@pytest.fixture
def stand_in(monkeypatch):
    """In place of the optional package: noise from both of numpy's kinds of generators, as the real one has."""

    def noise(image, corruption_name, severity):
        assert image.shape[:2] >= (32, 32)
        old = np.random.randint(0, 10 * severity, image.shape)  # noqa: NPY002
        new = np.random.default_rng().integers(0, 10 * severity, image.shape)
        return np.clip(image + old + new, 0, 255)

    package = types.ModuleType("imagecorruptions")
    package.corrupt = noise
    monkeypatch.setitem(sys.modules, "imagecorruptions", package)


@pytest.fixture
def absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "imagecorruptions", None)


def pixels(source):
    return np.asarray(load_image(source))


def grey(side=40):
    return np.full((side, side), 100, np.uint8)


def some_images(count):
    return LabelledImages(
        [np.full((8, 8), i, np.uint8) for i in range(count)], [i % 2 for i in range(count)], ["a", "b"]
    )


@pytest.mark.usefixtures("stand_in")
def test_the_same_for_the_same_values_and_different_otherwise(tmp_path):
    path = picture(tmp_path / "cat" / "1.png")
    first = pixels(CorruptedImage(path, "fog", 3, seed=1))
    assert first.shape == (224, 224, 3)
    assert np.array_equal(first, pixels(CorruptedImage(path, "fog", 3, seed=1)))
    moved = picture(tmp_path / "elsewhere" / "cat" / "1.png")
    assert np.array_equal(first, pixels(CorruptedImage(moved, "fog", 3, seed=1)))
    other = picture(tmp_path / "cat" / "2.png")
    for changed in (
        CorruptedImage(other, "fog", 3, seed=1),
        CorruptedImage(path, "snow", 3, seed=1),
        CorruptedImage(path, "fog", 4, seed=1),
        CorruptedImage(path, "fog", 3, seed=2),
    ):
        assert not np.array_equal(first, pixels(changed))


@pytest.mark.usefixtures("stand_in")
def test_threads_do_not_disturb_each_other():
    sources = [CorruptedImage(np.full((40, 40), i, np.uint8), "fog", 3) for i in range(20)]
    expected = [pixels(source) for source in sources]
    with ThreadPoolExecutor(4) as pool:
        assert all(map(np.array_equal, pool.map(pixels, sources), expected))
    batches = image_batches(sources, lambda image: torch.from_numpy(np.array(image)), 20, workers=4)
    assert np.array_equal(next(iter(batches)).numpy(), np.stack(expected))


@pytest.mark.usefixtures("stand_in")
def test_numpy_is_left_as_it_was():
    np.random.seed(5)  # noqa: NPY002
    expected = np.random.random(3)  # noqa: NPY002
    fresh = np.random.default_rng
    np.random.seed(5)  # noqa: NPY002
    corrupt(Image.new("RGB", (40, 40)), "fog", 1)
    assert np.array_equal(np.random.random(3), expected)  # noqa: NPY002
    assert np.random.default_rng is fresh
    assert not np.array_equal(fresh().random(3), fresh().random(3))


@pytest.mark.usefixtures("stand_in")
def test_size():
    tall = np.zeros((500, 300, 3), np.uint8)
    assert load_image(CorruptedImage(tall, "fog", 1)).size == (224, 224)
    assert load_image(CorruptedImage(tall, "fog", 1, size=None)).size == (300, 500)
    with pytest.raises(ImageError, match="8 x 8 pixels"):
        load_image(CorruptedImage(grey(8), "fog", 1, size=None))
    with pytest.raises(ConfigError, match="at least 32"):
        CorruptedImage(grey(), "fog", 1, size=16)


def test_the_section_is_that_of_the_clean_image(monkeypatch):
    from torchvision import transforms

    package = types.ModuleType("imagecorruptions")
    package.corrupt = lambda image, corruption_name, severity: image
    monkeypatch.setitem(sys.modules, "imagecorruptions", package)
    clean = transforms.Compose(
        [transforms.Resize(224, transforms.InterpolationMode.BICUBIC), transforms.CenterCrop(224)]
    )
    rng = np.random.default_rng(0)
    for shape in ((301, 500, 3), (377, 230, 3), (224, 224, 3), (100, 333, 3)):
        image = Image.fromarray(rng.integers(0, 255, shape, dtype=np.uint8))
        assert np.array_equal(pixels(CorruptedImage(image, "fog", 1)), np.asarray(clean(image)))


@pytest.mark.usefixtures("stand_in")
def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "broken.png"
    path.write_bytes(b"nothing")
    with pytest.raises(ImageError, match=r"broken\.png"):
        load_image(CorruptedImage(path, "fog", 1))


@pytest.mark.usefixtures("stand_in")
def test_whole_set():
    images = corrupted(some_images(4), "snow", 2, seed=7)
    assert all(isinstance(source, CorruptedImage) and source.corruption == "snow" for source in images.sources)
    assert images.labels == [0, 1, 0, 1]


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(("share", "count"), [(0, 0), (0.1, 2), (0.25, 5), (1, 20)])
def test_share(share, count):
    images = some_images(20)
    result = contaminate(images, share, seed=3)
    bad = [source for source in result.sources if isinstance(source, CorruptedImage)]
    assert len(bad) == count
    assert result.labels == images.labels
    assert all(
        new is old or new.source is old for new, old in zip(result.sources, images.sources, strict=True)
    )  # nothing moved
    assert len({source.corruption for source in bad}) >= min(count, 2)


@pytest.mark.usefixtures("stand_in")
def test_shares_are_nested_and_repeatable():
    images = some_images(20)

    def damage(share, seed):
        result = contaminate(images, share, seed)
        return {i: s.identity for i, s in enumerate(result.sources) if isinstance(s, CorruptedImage)}

    assert damage(0.3, 1) == damage(0.3, 1)
    assert damage(0.3, 1).items() <= damage(0.6, 1).items()
    assert damage(0.3, 1).keys() != damage(0.3, 2).keys()


@pytest.mark.usefixtures("stand_in")
def test_chosen_corruptions_only():
    result = contaminate(some_images(20), 1.0, 0, corruptions=["fog"], severities=[5])
    assert {(source.corruption, source.severity) for source in result.sources} == {("fog", 5)}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"share": 1.5}, "share is 1.5"),
        ({"share": float("nan")}, "share is nan"),
        ({"corruptions": ["rain"]}, "no corruption 'rain'; known: gaussian_noise"),
        ({"severities": [6]}, "severity is 6"),
        ({"corruptions": []}, "no corruptions"),
    ],
)
def test_options_are_checked(options, problem):
    with pytest.raises(ConfigError, match=problem):
        contaminate(some_images(4), **{"share": 0.5, "seed": 0, **options})


@pytest.mark.usefixtures("absent")
def test_without_the_package():
    for attempt in (
        lambda: corrupted(some_images(2), "fog", 1),
        lambda: contaminate(some_images(2), 0.5, 0),
        lambda: load_image(CorruptedImage(grey(), "fog", 1)),
    ):
        with pytest.raises(ConfigError, match=r"kalmanclip\[corruptions\]"):
            attempt()
    assert len(contaminate(some_images(2), 0, 0)) == 2  # nothing to corrupt, nothing needed


def test_names():
    assert (len(CORRUPTIONS), len(EXTRA_CORRUPTIONS)) == (15, 4)


@pytest.mark.parametrize("corruption", [*CORRUPTIONS, *EXTRA_CORRUPTIONS])
def test_the_real_package(corruption):
    pytest.importorskip("imagecorruptions", reason="the optional package imagecorruptions-imaug is not installed")
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 255, (64, 80, 3), dtype=np.uint8))
    results = [np.asarray(corrupt(image, corruption, severity, "a name")) for severity in (1, 5)]
    assert all(result.shape == (64, 80, 3) for result in results)
    assert not np.array_equal(*results)
    assert np.array_equal(results[1], np.asarray(corrupt(image, corruption, 5, "a name")))

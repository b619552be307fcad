"""Small pictures, the embedded backbone, and the developer data where it is at hand."""

import os
import resource
import shutil
from contextlib import contextmanager
from pathlib import Path

# Threads that spin while they wait slow small products down a hundredfold on a busy machine; read when torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers share the processor
os.environ["KALMANCLIP_CACHE"] = "off"  # tests leave nothing in the user's cache folder

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image, ImageDraw

settings.register_profile("patient", deadline=None)  # a busy machine is no failure
settings.load_profile("patient")

SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def tiny():
    from kalmanclip.encoders import load_backbone

    return load_backbone("tiny")


@pytest.fixture(scope="session")
def shared_data():
    if not SHARED.is_dir():
        pytest.skip("the developer data (../shared/data) is not here")
    return SHARED


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium, where one is installed; nothing is downloaded.

    It stays no longer than a module: while it is there, an event loop runs, and no test can start another.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no Chromium is installed")
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=path, args=arguments)
        yield running
        running.close()


def shape_picture(shape: str, seed: int, size: int = 64) -> Image.Image:
    """A circle, square or triangle of random colour and place on a noisy ground."""
    rng = np.random.default_rng(seed)
    ground = rng.integers(0, 80, (size, size, 3), dtype=np.uint8)
    image = Image.fromarray(ground)
    draw = ImageDraw.Draw(image)
    x, y = rng.integers(8, 20, 2)
    w = int(rng.integers(28, 40))
    colour = tuple(int(c) for c in rng.integers(120, 255, 3))
    if shape == "circle":
        draw.ellipse((x, y, x + w, y + w), fill=colour)
    elif shape == "square":
        draw.rectangle((x, y, x + w, y + w), fill=colour)
    else:
        draw.polygon([(x, y + w), (x + w, y + w), (x + w // 2, y)], fill=colour)
    return image


@pytest.fixture(scope="session")
def shapes(tmp_path_factory):
    """shapes/{circle,square,triangle}/*.png, five of each."""
    root = tmp_path_factory.mktemp("data") / "shapes"
    for c, shape in enumerate(("circle", "square", "triangle")):
        (root / shape).mkdir(parents=True)
        for i in range(5):
            shape_picture(shape, 100 * c + i).save(root / shape / f"{i}.png")
    return root


@pytest.fixture(scope="session")
def noise(tmp_path_factory):
    """Six pictures of nothing."""
    folder = tmp_path_factory.mktemp("data") / "noise"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(6):
        Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    return folder


@pytest.fixture(scope="session")
def split_shapes(shapes, tmp_path_factory):
    """The shapes as a data set, not to be changed: the first three of each to learn from, the others to measure on."""
    root = tmp_path_factory.mktemp("data") / "split"
    for path in sorted(shapes.glob("*/*.png")):
        place = root / ("train" if int(path.stem) < 3 else "test") / path.parent.name
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    return root


@contextmanager
def full_disk(room=1000):
    """Writing fails beyond so many bytes of a file, as on a disk that is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

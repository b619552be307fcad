"""A small adapter, fitted once on generated shapes, with pictures to look at."""

import shutil
import struct
import zlib

import pytest
from tests.conftest import shape_picture

from kalmanclip.estimator import KalmanCLIP

SHAPES = ("circle", "square", "triangle")


def write_shapes(root, count, seed):
    for c, shape in enumerate(SHAPES):
        (root / shape).mkdir(parents=True)
        for i in range(count):
            shape_picture(shape, seed + 100 * c + i).save(root / shape / f"{shape}{i}.png")
    return root


def png_header(width, height):
    """A PNG of a few bytes that claims any size."""
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"")),
        (b"IEND", b""),
    ]
    body = b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.fixture(scope="session")
def learned(tmp_path_factory):
    """Eight pictures of each shape, of which four are for calibration."""
    return write_shapes(tmp_path_factory.mktemp("learned") / "photos", 8, 0)


@pytest.fixture(scope="session")
def unseen(tmp_path_factory):
    return write_shapes(tmp_path_factory.mktemp("unseen") / "test", 2, 5000)


@pytest.fixture(scope="session")
def pool(unseen, tmp_path_factory):
    """The unseen pictures without class folders."""
    folder = tmp_path_factory.mktemp("unlabelled") / "pool"
    folder.mkdir()
    for file in unseen.glob("*/*.png"):
        shutil.copy(file, folder)
    return folder


@pytest.fixture(scope="session")
def fitted(tiny, learned, tmp_path_factory):
    """The folder of an adapter; not to be written to."""
    folder = tmp_path_factory.mktemp("fitted") / "shapes.adapter"
    return KalmanCLIP(tiny, prior_std=0.15, options={"crops": 1}).fit(learned, calibrate=4).save(folder)


@pytest.fixture
def adapter(fitted, tmp_path):
    """A copy to write to."""
    return shutil.copytree(fitted, tmp_path / "shapes.adapter")

"""A small adapter, fitted once on generated shapes, with pictures to look at."""

import shutil

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


@pytest.fixture(scope="session")
def learned(tmp_path_factory):
    """Eight pictures of each shape, of which four are for calibration."""
    return write_shapes(tmp_path_factory.mktemp("learned") / "photos", 8, 0)


@pytest.fixture(scope="session")
def unseen(tmp_path_factory):
    return write_shapes(tmp_path_factory.mktemp("unseen") / "test", 2, 5000)


@pytest.fixture(scope="session")
def fitted(tiny, learned, tmp_path_factory):
    """The folder of an adapter; not to be written to."""
    folder = tmp_path_factory.mktemp("fitted") / "shapes.adapter"
    return KalmanCLIP(tiny, prior_std=0.15, options={"crops": 1}).fit(learned, calibrate=4).save(folder)


@pytest.fixture
def adapter(fitted, tmp_path):
    """A copy to write to."""
    return shutil.copytree(fitted, tmp_path / "shapes.adapter")

"""What the tests of methods learn from: the generated shapes, three of each."""

import pytest

from kalmanclip.data import FewShotTask, read_folder


@pytest.fixture(scope="session")
def images(shapes):
    return read_folder(shapes)


@pytest.fixture(scope="session")
def task(images):
    """Three of each shape to learn from, two to choose on; a seed of its own."""
    return FewShotTask(
        images.subset(i for i in range(15) if i % 5 < 3), images.subset(i for i in range(15) if i % 5 >= 3), seed=1
    )

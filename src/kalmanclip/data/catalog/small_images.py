"""Small images that torchvision holds as arrays: MNIST, Fashion-MNIST, CIFAR-10 and -100."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kalmanclip.data.catalog.base import DataSet, Download, Reader
from kalmanclip.data.splits import PUBLISHED, Item, Splits, make_splits
from kalmanclip.errors import DataError

_FASHION_NAMES = (
    *("t-shirt", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)


def torchvision_arrays(loader: str, class_names: Sequence[str] | None = None) -> Reader:
    """Return a reader for `torchvision.datasets.<loader>`; the folder lies in torchvision's root.

    Nobody published a val split for these, so there is none.

    Args:
        loader: the name of the class.
        class_names: better names than torchvision's, in the order of the labels.
    """

    def read(folder: Path, variant: str | None) -> Splits:
        import torchvision

        def read_split(train: bool) -> tuple[Any, list[Item]]:
            try:
                data = getattr(torchvision.datasets, loader)(folder.parent, train=train)
            except Exception as error:  # torchvision's reading of damaged files fails in many ways
                raise DataError(
                    f"torchvision cannot read {folder} ({error}); remove the folder and download it again"
                ) from error
            return data, list(zip(np.asarray(data.data), map(int, data.targets), strict=True))

        data, train_items = read_split(train=True)
        names = class_names or [name.replace("_", " ") for name in data.classes]
        return make_splits(names, train_items, test=read_split(train=False)[1])

    return read


DATA_SETS = (
    DataSet(
        name="mnist",
        title="MNIST",
        classes=10,
        folders=("MNIST", "mnist/MNIST"),
        read=torchvision_arrays("MNIST", [str(digit) for digit in range(10)]),
        counts={PUBLISHED: {"train": 60_000, "test": 10_000}},
        licence="CC BY-SA 3.0",
        download=Download("MNIST"),
    ),
    DataSet(
        name="fashion_mnist",
        title="Fashion-MNIST",
        classes=10,
        folders=("FashionMNIST", "fashion_mnist/FashionMNIST"),
        read=torchvision_arrays("FashionMNIST", _FASHION_NAMES),
        counts={PUBLISHED: {"train": 60_000, "test": 10_000}},
        licence="MIT",
        download=Download("FashionMNIST"),
    ),
    DataSet(
        name="cifar10",
        title="CIFAR-10",
        classes=10,
        folders=("cifar-10-batches-py", "cifar10/cifar-10-batches-py"),
        read=torchvision_arrays("CIFAR10"),
        counts={PUBLISHED: {"train": 50_000, "test": 10_000}},
        licence="not stated; research",
        download=Download("CIFAR10"),
    ),
    DataSet(
        name="cifar100",
        title="CIFAR-100",
        classes=100,
        folders=("cifar-100-python", "cifar100/cifar-100-python"),
        read=torchvision_arrays("CIFAR100"),
        counts={PUBLISHED: {"train": 50_000, "test": 10_000}},
        licence="not stated; research",
        download=Download("CIFAR100"),
    ),
)

"""Data sets that torchvision keeps as arrays: MNIST and its like."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kalmanclip.data.sets.description import Reader
from kalmanclip.data.sets.views import Item, Views, make_views
from kalmanclip.errors import DataError


def torchvision_arrays(loader: str, class_names: Sequence[str] | None = None) -> Reader:
    """Return a reader for `torchvision.datasets.<loader>`; the folder lies in torchvision's root.

    Nobody published a validation part for these, so there is none.

    Args:
        loader: the name of the class.
        class_names: better names than torchvision's, in the order of the labels.
    """

    def read(folder: Path, variant: str | None) -> Views:
        import torchvision

        def part(train: bool) -> tuple[Any, list[Item]]:
            try:
                data = getattr(torchvision.datasets, loader)(folder.parent, train=train)
            except Exception as error:  # torchvision's reading of damaged files fails in many ways
                raise DataError(
                    f"torchvision cannot read {folder} ({error}); remove the folder and download it again"
                ) from error
            return data, list(zip(np.asarray(data.data), map(int, data.targets), strict=True))

        data, train_items = part(train=True)
        names = class_names or [name.replace("_", " ") for name in data.classes]
        return make_views(names, train_items, test=part(train=False)[1])

    return read

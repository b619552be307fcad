"""What other libraries hold images and labels in, as this package takes them.

| kind | images | labels |
| --- | --- | --- |
| `ImageFolder` of torchvision | its files | its classes |
| `Dataset` of PyTorch (`Subset`, `DataLoader`) | the first of each item | ``targets``, or the second of each |
| frame of pandas | the column `image` or `path` | the column `class` or `label` |
| frame of numbers | none: each row is an embedding | the same |
| `Dataset` of Hugging Face | its column of images | its column of labels |
| floats (N, d), of numpy or torch | none: each row is an embedding | none |

Nothing here is imported from those libraries: what an object offers says what it is.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from kalmanclip.data.embedding import Embedding, is_vector
from kalmanclip.data.hub import read_table
from kalmanclip.data.images import ImageSource, LazyImage, load_image
from kalmanclip.data.labelled import class_name_from_folder, from_lists, shown
from kalmanclip.errors import DataError, ImageError

IMAGE_COLUMNS = ("image", "path", "file", "filename", "filepath")
LABEL_COLUMNS = ("class", "label", "target")


class Opened(NamedTuple):
    """What an object of another library holds.

    Attributes:
        sources: N images.
        labels: of each, names or numbers; None: there are none.
        class_names: what the numbers mean; None: nothing says so.
    """

    sources: list[ImageSource]
    labels: Callable[[], list[Any]] | None = None
    class_names: list[str] | None = None


def open_images(images: Any) -> Any:
    """Return the images of a kind above as a list; anything else as it is."""
    opened = _open(images)
    return images if opened is None else opened.sources


def open_labelled(images: Any, labels: Iterable[Any] | None = None) -> tuple[Any, Any]:
    """Return images and labels of a kind above; anything else as it is.

    Args:
        images: an object of another library, or anything else.
        labels: of each image; None: those in the object.

    Returns:
        `LabelledImages` and None where names for the labels are known, else a list of images and a list of labels.

    Raises:
        DataError: an object of a kind above has no labels, and none are given.
    """
    opened = _open(images)
    if opened is None:
        return images, labels
    if labels is not None:
        return opened.sources, labels
    if opened.labels is None:
        raise DataError(f"The {type(images).__name__} has no labels: give one per image as y.")
    found = opened.labels()
    if opened.class_names is None:
        return opened.sources, found
    return from_lists(opened.sources, found, opened.class_names), None


def _open(images: Any) -> Opened | None:
    """Return what an object holds; None where it is none of the kinds above."""
    if isinstance(images, DataLoader):
        return _open(images.dataset)
    if isinstance(images, Dataset):
        return _from_torch(images)
    if hasattr(images, "columns") and hasattr(images, "iloc"):
        return _from_frame(images)
    if hasattr(images, "column_names") and hasattr(images, "select_columns"):
        if hasattr(images, "keys"):
            raise DataError(
                f"The data set has the splits {', '.join(images)}: give one of them, for example X['train']."
            )
        return Opened(*read_table(images))
    if isinstance(images, (np.ndarray, torch.Tensor)):
        return Opened([Embedding(row) for row in images]) if _is_table_of_floats(images) else None
    if isinstance(images, (list, tuple)) and images and all(map(is_vector, images)):
        return Opened([Embedding(row) for row in images])
    return None


def _is_table_of_floats(array: Any) -> bool:
    return array.ndim == 2 and array.shape[1] > 0 and is_vector(array[:, 0])


class _Item(LazyImage):
    """The image of one item of a data set of PyTorch, asked for when it is needed, by one thread at a time."""

    names_itself = True

    def __init__(self, dataset: Any, index: int, lock: threading.Lock) -> None:
        self._dataset, self._index, self._lock = dataset, index, lock

    @property
    def identity(self) -> str:
        return f"{type(self._dataset).__name__}/{self._index}"

    def load(self, max_pixels: int) -> Image.Image:
        with self._lock:
            image = _parts(self._dataset[self._index])[0]
        try:
            return load_image(image, max_pixels=max_pixels)
        except ImageError as error:
            raise ImageError(
                f"item {self._index} of the {type(self._dataset).__name__}: {error}. Leave transforms that normalise "
                "out of the data set: the model prepares images by itself"
            ) from error


def _from_torch(dataset: Any) -> Opened:
    """Open a data set of PyTorch. An `ImageFolder` gives its files: its transforms would come before the model's."""
    if isinstance(dataset, Subset):
        return _subset(_from_torch(dataset.dataset), [operator.index(i) for i in dataset.indices])
    if isinstance(dataset, IterableDataset):
        items = [_parts(item) for item in dataset]
        return Opened([image for image, *_ in items], lambda: _plain([_second(item) for item in items]))
    classes = getattr(dataset, "classes", None)
    names = [class_name_from_folder(str(name)) for name in classes] if isinstance(classes, (list, tuple)) else None
    samples = getattr(dataset, "samples", None)
    if names and samples and getattr(getattr(dataset, "loader", None), "__name__", "") == "default_loader":
        return Opened([path for path, _ in samples], lambda: [label for _, label in samples], names)
    lock, count = threading.Lock(), len(dataset)
    known = next(
        (found for name in ("targets", "labels") if _one_each(found := getattr(dataset, name, None), count)), None
    )

    def labels() -> list[Any]:
        if known is not None:
            return _plain(known)
        return _plain([_second(_parts(dataset[i])) for i in range(count)])

    return Opened([_Item(dataset, i, lock) for i in range(count)], labels, names)


def _subset(whole: Opened, chosen: list[int]) -> Opened:
    """Return some of the images."""
    of = whole.labels

    def labels() -> list[Any]:
        found = [] if of is None else of()
        return [found[i] for i in chosen]

    return Opened([whole.sources[i] for i in chosen], None if of is None else labels, whole.class_names)


def _one_each(values: Any, count: int) -> bool:
    return hasattr(values, "__len__") and not isinstance(values, str) and len(values) == count


def _parts(item: Any) -> tuple[Any, ...]:
    """Return image and label of an item, where it has both: a pair, or a table with the usual names."""
    if isinstance(item, dict):
        by_name = {str(name).lower(): value for name, value in item.items()}
        found = [next((by_name[n] for n in names if n in by_name), None) for names in (IMAGE_COLUMNS, LABEL_COLUMNS)]
        if found[0] is None:
            raise DataError(f"An item of the data set has the parts {', '.join(map(str, item))}; one must be 'image'.")
        return tuple(part for part in found if part is not None)
    return tuple(item) if isinstance(item, (tuple, list)) else (item,)


def _second(parts: Sequence[Any]) -> Any:
    if len(parts) < 2:
        raise DataError("The data set's items are images without labels: give one label per image as y.")
    return parts[1]


def _plain(labels: Iterable[Any]) -> list[Any]:
    """Return labels as Python's own values: of tensors and of numpy's numbers, too."""
    return [label.item() if hasattr(label, "item") and getattr(label, "ndim", 0) == 0 else label for label in labels]


def _from_frame(frame: Any) -> Opened:
    """Open a frame of pandas."""
    columns = {str(name).strip().lower(): name for name in frame.columns}
    label = next((columns[name] for name in LABEL_COLUMNS if name in columns), None)
    image = next((columns[name] for name in IMAGE_COLUMNS if name in columns), None)
    others = [name for name in frame.columns if name is not label]
    numbers = [name for name in others if getattr(frame[name].dtype, "kind", "") == "f"]
    if image is not None or (len(others) == 1 and not numbers):
        column = frame[others[0] if image is None else image]
        sources = [Embedding(value) if is_vector(value) else value for value in column]
        _require_all(sources, column)
    elif numbers and len(numbers) == len(others):
        sources = [Embedding(row) for row in frame[numbers].to_numpy(dtype=np.float32)]
    else:
        raise DataError(
            f"The frame has the columns {shown([str(name) for name in frame.columns])}: name the one with paths or "
            f"images {IMAGE_COLUMNS[0]!r}, or give embeddings, one column of floats for each of their numbers."
        )
    if label is None:
        return Opened(sources)
    _require_all(frame[label], frame[label])
    return Opened(sources, lambda: _plain(frame[label]))


def _require_all(values: Iterable[Any], column: Any) -> None:
    """Raise `DataError` where a value of a column is missing."""
    for row, value in zip(column.index, values, strict=True):
        if value is None or value == "" or (isinstance(value, float) and value != value):
            raise DataError(f"The column {column.name!r} has no value in the row {row!r}; leave the row out.")

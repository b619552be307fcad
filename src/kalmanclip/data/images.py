"""From a file, a PIL image or an array to one upright RGB image; from many of them to batches of tensors."""

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from PIL import Image

from kalmanclip.data.decoding import decode_file, decode_pil, naming
from kalmanclip.data.pixels import rgb_from_array
from kalmanclip.errors import ConfigError, ImageError


class LazyImage(ABC):
    """An image that is computed when it is needed: a corrupted one, for example. Must be safe to load in threads."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """What tells it from other images (see `identity.image_identity`)."""

    def content(self) -> str | None:
        """All that its pixels follow from (see `identity.content_identity`); None: nothing made of it may be kept."""
        return None

    @property
    def names_itself(self) -> bool:
        """Whether the errors of `load` say which image it is."""
        return False

    @abstractmethod
    def load(self, max_pixels: int) -> Image.Image:
        """Return the image in mode RGB, nobody else's; `max_pixels` as in `load_image`."""


ImageSource: TypeAlias = str | os.PathLike[str] | Image.Image | np.ndarray | torch.Tensor | LazyImage

MAX_PIXELS = 200_000_000
"""Larger files are refused before their pixels are decoded: a few kilobytes can unpack to any size."""

IMAGE_SUFFIXES = (
    *(".apng", ".avif", ".bmp", ".dib", ".gif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg"),
    *(".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"),
)
"""File names with these endings (in any case) are taken for images when a folder is searched."""


def load_image(source: ImageSource, min_side: int | None = None, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Return one image, upright and in mode RGB, its pixels decoded. Safe to call from several threads.

    EXIF orientation is honoured (damaged EXIF is ignored); an animation gives its first frame (a PIL image,
    the frame it stands at); `pixels.rgb_from_image` says how grey, 16-bit, palette, CMYK and transparent
    pixels become RGB, and `pixels.rgb_from_array` which arrays and tensors are understood.

    Args:
        source: a path, a PIL image (never changed, never shared with the result), a numpy array, a torch
            tensor or a `LazyImage`.
        min_side: the short side that the image will be resized to, if it may be decoded faster for that. A
            JPEG file whose short side is at least 4 times this is then decoded at 1/8, 1/4 or 1/2 of its
            size (the smallest that divides both sides and is at least twice `min_side`). Once resized, a
            photograph differs from the exact way by a fraction of a grey level, about as much as with
            another resampling filter. Without it, and for every other file, the decode is exact.
        max_pixels: refuse files with more pixels than this, before decoding them.

    Raises:
        ImageError: the source cannot be read; the message names the file and says what to do.
    """
    if min_side is not None and min_side < 1:
        raise ConfigError(f"min_side is {min_side}; it must be at least 1")
    if isinstance(source, str | os.PathLike):
        return decode_file(Path(source), min_side, max_pixels)
    if isinstance(source, np.ndarray | torch.Tensor):
        return naming(f"the {type(source).__name__}", lambda: rgb_from_array(source))
    if isinstance(source, Image.Image):
        return decode_pil(source)
    if isinstance(source, LazyImage):
        return source.load(max_pixels)
    raise ImageError(
        f"an image cannot be made from {type(source).__name__}; "
        "use a path, a PIL image, a numpy array or a torch tensor"
    )


def image_batches(
    sources: Iterable[ImageSource],
    transform: Callable[[Image.Image], torch.Tensor],
    batch_size: int,
    workers: int | None = None,
    *,
    min_side: int | None = None,
    numbers: Sequence[int] | None = None,
    ahead: bool = True,
) -> Iterator[torch.Tensor]:
    """Decode and preprocess images in threads (Pillow frees the interpreter lock), in order, in batches.

    At most one batch (and one image per worker) is decoded ahead of the consumer, so memory stays bounded for
    any number of sources.

    Args:
        sources: any iterable of what `load_image` takes; no sources, no batches.
        transform: PIL image to a tensor, such as the backbone's preprocessing; called from several threads.
        batch_size: B; the last batch may be smaller.
        workers: number of threads; None: one per core, 16 at most; 0: decode in the calling thread.
        min_side: see `load_image`; the side that `transform` resizes to.
        numbers: the positions of the sources in a longer list, for messages; None: they are the whole list.
        ahead: whether to decode a batch while the consumer works on the one before: not if that takes the processor
            from the consumer.

    Yields:
        What the transform gives of B images, (B, ...).

    Raises:
        ImageError: at the first source, in order, that cannot be read, without decoding the rest. The message
            names the file, or the position of a source that has no name.
    """
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}; it must be at least 1")
    if workers is None:
        workers = min(16, os.cpu_count() or 1)
    if workers < 0:
        raise ConfigError(f"workers is {workers}; use 0 (no threads) or more")

    def prepare(position: int, source: ImageSource) -> torch.Tensor:
        try:
            image = load_image(source, min_side)
        except ImageError as error:
            if names_itself(source):
                raise
            number = position if numbers is None else numbers[position]
            raise ImageError(f"image number {number} (counting from 0): {error}") from error
        return transform(image)

    return _stacked(_in_order(prepare, sources, workers, batch_size * ahead + workers), batch_size)


def names_itself(source: ImageSource) -> bool:
    """Return whether the errors about an image say which it is; all others need a number."""
    return source.names_itself if isinstance(source, LazyImage) else isinstance(source, str | os.PathLike)


def _in_order(
    prepare: Callable[[int, ImageSource], torch.Tensor],
    sources: Iterable[ImageSource],
    workers: int,
    ahead: int,
) -> Generator[torch.Tensor, None, None]:
    """Map `prepare` over numbered sources in threads, keeping order, at most `ahead` before the consumer."""
    if workers == 0:
        for position, source in enumerate(sources):
            yield prepare(position, source)
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")
    pending: deque[Future[torch.Tensor]] = deque()
    try:
        for position, source in enumerate(sources):
            pending.append(pool.submit(prepare, position, source))
            if len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:  # also when the consumer stops early
        pool.shutdown(wait=True, cancel_futures=True)


def _stacked(tensors: Generator[torch.Tensor, None, None], batch_size: int) -> Iterator[torch.Tensor]:
    """Tensors of one shape to batches (B, ...)."""
    with closing(tensors):
        while batch := list(islice(tensors, batch_size)):
            shapes = {tuple(tensor.shape) for tensor in batch}
            if len(shapes) > 1:
                raise ConfigError(
                    f"transform gave tensors of different shapes {sorted(shapes)}; it must give one shape"
                )
            yield torch.stack(batch)

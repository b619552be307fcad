"""Load one image as upright RGB or many as batches of tensors, cache decoded images, and tell images apart.

The *identity* of an image is for draws and corruptions that are the same on every computer; its *content* is for
caches, which must notice when a file changes.
"""

import hashlib
import os
import stat
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from PIL import Image

from kalmanclip.data.decoding import decode_file, decode_pil, naming, rgb_from_array
from kalmanclip.errors import ConfigError, ImageError
from kalmanclip.files import sha256_of
from kalmanclip.process import free_bytes


class LazyImage(ABC):
    """An image that is computed when it is needed: a corrupted one, for example. Must be safe to load in threads.

    Attributes:
        names_itself: whether the errors of `load` say which image it is.
    """

    names_itself = False

    @property
    @abstractmethod
    def identity(self) -> str:
        """What tells it from other images (see `image_identity`)."""

    def content(self) -> str | None:
        """Return all that its pixels follow from (see `content_identity`); None: nothing made of it may be cached."""
        return None

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

_SETTLING_NS = 2e9  # a file that changed so recently may change again without its times telling
_MAX_HASHES = 1_000_000

_file_hashes: dict[tuple[int, ...], str] = {}
"""Hashes of files by device, inode, size and times, so that the next method need not read the same files again."""


def load_image(source: ImageSource, min_side: int | None = None, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Return one image, upright and in mode RGB, its pixels decoded. Safe to call from several threads.

    EXIF orientation is honoured (damaged EXIF is ignored); an animation gives its first frame (a PIL image,
    the frame it stands at); `decoding.rgb_from_image` says how grey, 16-bit, palette, CMYK and transparent
    pixels become RGB, and `decoding.rgb_from_array` which arrays and tensors are understood.

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
        with naming(f"the {type(source).__name__}"):
            return rgb_from_array(source)
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
            if _names_itself(source):
                raise
            number = position if numbers is None else numbers[position]
            raise ImageError(f"image number {number} (counting from 0): {error}") from error
        return transform(image)

    return _stacked(_in_order(prepare, sources, workers, batch_size * ahead + workers), batch_size)


def _names_itself(source: ImageSource) -> bool:
    """Return whether the errors about an image say which it is; all others need a number."""
    return source.names_itself if isinstance(source, LazyImage) else isinstance(source, str | os.PathLike)


def _in_order(
    prepare: Callable[[int, ImageSource], torch.Tensor], sources: Iterable[ImageSource], workers: int, ahead: int
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
    """Stack tensors of one shape to batches (B, ...)."""
    with closing(tensors):
        while batch := list(islice(tensors, batch_size)):
            shapes = {tuple(tensor.shape) for tensor in batch}
            if len(shapes) > 1:
                raise ConfigError(
                    f"transform gave tensors of different shapes {sorted(shapes)}; it must give one shape"
                )
            yield torch.stack(batch)


@dataclass
class _MemoryBudget:
    """The bytes that are left for all images of one `cache_decoded` together."""

    left: int
    lock: threading.Lock = field(default_factory=threading.Lock)


class _CachedImage(LazyImage):
    """An image that is decoded when it is first needed, and then stays in memory if the budget allows."""

    def __init__(self, source: ImageSource, min_side: int | None, budget: _MemoryBudget) -> None:
        self._source, self._min_side, self._budget = source, min_side, budget
        self.names_itself = _names_itself(source)
        self._image: Image.Image | None = None

    @property
    def identity(self) -> str:
        return image_identity(self._source)

    def content(self) -> str | None:
        content = content_identity(self._source)
        return None if content is None else f"{content}:{self._min_side}"

    def load(self, max_pixels: int) -> Image.Image:
        if self._image is None:  # two threads may come here at once; then both decode, and one result stays
            image = load_image(self._source, self._min_side, max_pixels)
            size = 3 * image.width * image.height
            with self._budget.lock:
                if size > self._budget.left:
                    return image
                self._budget.left -= size
            self._image = image
        return self._image.copy()


def cache_decoded(
    sources: Iterable[ImageSource], min_side: int | None = None, max_bytes: int | None = None
) -> list[ImageSource]:
    """Return the same images, each decoded only once: for training with fresh crops of the same few images.

    Args:
        sources: the images.
        min_side: as in `load_image`.
        max_bytes: how much memory their pixels may take; what goes beyond is decoded again every time. None: a
            quarter of what is free.
    """
    budget = _MemoryBudget(free_bytes() // 4 if max_bytes is None else max_bytes)
    return [_CachedImage(source, min_side, budget) for source in sources]


def image_identity(source: ImageSource) -> str:
    """Return a string that tells an image from others: folder and name of a file, a hash of pixels otherwise."""
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        return f"{path.parent.name}/{path.name}"
    if isinstance(source, LazyImage):
        return source.identity
    if isinstance(source, Image.Image):
        return _hash(source.mode.encode(), source.tobytes())
    if isinstance(source, torch.Tensor):
        source = source.detach().cpu().float().numpy()
    array = np.ascontiguousarray(source)
    return _hash(f"{array.dtype}{array.shape}".encode(), array.tobytes())


def content_identity(source: ImageSource) -> str | None:
    """Return 64 hexadecimal digits that are equal for equal images, or None if the image cannot be read or hashed.

    Of a file, its bytes count, not its name; of pixels in memory, what `load_image` makes of them; a `LazyImage` says
    itself what it follows from. A file that cannot be read is no error here: decoding it has the better message.
    """
    try:
        if isinstance(source, str | os.PathLike):
            return _file_hash(Path(source))
        if isinstance(source, LazyImage):
            content = source.content()
            return None if content is None else _hash(b"lazy", content.encode(errors="surrogateescape"))
        image = load_image(source)
    except (ImageError, OSError, ValueError):  # ValueError: a zero byte in the path
        return None
    return _hash(f"pixels {image.size}".encode(), image.tobytes())


def content_identities(sources: Sequence[ImageSource]) -> list[str | None]:
    """Return the content identities of many images; files are read in threads."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="hash") as pool:
        return list(pool.map(content_identity, sources))


def fingerprints(sources: Sequence[ImageSource]) -> list[int | None]:
    """Return numbers of 64 bits, made of the content identities; None where there is none.

    Two different images of a million share one with a chance of one in thirty million.
    """
    half = 2**63  # signed, as tensors have them
    return [None if found is None else int(found[:16], 16) - half for found in content_identities(sources)]


def _file_hash(path: Path) -> str | None:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
        return None
    key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    if key in _file_hashes:
        return _file_hashes[key]
    content = _hash(b"file", sha256_of(path, ImageError).encode())
    if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _SETTLING_NS:
        if len(_file_hashes) >= _MAX_HASHES:
            _file_hashes.clear()
        _file_hashes[key] = content
    return content


def _hash(*pieces: bytes) -> str:
    return hashlib.sha256(b"\n".join(pieces)).hexdigest()

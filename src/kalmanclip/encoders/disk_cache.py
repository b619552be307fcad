"""Products of a frozen backbone on disk, so that no batch of images is decoded and encoded twice.

A cache is a folder. In it every *product* (say, the embeddings of centre crops by these weights; see
`kalmanclip.encoders.product`) has a folder of its own, and in that every batch has a file, a shard, named by a hash of
what the images of the batch hold. The key is the batch and not the image because of rounding: in a batch of another
size, or at another place in it, the same image comes out with other last digits. As it is, results are the same to the
last bit with and without a cache, whatever is in it.

Files appear completely or not at all, under names that follow from what is in them. So processes need no locks: two
that encode the same batch at the same time write the same file twice. Deleting any part of the folder is safe at any
time.

A cache never fails a run. A damaged file counts as absent and is replaced; if the folder cannot be written to, or is as
large as it may be, nothing more is kept. Each is said once, as a `RuntimeWarning`.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from kalmanclip.encoders.shards import DamagedShard, read_shard, write_shard
from kalmanclip.encoders.towers import Activations
from kalmanclip.errors import KalmanClipError

VARIABLE = "KALMANCLIP_CACHE"
"""The environment variable that names the folder; ``off`` or nothing: no cache."""

LIMIT_BYTES = 16 << 30
"""How large the folder may grow. An image takes 2 kB as an embedding of 512 numbers, and 0.6 MB as activations inside
the tower of a ViT-B/16."""

_ABANDONED = 24 * 3600  # seconds after which a temporary file has no writer any more


def cache_folder(choice: str | None = None) -> Path | None:
    """The folder for cached products, or None for no cache.

    Args:
        choice: a folder, or ``off`` (or nothing at all) for no cache; None takes ``$KALMANCLIP_CACHE``, and where that
            is not set ``kalmanclip/features`` in the user's cache folder (``$XDG_CACHE_HOME``, else ``~/.cache``).
    """
    choice = os.environ.get(VARIABLE) if choice is None else choice
    try:
        if choice is not None:
            return None if choice.strip().lower() in ("", "off") else Path(choice).expanduser()
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        # the XDG specification: a relative path is to be ignored
        return (base if base.is_absolute() else Path.home() / ".cache") / "kalmanclip" / "features"
    except RuntimeError:  # a user without a home
        return None


class FeatureCache:
    """A folder of cached products; see the top of this module.

    Args:
        folder: is made when something is first kept.
        limit_bytes: how large it may grow.

    Attributes:
        served: images whose products were found here rather than computed.
        added: images whose products were computed and kept.
    """

    def __init__(self, folder: str | os.PathLike[str], limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder, self.limit_bytes = Path(folder), limit_bytes
        self.served = self.added = 0
        self._size: int | None = None  # of the folder, as far as this process knows; None: not looked yet
        self._writable = True
        self._said: set[str] = set()

    def place(self, product: str, images: Sequence[str]) -> Path:
        """Where the product of a batch is, or would be, by the content identities of its images."""
        batch = hashlib.sha256("\n".join((product, *images)).encode()).hexdigest()
        return self.folder / hashlib.sha256(product.encode()).hexdigest()[:16] / f"{batch}.safetensors"

    def has(self, place: Path) -> bool:
        """Whether there is something; it may still turn out to be damaged."""
        return os.path.isfile(place)  # noqa: PTH113 (it does not raise, whatever the folder is)

    def read(self, place: Path) -> Activations | None:
        """What is kept there, on the CPU; None if there is nothing, or nothing good."""
        try:
            rows = read_shard(place, place.stem)
        except FileNotFoundError:
            return None
        except (DamagedShard, OSError) as error:
            self._say("damaged", f"A file in the cache cannot be used; its images are encoded again ({place}: {error})")
            return None
        self.served += len(rows[0])
        return rows

    def write(self, place: Path, product: str, rows: Activations) -> None:
        """Keeps the product of a batch, if that is possible; after the first failure nothing is tried any more."""
        if not self._writable:
            return
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if self._size is None:
                self._size = self._measure()
            self._size += sum(column.nbytes for column in rows)
            if self._size > self.limit_bytes:
                raise KalmanClipError(f"it has reached its limit of {self.limit_bytes:,} bytes; delete what is old")
            write_shard(place, place.stem, product, tuple(column.cpu() for column in rows))
            self.added += len(rows[0])
        except (OSError, KalmanClipError) as error:
            self._writable = False
            self._say("write", f"Nothing more is kept in the cache {self.folder}: {error}")

    def trouble(self) -> str | None:
        """Why nothing more can be kept in the folder; None if it can. What is there is served in any case."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder) as stream:
                stream.write(bytes(4096))  # a full disk has room for names
        except OSError as error:
            return f"The cache {self.folder} cannot be written to ({error.strerror or error})."
        if self._measure() >= self.limit_bytes:
            return f"The cache {self.folder} has reached its limit of {self.limit_bytes:,} bytes; delete what is old."
        return None

    def _measure(self) -> int:
        """How large the folder is; files that killed processes left half-written go."""
        size = 0
        for path in self.folder.glob("*/*"):
            with suppress(OSError):  # somebody else may be tidying up
                status = path.stat()
                if path.name.startswith(".tmp-") and time.time() - status.st_mtime > _ABANDONED:
                    path.unlink()
                else:
                    size += status.st_size
        return size

    def _say(self, kind: str, message: str) -> None:
        """A warning, the first time that there is reason for one of its kind."""
        if kind not in self._said:
            self._said.add(kind)
            warnings.warn(message, RuntimeWarning, stacklevel=3)

"""Frozen activations: computed once per image, kept in memory while it allows, and served from disk where it can be."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from kalmanclip.encoders.disk_cache import FeatureCache
from kalmanclip.encoders.towers import Activations
from kalmanclip.memory import free_bytes

Encode = Callable[[Sequence[int]], Generator[Activations, None, None]]
"""Positions of images to their activations, in batches (B, ...) and in that order."""


class ActivationStore:
    """The frozen prefix of N images, picked by index.

    It lies where the model lies if it takes no more than half of what is free there; else in the computer's memory, by
    the same rule; else it is computed again for every batch.

    Args:
        encode: positions to activations on the model's device; called once for all images, and again for every batch
            where the activations are too large to keep.
        count: N.
        keep_bytes: how much they may take in each place; None: half of what is free there.
    """

    def __init__(self, encode: Encode, count: int, keep_bytes: int | None = None) -> None:
        self._encode, self._count, self._limit = encode, count, keep_bytes
        self._kept: Activations | None = None
        self._device: torch.device | None = None  # where the activations are wanted

    def fill(self) -> Iterator[int]:
        """Computes and keeps all activations; yields how many images are done. Stops early if they would not fit."""
        kept: Activations | None = None
        done = 0
        with closing(self._encode(range(self._count))) as batches:
            for batch in batches:
                if kept is None:
                    # at once for all images: pieces that are joined in the end would take the memory twice
                    kept = self._allocated(batch)
                    if kept is None:
                        return
                for column, rows in zip(kept, batch, strict=True):
                    column[done : done + len(rows)] = rows
                done += len(batch[0])
                yield done
        if kept is not None:
            self.keep(kept, batch[0].device)

    def keep(self, columns: Activations, device: torch.device) -> None:
        """Takes the activations of all images (N, ...), wherever they lie; they are wanted on ``device``."""
        self._kept, self._device = columns, device

    def _allocated(self, batch: Activations) -> Activations | None:
        """Room for the activations of all images that are like those of a batch; None if there is not enough."""
        wanted = sum(t.nbytes for t in batch) // len(batch[0]) * self._count
        for device in dict.fromkeys((batch[0].device, torch.device("cpu"))):
            if wanted <= (free_bytes(device) // 2 if self._limit is None else self._limit):
                return tuple(torch.empty(self._count, *t.shape[1:], dtype=t.dtype, device=device) for t in batch)
        return None

    def __getitem__(self, indices: Tensor) -> Activations:
        if self._kept is not None:
            return tuple(t[indices.to(t.device)].to(self._device) for t in self._kept)
        return tuple(torch.cat(column) for column in zip(*self._encode(indices.tolist()), strict=True))

    def subset(self, positions: Tensor) -> ActivationSubset:
        """Some of the images, at positions (n,), as a store of their own that shares the memory."""
        return ActivationSubset(self, positions)


class ActivationSubset:
    """A part of an `ActivationStore`, picked by index."""

    def __init__(self, store: ActivationStore, positions: Tensor) -> None:
        self._store, self._positions = store, positions

    def __getitem__(self, indices: Tensor) -> Activations:
        return self._store[self._positions[indices]]


def through_cache(
    cache: FeatureCache,
    product: str,
    images: Sequence[str | None],
    encode: Encode,
    device: torch.device,
    batch_size: int,
) -> Generator[Activations, None, None]:
    """What `encode` makes of N images, in the same batches; those that the cache has are neither decoded nor encoded.

    Args:
        cache: where to look, and to keep what is new.
        product: all that the activations depend on besides the images; see `kalmanclip.encoders.product`.
        images: the content identities of the N images; a batch with None in it is not kept.
        encode: positions to activations, in batches of ``batch_size``.
        device: where the activations are wanted.
        batch_size: B; the last batch may be smaller.

    Yields:
        Activations (B, ...).
    """
    parts = [range(start, min(start + batch_size, len(images))) for start in range(0, len(images), batch_size)]
    places: list[Path | None] = []
    for part in parts:
        told = [key for key in images[part.start : part.stop] if key is not None]
        places.append(cache.place(product, told) if len(told) == len(part) else None)
    known = [place is not None and cache.has(place) for place in places]
    # one call for all that is missing: it decodes ahead of what is encoded. Only the last batch of all may be short,
    # so that its batches are the parts.
    missing = [i for part, at_hand in zip(parts, known, strict=True) if not at_hand for i in part]
    with closing(encode(missing)) as coming:
        for part, place, at_hand in zip(parts, places, known, strict=True):
            rows = cache.read(place) if at_hand and place is not None else None
            if rows is None:
                (rows,) = encode(part) if at_hand else islice(coming, 1)  # at hand a moment ago: damaged, or deleted
                if place is not None:
                    cache.write(place, product, rows)
            yield tuple(column.to(device) for column in rows)

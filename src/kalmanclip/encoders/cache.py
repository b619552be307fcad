"""Frozen activations, computed once per image and kept while memory allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from kalmanclip.encoders.towers import Activations

KEEP_BYTES = 4 << 30
"""How much memory the kept activations of one data set may take before they are recomputed instead."""


class ActivationStore:
    """The frozen prefix of N images, picked by index.

    Args:
        prefix: preprocessed images (B, 3, h, w) to activations, on the model's device.
        batches: indices to preprocessed images, in batches and in that order; called once for all images, and again
            for every batch where the activations are too large to keep.
        count: N.
        keep_bytes: the limit up to which activations are kept.
    """

    def __init__(
        self,
        prefix: Callable[[Tensor], Activations],
        batches: Callable[[Iterable[int]], Iterator[Tensor]],
        count: int,
        keep_bytes: int = KEEP_BYTES,
    ) -> None:
        self._prefix, self._batches, self._count, self._limit = prefix, batches, count, keep_bytes
        self._kept: Activations | None = None

    def fill(self) -> Iterator[int]:
        """Computes and keeps all activations; yields how many images are done. Stops early if they would not fit."""
        pieces: list[Activations] = []
        done = 0
        for images in self._batches(range(self._count)):
            pieces.append(self._prefix(images))
            done += len(images)
            per_image = sum(t.nbytes for t in pieces[0]) / len(pieces[0][0])
            if per_image * self._count > self._limit:
                return
            yield done
        self._kept = tuple(torch.cat(column) for column in zip(*pieces, strict=True))

    def __getitem__(self, indices: Tensor) -> Activations:
        if self._kept is not None:
            return tuple(t[indices.to(t.device)] for t in self._kept)
        pieces = [self._prefix(images) for images in self._batches(indices.tolist())]
        return tuple(torch.cat(column) for column in zip(*pieces, strict=True))

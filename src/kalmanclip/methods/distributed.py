"""Fits that several processes (ranks) share: each encodes its share of the images, and all get all features."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kalmanclip import errors
from kalmanclip.data import ImageSource
from kalmanclip.encoders import Activations, DualEncoder, features
from kalmanclip.encoders.cache import Encode
from kalmanclip.encoders.features import ActivationStore, Progress, crop_features, frozen_activations
from kalmanclip.errors import ConfigError, KalmanClipError, RankError
from kalmanclip.filtering import Ranks
from kalmanclip.observation import make_likelihood
from kalmanclip.process import free_bytes

if TYPE_CHECKING:
    from kalmanclip.methods.kalman import KalmanConfig
    from kalmanclip.methods.residuals import ClassResidualsConfig


def require_shareable(config: KalmanConfig) -> None:
    """Raise `ConfigError` if several ranks cannot fit with these options together."""
    if config.belief != "diagonal":
        raise ConfigError(
            f"Several ranks can share a diagonal belief only, not {config.belief!r}, whose parameters are not "
            "independent. Choose the belief 'diagonal', or start a single process."
        )
    if config.filter.step_size is not None or config.crop_scale is not None or config.prior_per_matrix:
        raise ConfigError(
            "Several ranks cannot share fits with step_size, crop_scale or prior_per_matrix yet. "
            "Start a single process, or choose the preset 'paper'."
        )
    if not make_likelihood(config.observation, **config.observation_options).by_row:
        raise ConfigError(
            f"Several ranks cannot share the observation {config.observation!r}: it compares the images of a batch "
            "with each other, and each rank sees its own images only. Choose another one, such as 'contrastive', or "
            "start a single process."
        )


def require_same(ranks: Ranks, *what: object) -> None:
    """Raise `ConfigError` on all ranks unless all were given the same (values that print what they are)."""
    digest = hashlib.sha256(repr(what).encode(errors="surrogateescape")).hexdigest()
    if len(set(ranks.all_gather_text(digest))) > 1:
        raise ConfigError(
            "The ranks were not given the same images, classes, options or weights. Start all of them with one command."
        )


@contextmanager
def failing_together(ranks: Ranks) -> Iterator[None]:
    """Make an error that one rank meets in its share the error of all, so that none waits for it."""
    met: KalmanClipError | None = None
    try:
        yield
    except RankError:
        raise
    except KalmanClipError as error:
        met = error
    gathered = ranks.all_gather_text("" if met is None else json.dumps([type(met).__name__, str(met)]))
    if met is not None:
        raise met
    for text in filter(None, gathered):
        name, message = json.loads(text)
        raise getattr(errors, name, KalmanClipError)(message)


def shared_rows(
    ranks: Ranks, count: int, encode: Callable[[range], tuple[Tensor, ...]], device: torch.device
) -> tuple[Tensor, ...]:
    """Return what ``encode`` makes of N images, each rank its share: columns (N, ...) on all ranks.

    A share is so many whole batches of a single process: its cache then serves any number of ranks, and rounding does
    not depend on it.

    ``encode`` turns positions, at least one, into columns (B, ...), or into nothing if they are too many to be held by
    this rank. Then nothing is returned on all ranks.
    """
    sizes = ranks.shares(count, features.ENCODE_BATCH)
    place = ranks.own_slice(sizes)
    columns: tuple[Tensor, ...] = ()
    with failing_together(ranks):
        if sizes[ranks.rank]:
            columns = encode(range(place.start, place.stop))
    gathered = ranks.all_gather_text(json.dumps([[str(c.dtype).removeprefix("torch."), *c.shape[1:]] for c in columns]))
    forms = [json.loads(text) for text, size in zip(gathered, sizes, strict=True) if size]
    if not all(forms):
        return ()
    if not columns:  # a rank without images learns from the others what a row looks like
        columns = tuple(torch.empty(0, *shape, dtype=getattr(torch, name), device=device) for name, *shape in forms[0])
    return tuple(ranks.all_gather(column, sizes, "activations") for column in columns)


class _RecomputedActivations(ActivationStore):
    """Activations that every rank computes anew for its share of each batch."""

    def __init__(self, encode: Encode, count: int, ranks: Ranks) -> None:
        super().__init__(encode, count)
        self._ranks = ranks

    def __getitem__(self, indices: Tensor) -> Activations:
        with failing_together(self._ranks):
            return super().__getitem__(indices)
        raise AssertionError  # an error of another rank was raised


def shared_activations(
    encoder: DualEncoder, sources: Sequence[ImageSource], progress: Progress, ranks: Ranks
) -> ActivationStore:
    """Compute the frozen activations of training images as `activation_store`, with every rank encoding its share.

    Every rank keeps the activations of all images, where a quarter of its share of the free memory is enough for them:
    while they are exchanged they are there more than twice.
    """
    device = encoder.backbone.device
    allowed = free_bytes(device) // 4

    def encode(part: range) -> tuple[Tensor, ...]:
        batches: list[Activations] = []
        with closing(frozen_activations(encoder, [sources[i] for i in part], progress)) as coming:
            for batch in coming:
                if sum(t.nbytes for t in batch) // len(batch[0]) * len(sources) > allowed:
                    return ()
                batches.append(batch)
        return tuple(torch.cat(column) for column in zip(*batches, strict=True))

    def again(positions: Sequence[int]) -> Generator[Activations, None, None]:
        return frozen_activations(encoder, [sources[i] for i in positions], keep=False)

    kept = shared_rows(ranks, len(sources), encode, device)
    if not kept:
        return _RecomputedActivations(again, len(sources), ranks)
    store = ActivationStore(again, len(sources))
    store.keep(kept, device)
    return store


def shared_crop_features(
    encoder: DualEncoder,
    sources: Sequence[ImageSource],
    config: ClassResidualsConfig,
    progress: Progress,
    ranks: Ranks | None,
) -> Tensor:
    """Return the embeddings (N, V, d) of the crops of each training image, with every rank encoding its share."""
    if ranks is None:
        return crop_features(encoder, sources, config, config.seed, progress)

    def encode(part: range) -> tuple[Tensor]:
        return (crop_features(encoder, [sources[i] for i in part], config, config.seed, progress),)

    return shared_rows(ranks, len(sources), encode, encoder.backbone.device)[0]

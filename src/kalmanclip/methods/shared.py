"""What several ranks do of a fit together: each encodes its share of the images, and sees its share of every batch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager

import torch
from torch import Tensor

from kalmanclip import errors
from kalmanclip.data.images import ImageSource
from kalmanclip.encoders import Activations, DualEncoder
from kalmanclip.encoders.cache import ActivationStore, Encode
from kalmanclip.errors import ConfigError, KalmanClipError, RankError
from kalmanclip.filtering import KalmanFilter, Ranks, Step
from kalmanclip.filtering.accelerated.distributed import shard
from kalmanclip.memory import free_bytes
from kalmanclip.methods.base import Progress
from kalmanclip.methods.features import ENCODE_BATCH, frozen_activations
from kalmanclip.methods.kalman_config import KalmanConfig
from kalmanclip.methods.stepping import Stepper
from kalmanclip.observation import Likelihood, make_likelihood
from kalmanclip.observation.observe import Compared


def require_shareable(config: KalmanConfig) -> None:
    """Raises `ConfigError` if several ranks cannot fit with these options together."""
    if "low_rank" in config.parameters and config.belief != "diagonal":
        raise ConfigError(
            f"Several ranks can share a diagonal belief only, not {config.belief!r}, whose parameters are not "
            "independent. Choose the belief 'diagonal', or start a single process."
        )
    if "low_rank" in config.parameters and not make_likelihood(config.observation, **config.observation_options).by_row:
        raise ConfigError(
            f"Several ranks cannot share the observation {config.observation!r}: it compares the images of a batch "
            "with each other, and each rank sees its own images only. Choose another one, such as 'contrastive', or "
            "start a single process."
        )


def require_same(ranks: Ranks, *what: object) -> None:
    """Raises `ConfigError` on all ranks unless all were given the same (values that print what they are)."""
    digest = hashlib.sha256(repr(what).encode(errors="surrogateescape")).hexdigest()
    if len(set(ranks.all_gather_text(digest))) > 1:
        raise ConfigError(
            "The ranks were not given the same images, classes, options or weights. Start all of them with one command."
        )


@contextmanager
def failing_together(ranks: Ranks) -> Iterator[None]:
    """An error that one rank meets in its share becomes the error of all, so that none waits for it."""
    met: KalmanClipError | None = None
    try:
        yield
    except RankError:
        raise
    except KalmanClipError as error:
        met = error
    told = ranks.all_gather_text("" if met is None else json.dumps([type(met).__name__, str(met)]))
    if met is not None:
        raise met
    for text in filter(None, told):
        name, message = json.loads(text)
        raise getattr(errors, name, KalmanClipError)(message)


def shared_rows(
    ranks: Ranks, count: int, encode: Callable[[range], tuple[Tensor, ...]], device: torch.device
) -> tuple[Tensor, ...]:
    """What ``encode`` makes of N images, each rank its share: columns (N, ...) on all ranks.

    A share is so many whole batches of a single process: its cache then serves any number of ranks, and rounding does
    not depend on it.

    Args:
        ranks: who shares.
        count: N.
        encode: positions, at least one, to columns (B, ...); nothing if they are too many to be kept by this rank.
        device: where the columns are wanted.

    Returns:
        Nothing, on all ranks, if one of them could not keep the columns.
    """
    sizes = ranks.shares(count, ENCODE_BATCH)
    place = ranks.own_slice(sizes)
    columns: tuple[Tensor, ...] = ()
    with failing_together(ranks):
        if sizes[ranks.rank]:
            columns = encode(range(place.start, place.stop))
    told = ranks.all_gather_text(json.dumps([[str(c.dtype).removeprefix("torch."), *c.shape[1:]] for c in columns]))
    forms = [json.loads(text) for text, size in zip(told, sizes, strict=True) if size]
    if not all(forms):
        return ()
    if not columns:  # a rank without images learns from the others what a row looks like
        columns = tuple(torch.empty(0, *shape, dtype=getattr(torch, name), device=device) for name, *shape in forms[0])
    return tuple(ranks.all_gather(column, sizes, "activations") for column in columns)


class _Anew(ActivationStore):
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
    """`kalmanclip.methods.features.activation_store`, with every rank encoding its share.

    Every rank keeps the activations of all images, where a quarter of its share of the free memory is enough for them:
    while they are exchanged they are there more than twice.
    """
    device = encoder.backbone.device
    room = free_bytes(device) // 4

    def encode(part: range) -> tuple[Tensor, ...]:
        batches: list[Activations] = []
        with closing(frozen_activations(encoder, [sources[i] for i in part])) as coming:
            for batch in coming:
                if sum(t.nbytes for t in batch) // len(batch[0]) * len(sources) > room:
                    return ()
                batches.append(batch)
                progress("reading images", sum(len(b[0]) for b in batches), len(part))
        return tuple(torch.cat(column) for column in zip(*batches, strict=True))

    def again(positions: Sequence[int]) -> Generator[Activations, None, None]:
        return frozen_activations(encoder, [sources[i] for i in positions], keep=False)

    kept = shared_rows(ranks, len(sources), encode, device)
    if not kept:
        return _Anew(again, len(sources), ranks)
    store = ActivationStore(again, len(sources))
    store.keep(kept, device)
    return store


class SharedStepper(Stepper):
    """A `Stepper` on all ranks together; between passes the belief is whole again.

    The filter's belief, which every rank has, is shared out here, and `close` makes it whole.
    """

    def __init__(
        self,
        encoder: DualEncoder,
        kalman: KalmanFilter,
        likelihood: Likelihood,
        texts: Activations,
        templates: int,
        ranks: Ranks,
    ) -> None:
        super().__init__(encoder, kalman, likelihood, texts, templates, capture=False)
        self.ranks = ranks
        self.belief = shard(kalman.belief, ranks)
        kalman.belief = self.belief

    def __call__(self, images: Activations, labels: Tensor) -> Step:
        """One step on activations of this rank's images, and the labels (B,) of the whole batch."""
        shares = self.ranks.shares(len(labels))
        seen = self._share(labels, self.ranks.own_slice(shares))
        return self.kalman.step(self.belief.observe_distributed(lambda mean: self._observe(images, seen), shares))

    def _share(self, labels: Tensor, mine: slice) -> Compared:
        """What a share of a batch is compared with: the texts of the whole batch."""
        if self.likelihood.paired:  # each image has a text of its own
            return self._compared(labels[mine])
        seen = self._compared(labels)
        return seen._replace(column=seen.column[mine])

    def close(self) -> None:
        """Makes the belief whole on every rank: to be saved, or to predict with."""
        self.kalman.belief = self.belief.gather()

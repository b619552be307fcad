"""From images to features: decoding, crops, the frozen towers, the cache on disk, and what is kept in memory."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing

import torch
from PIL import Image
from torch import Tensor

from kalmanclip.data.embedding import Embedding, stack_embeddings
from kalmanclip.data.images import ImageSource, cache_decoded, content_identities, image_batches
from kalmanclip.data.prompts import class_prompts
from kalmanclip.encoders.backbone import Backbone
from kalmanclip.encoders.cache import Encode, describe_product, through_cache
from kalmanclip.encoders.crops import Pictures
from kalmanclip.encoders.dual import DualEncoder
from kalmanclip.encoders.preprocess import Preprocess, RandomCrop, RandomCropConfig
from kalmanclip.encoders.tower import Tower
from kalmanclip.encoders.towers import EMBEDDING, Activations, TextEncoder, unit
from kalmanclip.errors import ConfigError, DataError
from kalmanclip.process import free_bytes

Progress = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)`` while something takes its time."""


def silent(stage: str, done: int, total: int) -> None:
    """Report nothing."""


ENCODE_BATCH = 64
"""Images that are read, encoded and cached together where no derivatives are needed."""


def decoded(
    backbone: Backbone,
    sources: Iterable[ImageSource],
    crop: RandomCrop | None = None,
    batch_size: int = ENCODE_BATCH,
    numbers: Sequence[int] | None = None,
) -> Iterator[Tensor]:
    """Yield preprocessed batches (B, 3, h, w) on the model's device: centre crops, or random ones."""
    preprocess, min_side = backbone.preprocess, _min_side(backbone, crop)
    # a preprocessing of the user's own may have one part only
    pixels, finish = preprocess, None
    if isinstance(preprocess, Preprocess):
        pixels, finish = preprocess.pixels, preprocess.finish

    def prepare(image: Image.Image) -> Tensor:
        return pixels(image if crop is None else crop.cut(image))

    ahead = backbone.device.type != "cpu"  # threads that decode would only disturb those that encode
    for batch in image_batches(sources, prepare, batch_size, min_side=min_side, numbers=numbers, ahead=ahead):
        moved = batch.to(backbone.device)
        yield (moved if finish is None else finish(moved)).to(backbone.dtype)


def _min_side(backbone: Backbone, crop: RandomCrop | None) -> int:
    """Return the size down to which decoding may shrink a picture."""
    return backbone.image_size if crop is None else crop.min_side


def frozen_activations(
    encoder: DualEncoder,
    sources: Sequence[ImageSource],
    progress: Progress = silent,
    crop: RandomCrop | None = None,
    keep: bool = True,
) -> Generator[Activations, None, None]:
    """Yield what the frozen part of the image tower makes of N images, in batches (B, ...) and in order.

    If the backbone has a cache, batches that it knows are neither decoded nor encoded. Where only the embeddings of
    images are there (`kalmanclip.data.embedding`), they are the activations.

    Args:
        encoder: the towers, and the backbone's cache, if any.
        sources: the images.
        progress: told about reading.
        crop: random crops; None for centre crops.
        keep: whether the cache may be used: not for batches that will not come again.
    """
    backbone, tower = encoder.backbone, encoder.image

    def compute(positions: Sequence[int]) -> Generator[Activations, None, None]:
        for batch in decoded(backbone, [sources[i] for i in positions], crop, ENCODE_BATCH, positions):
            # in the layout that they would come from a cache with: sums may round by that
            yield tuple(column.contiguous() for column in tower.prefix(batch))

    embeddings = stack_embeddings(sources)
    batches = compute(range(len(sources))) if embeddings is None else _as_activations(embeddings, backbone, tower)
    cache = backbone.cache if keep and embeddings is None else None
    if cache is not None:
        crop_key = "" if crop is None else str(crop)
        description = describe_product(backbone, tower.product, _min_side(backbone, crop), crop_key)
        if description is not None:
            images = content_identities(sources)
            batches = through_cache(cache, description, images, compute, backbone.device, ENCODE_BATCH)
    done = 0
    with closing(batches):
        for batch in batches:
            yield batch
            done += len(batch[0])
            progress("reading images", done, len(sources))


def _as_activations(embeddings: Tensor, backbone: Backbone, tower: Tower) -> Generator[Activations, None, None]:
    """Yield embeddings (N, d) as what a frozen image tower would have made of the images."""
    if tower.product != EMBEDDING:
        raise ConfigError(
            "Low-rank parameters inside the image tower need images, and there are only embeddings. Choose the preset "
            "'residuals' or 'head'."
        )
    if embeddings.shape[1] != backbone.width:
        raise DataError(
            f"The embeddings have {embeddings.shape[1]} numbers each, but those of the model {backbone.name!r} have "
            f"{backbone.width}. Embed the images with this model; a single grey image is given as [image]."
        )
    for batch in embeddings.split(ENCODE_BATCH):
        yield (unit(batch.to(backbone.device)),)


@torch.no_grad()
def image_features(
    encoder: DualEncoder,
    images: Iterable[ImageSource],
    progress: Progress = silent,
    crop: RandomCrop | None = None,
    keep: bool = True,
) -> Tensor:
    """Return unit-length embeddings (N, d) of N images, in float32 at least; cached as in `frozen_activations`."""
    rows = [encoder.encode_images(b) for b in frozen_activations(encoder, list(images), progress, crop, keep)]
    backbone = encoder.backbone
    return torch.cat(rows) if rows else torch.empty(0, backbone.width, device=backbone.device)


def crop_features(
    encoder: DualEncoder,
    sources: Sequence[ImageSource],
    config: RandomCropConfig,
    seed: int,
    progress: Progress = silent,
) -> Tensor:
    """Return embeddings (N, V, d) of the V crops that stand for each image; see `RandomCropConfig.weights`."""
    if isinstance(next(iter(sources), None), Embedding):  # there is nothing to crop: every crop is the image
        f = image_features(encoder, sources, progress)
        return f.unsqueeze(1).repeat(1, len(config.weights), 1)
    crops = [RandomCrop(encoder.backbone, config.crop_scale, seed, number) for number in range(config.crops)]
    centre = len(config.weights) > len(crops)
    decoded_once = cache_decoded(sources, crops[0].min_side) if crops else sources
    total = len(sources) * len(config.weights)
    columns: list[Tensor] = []
    for crop in ([None] if centre else []) + crops:
        before = len(sources) * len(columns)

        def tell(stage: str, done: int, count: int, before: int = before) -> None:
            progress(stage, before + done, total)

        # centre crops as everybody decodes them: one cache serves all
        columns.append(image_features(encoder, sources if crop is None else decoded_once, tell, crop))
    return torch.stack(columns, dim=1)


def epoch_features(
    encoder: DualEncoder,
    sources: Sequence[ImageSource],
    crop_scale: tuple[float, float],
    crops: int | None,
    seed: int,
    progress: Progress = silent,
) -> Callable[[int], Tensor]:
    """Return a function from the number of an epoch to the training features (N, d) of that epoch.

    Args:
        encoder: the frozen towers.
        sources: the training images.
        crop_scale: of the random crops, see `RandomCrop`.
        crops: None: fresh ones in every epoch; V: so many passes, kept and taken in turn; 0: centre crops. Fresh crops
            of hundreds of epochs would fill a cache and hardly be needed again: only the decoded pictures are kept
            then, in memory.
        seed: of the crops.
        progress: told about reading.
    """
    known: dict[int, Tensor] = {}
    if isinstance(next(iter(sources), None), Embedding):
        crops = 0
    if crops is None:
        sources = cache_decoded(sources, RandomCrop(encoder.backbone, crop_scale, seed, 0).min_side)

    def features(epoch: int) -> Tensor:
        number = epoch if crops is None else epoch % max(crops, 1)
        if number not in known:
            if crops is None:
                known.clear()
            crop = None if crops == 0 else RandomCrop(encoder.backbone, crop_scale, seed, number)
            known[number] = image_features(encoder, sources, progress, crop, keep=crops is not None)
        return known[number]

    return features


def fresh_crops(
    backbone: Backbone, sources: Sequence[ImageSource], crop_scale: tuple[float, float] | None, seed: int
) -> Callable[[Tensor, int], Tensor]:
    """Return a function from positions (B,) and an epoch to preprocessed images (B, 3, h, w), others in every epoch.

    Args:
        backbone: whose preprocessing.
        sources: the training images; none is decoded twice while memory allows.
        crop_scale: of the random crops; None: centre crops, the same in every epoch.
        seed: of the crops.
    """

    preprocess = backbone.preprocess
    if crop_scale is None or not (isinstance(preprocess, Preprocess) and preprocess.takes_bytes):

        def crop(epoch: int) -> RandomCrop | None:
            return None if crop_scale is None else RandomCrop(backbone, crop_scale, seed, epoch)

        kept = cache_decoded(sources, _min_side(backbone, crop(0)))

        def whole(positions: Tensor, epoch: int) -> Tensor:
            (images,) = decoded(backbone, [kept[i] for i in positions.tolist()], crop(epoch), len(positions))
            return images

        return whole

    pictures = Pictures(sources, RandomCrop(backbone, crop_scale, seed, 0).min_side, backbone.device)

    def batch(positions: Tensor, epoch: int) -> Tensor:
        crops = pictures.crops(positions.tolist(), RandomCrop(backbone, crop_scale, seed, epoch))
        return preprocess.finish(crops.to(torch.uint8)).to(backbone.dtype)

    return batch


@torch.no_grad()
def text_weights(backbone: Backbone, class_names: Sequence[str], templates: Sequence[str]) -> Tensor:
    """Return the zero-shot classifier ``T`` (C, d): unit-length prompt embeddings, averaged on the sphere."""
    prompts = [prompt for group in class_prompts(templates, class_names) for prompt in group]
    tokens = backbone.tokenizer(prompts).to(backbone.device)
    t = torch.cat([unit(TextEncoder(backbone.model)(part)) for part in tokens.split(4 * ENCODE_BATCH)])
    return unit(t.unflatten(0, (-1, len(templates))).mean(dim=1))


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
        """Compute and keep all activations; yield how many images are done. Stop early if they would not fit."""
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
        """Take the activations of all images (N, ...), wherever they lie; they are wanted on ``device``."""
        self._kept, self._device = columns, device

    def _allocated(self, batch: Activations) -> Activations | None:
        """Allocate memory for activations of all images like those of a batch; None if there is not enough."""
        wanted = sum(t.nbytes for t in batch) // len(batch[0]) * self._count
        for device in dict.fromkeys((batch[0].device, torch.device("cpu"))):
            if wanted <= (free_bytes(device) // 2 if self._limit is None else self._limit):
                return tuple(torch.empty(self._count, *t.shape[1:], dtype=t.dtype, device=device) for t in batch)
        return None

    def __getitem__(self, indices: Tensor) -> Activations:
        if self._kept is not None:
            return tuple(t[indices.to(t.device)].to(self._device) for t in self._kept)
        return tuple(torch.cat(column) for column in zip(*self._encode(indices.tolist()), strict=True))


def activation_store(encoder: DualEncoder, sources: Sequence[ImageSource], progress: Progress) -> ActivationStore:
    """Compute the frozen activations of training images (centre crops), and keep them where memory allows."""

    def encode(indices: Sequence[int]) -> Generator[Activations, None, None]:
        # a batch of a shuffled pass does not come again
        return frozen_activations(encoder, [sources[i] for i in indices], keep=len(indices) == len(sources))

    store = ActivationStore(encode, len(sources))
    for done in store.fill():
        progress("reading images", done, len(sources))
    return store

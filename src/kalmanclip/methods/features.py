"""What the methods on frozen features share: unit-length features, class text weights, random crops, two verbs."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import ClassVar

import torch
from PIL import Image
from torch import Tensor

from kalmanclip.data import FewShotTask, LabelledImages, class_prompts, image_batches
from kalmanclip.data.images import ImageSource, cache_decoded, content_identities
from kalmanclip.encoders import Activations, Backbone, DualEncoder
from kalmanclip.encoders.cache import ActivationStore, through_cache
from kalmanclip.encoders.preprocess import Preprocess
from kalmanclip.encoders.product import describe_product
from kalmanclip.encoders.towers import EMBEDDING, ImageEncoder, TextEncoder, unit
from kalmanclip.errors import ConfigError, DataError
from kalmanclip.methods.base import Needs, Progress, silent

ENCODE_BATCH = 64
"""Images that are read, encoded and cached together where no derivatives are needed."""


class RandomCrop:
    """Random resized crop and horizontal flip, at the backbone's resolution.

    What is random depends on the seed, the pass and the picture alone: decoding in threads cannot change it.

    Args:
        backbone: whose input size and preprocessing.
        scale: smallest and largest share of the picture's area.
        seed: any integer.
        epoch: which pass over the images; each sees other crops.
    """

    ratio = (3 / 4, 4 / 3)  # of width to height, as everywhere in the field
    attempts = 10

    def __init__(self, backbone: Backbone, scale: tuple[float, float], seed: int, epoch: int) -> None:
        self.backbone, self.scale, self.key = backbone, scale, f"{seed}:{epoch}"

    def __str__(self) -> str:
        """All that a picture's crop depends on besides the backbone and the picture."""
        return f"area {self.scale[0]} to {self.scale[1]}, ratio {self.ratio}, attempts {self.attempts}, {self.key}"

    @property
    def min_side(self) -> int:
        """Decoding may shrink a picture down to this: the smallest crop still has the network's resolution."""
        return math.ceil(self.backbone.image_size / math.sqrt(self.scale[0]))

    def cut(self, image: Image.Image) -> Image.Image:
        """One picture's crop in this pass, in the network's resolution."""
        generator = random.Random(f"{self.key}:{zlib.crc32(image.tobytes())}")
        side = self.backbone.image_size
        crop = image.resize((side, side), Image.Resampling.BICUBIC, box=self._box(image.size, generator))
        if generator.random() < 0.5:
            crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return crop

    def _box(self, size: tuple[int, int], generator: random.Random) -> tuple[int, int, int, int]:
        """Left, upper, right, lower: a random area and log-uniform ratio, or the largest centre crop if none fits."""
        width, height = size
        low, high = (math.log(r) for r in self.ratio)
        for _ in range(self.attempts):
            area = width * height * generator.uniform(*self.scale)
            ratio = math.exp(generator.uniform(low, high))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                left, upper = generator.randint(0, width - w), generator.randint(0, height - h)
                return left, upper, left + w, upper + h
        w = min(width, round(height * self.ratio[1]))
        h = min(height, round(width / self.ratio[0]))
        left, upper = (width - w) // 2, (height - h) // 2
        return left, upper, left + w, upper + h


def decoded(
    backbone: Backbone,
    sources: Iterable[ImageSource],
    crop: RandomCrop | None = None,
    batch_size: int = ENCODE_BATCH,
    numbers: Sequence[int] | None = None,
) -> Iterator[Tensor]:
    """Preprocessed batches (B, 3, h, w) on the model's device: centre crops, or random ones."""
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
    """Decoding may shrink a picture down to this."""
    return backbone.image_size if crop is None else crop.min_side


def encoded(
    backbone: Backbone,
    sources: Sequence[ImageSource],
    product: str,
    encode: Callable[[Tensor], Activations],
    crop: RandomCrop | None = None,
    keep: bool = True,
) -> Generator[Activations, None, None]:
    """What a frozen part of the image tower makes of N images, in batches (B, ...) and in order.

    If the backbone has a cache, batches that it knows are neither decoded nor encoded.

    Args:
        backbone: the frozen CLIP, and its cache, if any.
        sources: the images.
        product: what ``encode`` computes; see `kalmanclip.encoders.towers.Tower.product`.
        encode: preprocessed images (B, 3, h, w) to activations.
        crop: random crops; None for centre crops.
        keep: whether the cache may be used: not for batches that will not come again.
    """

    def compute(positions: Sequence[int]) -> Generator[Activations, None, None]:
        for batch in decoded(backbone, [sources[i] for i in positions], crop, ENCODE_BATCH, positions):
            # in the layout that they would come from a cache with: sums may round by that
            yield tuple(column.contiguous() for column in encode(batch))

    cache = backbone.cache if keep else None
    if cache is not None:
        crop_key = "" if crop is None else str(crop)
        description = describe_product(backbone, product, _min_side(backbone, crop), crop_key)
        if description is not None:
            images = content_identities(sources)
            return through_cache(cache, description, images, compute, backbone.device, ENCODE_BATCH)
    return compute(range(len(sources)))


def frozen_activations(
    encoder: DualEncoder, sources: Sequence[ImageSource], keep: bool = True
) -> Generator[Activations, None, None]:
    """The frozen activations of N images (centre crops), in batches (B, ...) and in order; cached as in `encoded`."""
    return encoded(encoder.backbone, sources, encoder.image.product, encoder.image.prefix, keep=keep)


def image_features(
    backbone: Backbone,
    images: Iterable[ImageSource],
    progress: Progress = silent,
    crop: RandomCrop | None = None,
    keep: bool = True,
) -> Tensor:
    """Unit-length embeddings (N, d) of N images by the frozen image tower; float32 at least. Cached as in `encoded`."""

    encode_image = ImageEncoder(backbone.model)

    @torch.no_grad()
    def embed(batch: Tensor) -> Activations:
        return (unit(encode_image(batch)),)

    sources = list(images)
    rows: list[Tensor] = []
    done = 0
    for (f,) in encoded(backbone, sources, EMBEDDING, embed, crop, keep):
        rows.append(f)
        done += len(f)
        progress("reading images", done, len(sources))
    return torch.cat(rows) if rows else torch.empty(0, backbone.width, device=backbone.device)


@torch.no_grad()
def text_weights(backbone: Backbone, class_names: Sequence[str], templates: Sequence[str]) -> Tensor:
    """The zero-shot classifier ``T`` (C, d): unit-length prompt embeddings; several are averaged on the sphere."""
    prompts = [prompt for group in class_prompts(templates, class_names) for prompt in group]
    tokens = backbone.tokenizer(prompts).to(backbone.device)
    t = torch.cat([unit(TextEncoder(backbone.model)(part)) for part in tokens.split(4 * ENCODE_BATCH)])
    return unit(t.unflatten(0, (-1, len(templates))).mean(dim=1))


def augmented_features(
    backbone: Backbone, task: FewShotTask, scale: tuple[float, float], views: int | None, progress: Progress = silent
) -> Callable[[int], Tensor]:
    """The training features (N, d) of each epoch.

    Args:
        backbone: the frozen CLIP.
        task: whose training images and seed.
        scale: of the random crops, see `RandomCrop`.
        views: None: fresh crops in every epoch, as published; V: so many passes, kept and taken in turn; 0: centre
            crops. Fresh crops of hundreds of epochs would fill a cache and hardly be needed again: only the decoded
            pictures are kept then, in memory.
        progress: told about decoding.

    Returns:
        A function from the number of the epoch to its features.
    """
    kept: dict[int, Tensor] = {}
    sources = task.train.sources
    if views is None:
        sources = cache_decoded(sources, RandomCrop(backbone, scale, task.seed, 0).min_side)

    def features(epoch: int) -> Tensor:
        view = epoch if views is None else epoch % max(views, 1)
        if view not in kept:
            if views is None:
                kept.clear()
            crop = None if views == 0 else RandomCrop(backbone, scale, task.seed, view)
            kept[view] = image_features(backbone, sources, progress, crop, keep=views is not None)
        return kept[view]

    return features


def activation_store(encoder: DualEncoder, sources: Sequence[ImageSource], progress: Progress) -> ActivationStore:
    """The frozen activations of training images (centre crops), computed and kept where memory allows."""

    def encode(indices: Sequence[int]) -> Generator[Activations, None, None]:
        # a batch of a shuffled pass does not come again
        return frozen_activations(encoder, [sources[i] for i in indices], keep=len(indices) == len(sources))

    store = ActivationStore(encode, len(sources))
    for done in store.fill():
        progress("reading images", done, len(sources))
    return store


def labels_of(images: LabelledImages, device: torch.device) -> Tensor:
    """Labels (N,) on the device; an error where there is nothing to learn from."""
    if not len(images):
        raise DataError("There are no images to learn from.")
    return torch.tensor(images.labels, device=device)


def class_means(f: Tensor, labels: Tensor, class_names: Sequence[str], weights: Tensor | None = None) -> Tensor:
    """Mean feature of each class, (C, d), of features (N, d), labels (N,) and weights (N,), None for all equal."""
    weights = f.new_ones(len(f)) if weights is None else weights
    counts = f.new_zeros(len(class_names)).index_add_(0, labels, weights)
    if (counts == 0).any():
        missing = [name for name, n in zip(class_names, counts.tolist(), strict=True) if n == 0]
        raise DataError(f"This method needs an image of every class; there is none of {', '.join(missing[:5])}.")
    sums = torch.zeros(len(class_names), f.shape[1], device=f.device, dtype=f.dtype).index_add_(
        0, labels, weights.unsqueeze(1) * f
    )
    return sums / counts.unsqueeze(1)


class FeatureMethod:
    """A method on frozen features: it learns from ``f`` (N, d) and text weights ``T`` (C, d), and scores ``f``.

    Subclasses say how in `learn` and `score`.

    Args:
        backbone: the frozen CLIP.

    Attributes:
        T: the text weights (C, d), None before `fit`.
        scale: 1 / tau; the "100" of the papers, which is its value in OpenAI's models.
    """

    needs: ClassVar[Needs] = "features"

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self.scale = backbone.logit_scale
        self.T: Tensor | None = None

    def fit(self, task: FewShotTask, progress: Progress = silent) -> None:
        """Learns from ``task.train``; options are chosen on ``task.validation`` if there is one, else published."""
        self.T = text_weights(self.backbone, task.class_names, task.templates)
        self.learn(task, progress)

    def logits(self, images: Iterable[ImageSource], progress: Progress = silent) -> Tensor:
        """Scores (N, C) on the CPU, whose softmax are the class probabilities."""
        if self.T is None:
            raise ConfigError("The classifier has no classes yet: call fit first.")
        f = image_features(self.backbone, images, progress)
        with torch.no_grad():
            return self.score(f).cpu()

    def zero_shot(self, f: Tensor) -> Tensor:
        """``f T^T / tau`` (N, C)."""
        assert self.T is not None
        return self.scale * f @ self.T.mT

    def learn(self, task: FewShotTask, progress: Progress) -> None:
        """Sets whatever `score` needs beyond the text weights."""
        raise NotImplementedError

    def score(self, f: Tensor) -> Tensor:
        """Features (N, d) to logits (N, C)."""
        raise NotImplementedError

    def validation(self, task: FewShotTask, progress: Progress) -> tuple[Tensor, Tensor] | None:
        """Features and labels of the validation images, if there are any. The test images are never looked at."""
        if task.validation is None or not len(task.validation):
            return None
        f = image_features(self.backbone, task.validation.sources, progress)
        return f, labels_of(task.validation, f.device)


def hits(logits: Tensor, labels: Tensor) -> int:
    """How many of N images (N, C) are recognised."""
    return int((logits.argmax(dim=-1) == labels).sum())

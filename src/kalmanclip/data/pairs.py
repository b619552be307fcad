"""Images with captions: the pairs that CLIP is defined on, their distinct images and texts, and a task made of them."""

import os
import unicodedata
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from kalmanclip.data.images import ImageSource, LazyImage, content_identities
from kalmanclip.data.labelled import LabelledImages
from kalmanclip.data.splits import SPLITS
from kalmanclip.data.task import FewShotTask
from kalmanclip.errors import DataError

CAPTION_TEMPLATES = ("{}",)
"""A caption is its own prompt."""


@dataclass(frozen=True, eq=False)
class CaptionedImages:
    """N images, not decoded, with a caption of each. An image with several captions is listed once for each.

    Attributes:
        sources: N of what `load_image` takes.
        captions: N sentences.
    """

    sources: list[ImageSource]
    captions: list[str]

    def __post_init__(self) -> None:
        for field in ("sources", "captions"):  # own lists: nobody else's changes reach a frozen object
            object.__setattr__(self, field, list(getattr(self, field)))
        if len(self.sources) != len(self.captions):
            raise DataError(f"{len(self.sources)} images but {len(self.captions)} captions; give one per image")
        for position, caption in enumerate(self.captions):
            if not isinstance(caption, str) or not caption.strip():
                raise DataError(f"the caption of image {position} is {caption!r}; use non-empty strings")

    def __len__(self) -> int:
        return len(self.sources)

    def subset(self, indices: Iterable[int]) -> "CaptionedImages":
        """Return the pairs at `indices`, in that order."""
        chosen = list(indices)
        return CaptionedImages([self.sources[i] for i in chosen], [self.captions[i] for i in chosen])


@dataclass(frozen=True, eq=False)
class CaptionedSplits:
    """A data set of pairs: those to learn from, to choose on and to measure on; None where there are none."""

    train: CaptionedImages | None = None
    val: CaptionedImages | None = None
    test: CaptionedImages | None = None

    def get(self, name: str | None, where: str) -> CaptionedImages:
        """Return one split by its name; None takes test, or train where there is nothing else.

        Raises:
            DataError: there is no such split; `where` says in the message what was read.
        """
        present = {split: pairs for split in SPLITS if (pairs := getattr(self, split)) is not None}
        wanted = name or ("train" if list(present) == ["train"] else "test")
        if wanted not in present:
            raise DataError(f"{where} has no split {wanted!r}; it has {' and '.join(present) or 'nothing'}")
        return present[wanted]


@dataclass(frozen=True, eq=False)
class PairIndex:
    """Pairs taken apart: every image and every text once, and which belong together.

    Attributes:
        sources: N different images.
        texts: M different captions, as first written.
        matches: P pairs of a position in `sources` and one in `texts`.
    """

    sources: list[ImageSource]
    texts: list[str]
    matches: list[tuple[int, int]]


def caption_key(caption: str) -> str:
    """Return what is compared: captions that differ only in case or white space are the same text."""
    return " ".join(unicodedata.normalize("NFC", caption).split()).casefold()


def index_pairs(pairs: CaptionedImages) -> PairIndex:
    """Return the distinct images and distinct texts of pairs, in order of their first appearance.

    Images with equal content are one, whatever they are called: lists often repeat a file for each of its captions,
    and tables its bytes. Texts are compared by `caption_key`.
    """
    contents = content_identities(pairs.sources)
    keys = [content or _fallback_key(source) for content, source in zip(contents, pairs.sources, strict=True)]
    images, first_image = _numbered(keys)
    texts, first_text = _numbered(list(map(caption_key, pairs.captions)))
    return PairIndex(
        [pairs.sources[i] for i in first_image],
        [pairs.captions[i].strip() for i in first_text],
        list(zip(images, texts, strict=True)),
    )


def task_from_pairs(pairs: CaptionedImages, seed: int = 0, same: Sequence[Hashable] | None = None) -> FewShotTask:
    """Return pairs as a few-shot task: its "classes" are the distinct captions, taken as they are.

    Args:
        pairs: what to learn from.
        seed: of the task.
        same: P keys, one per pair; captions with equal keys are one text. None compares by `caption_key`. A model that
            reads only the beginning of a caption needs its own (see `kalmanclip.retrieval.learnable`).

    Raises:
        DataError: fewer than two different captions: there is nothing to tell apart.
    """
    labels, first = _numbered(list(map(caption_key, pairs.captions)) if same is None else same)
    if len(first) < 2:
        raise DataError(
            f"{len(first)} different captions are too few to learn from; give at least two, to be told apart"
        )
    texts = [pairs.captions[i].strip() for i in first]
    return FewShotTask(LabelledImages(pairs.sources, labels, texts), templates=CAPTION_TEMPLATES, seed=seed)


def _numbered(keys: Sequence[Hashable]) -> tuple[list[int], list[int]]:
    """Return the number of each key, counted in order of first appearance, and where each number first appears."""
    first: dict[Hashable, int] = {}
    for position, key in enumerate(keys):
        first.setdefault(key, position)
    number = {key: i for i, key in enumerate(first)}
    return [number[key] for key in keys], list(first.values())


def _fallback_key(source: ImageSource) -> Hashable:
    """Return what tells an image with unknown content from others: its path, its identity, or being that object."""
    if isinstance(source, str | os.PathLike):
        return os.path.normpath(os.fspath(source))
    return source.identity if isinstance(source, LazyImage) else id(source)

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
    """A data set of pairs: its splits, None where there is none.

    Attributes:
        train: the pairs to learn from.
        val: the pairs to choose on.
        test: the pairs to measure on.
    """

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
        texts: M different captions, as first spelled.
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
    images: dict[Hashable, int] = {}
    texts: dict[str, int] = {}
    index = PairIndex([], [], [])
    contents = content_identities(pairs.sources)
    for source, content, caption in zip(pairs.sources, contents, pairs.captions, strict=True):
        image = images.setdefault(content or _called(source), len(images))
        text = texts.setdefault(caption_key(caption), len(texts))
        if image == len(index.sources):
            index.sources.append(source)
        if text == len(index.texts):
            index.texts.append(caption.strip())
        index.matches.append((image, text))
    return index


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
    keys = [caption_key(caption) for caption in pairs.captions] if same is None else same
    labels: dict[Hashable, int] = {}
    names: list[str] = []
    for key, caption in zip(keys, pairs.captions, strict=True):
        if labels.setdefault(key, len(labels)) == len(names):
            names.append(caption.strip())
    if len(names) < 2:
        raise DataError(
            f"{len(names)} different captions are too few to learn from; give at least two, to be told apart"
        )
    return FewShotTask(
        LabelledImages(pairs.sources, [labels[key] for key in keys], names), templates=CAPTION_TEMPLATES, seed=seed
    )


def labelled_captions(images: LabelledImages, template: str) -> CaptionedImages:
    """Return labelled images as pairs with the prompt of their class."""
    return CaptionedImages(images.sources, [template.replace("{}", images.class_names[i]) for i in images.labels])


def _called(source: ImageSource) -> Hashable:
    """Return what tells an image with unknown content from others: its path, its identity, or being that object."""
    if isinstance(source, str | os.PathLike):
        return os.path.normpath(os.fspath(source))
    return source.identity if isinstance(source, LazyImage) else id(source)

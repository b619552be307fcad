"""Image-text pairs end to end: learning from captions with the Kalman filter, embeddings, recall@k.

>>> pairs = read_caption_splits("photos.csv")
>>> clf = fit_pairs(pairs.train, "tiny")
>>> result = measure_recall(pairs.test, clf)
>>> result.tuned.image_to_text[1], result.zero_shot.image_to_text[1]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kalmanclip.data import CaptionedImages, FewShotTask, index_pairs, task_from_pairs
from kalmanclip.data.pairs import CAPTION_TEMPLATES
from kalmanclip.encoders import Activations, Backbone, DualEncoder, LowRankConfig
from kalmanclip.encoders.features import frozen_activations
from kalmanclip.errors import DataError
from kalmanclip.estimator import KalmanCLIP
from kalmanclip.methods import KalmanConfig, Progress, preset, silent
from kalmanclip.metrics import RetrievalRecall, embedding_recall

RECALL_AT = (1, 5, 10)

_TEXTS = 256  # that are encoded at a time


@dataclass(frozen=True)
class RetrievalResult:
    """Recall of guessing, of the untouched model, and of the tuned one.

    Attributes:
        guessing: what a model that finds everything equally similar gets.
        zero_shot: of the backbone as it is.
        tuned: at the mean of the belief; None if nothing was learned.
    """

    guessing: RetrievalRecall
    zero_shot: RetrievalRecall
    tuned: RetrievalRecall | None = None


def pair_config(**options: Any) -> KalmanConfig:
    """Return the options for pairs, with single ones changed: captions compete within a batch, as CLIP was trained."""
    return replace(preset("head"), **{"observation": "contrastive"} | options)


def fit_pairs(
    pairs: CaptionedImages,
    model: str | Backbone = "tiny",
    config: KalmanConfig | None = None,
    *,
    device: str | torch.device | None = None,
    progress: Progress = silent,
    after_epoch: Callable[[int], None] | None = None,
    **options: Any,
) -> KalmanCLIP:
    """Learn from pairs, from scratch.

    Args:
        pairs: images with captions, at least two of them different.
        model: a backbone's name or a loaded one.
        config: the method's options; None: `pair_config()`.
        device: as in `KalmanCLIP`.
        progress: called as ``progress(stage, done, total)``.
        after_epoch: called after each pass with the number of finished passes.
        **options: single options of the method, e.g. ``epochs=3``.

    Returns:
        An estimator whose "classes" are the distinct captions. It saves, loads and goes on learning as always;
        `KalmanCLIP.predict` gives the most similar caption.
    """
    config = replace(config or pair_config(), **options)
    clf = KalmanCLIP(model, config, templates=CAPTION_TEMPLATES, device=device)
    train = learnable(pairs, clf.load_backbone(), config.seed).train
    return clf.fit(train, progress=progress, after_epoch=after_epoch)


def update_pairs(
    clf: KalmanCLIP, pairs: CaptionedImages, *, epochs: int = 1, progress: Progress = silent
) -> KalmanCLIP:
    """Go on filtering with more pairs: the posterior so far is the prior now. Their captions replace the old ones."""
    train = learnable(pairs, clf.backbone_).train
    clf.set_params(templates=CAPTION_TEMPLATES)
    return clf.partial_fit(train, class_names=train.class_names, epochs=epochs, progress=progress)


def learnable(pairs: CaptionedImages, backbone: Backbone, seed: int = 0) -> FewShotTask:
    """Return pairs as a task for one model: captions that it reads as the same tokens are one text.

    A caption longer than the model's context is cut. Two captions with the same beginning are then one to the model,
    and to learn that an image shows the one and not the other would be to learn noise.
    """
    keys: list[tuple[int, ...]] = []
    for begin in range(0, len(pairs), _TEXTS):
        keys += map(tuple, backbone.tokenizer(pairs.captions[begin : begin + _TEXTS]).tolist())
    return task_from_pairs(pairs, seed, keys)


def measure_recall(
    pairs: CaptionedImages,
    model: KalmanCLIP | Backbone,
    ks: Sequence[int] = RECALL_AT,
    progress: Progress = silent,
) -> RetrievalResult:
    """Return recall@k of pairs, in both directions, zero-shot and (if the model was tuned) tuned.

    Every distinct image and every distinct caption is one; an image with several captions finds any of them, and a
    caption any of its images. Captions that the model cuts to the same tokens stay different texts here, tied with each
    other: what a model cannot read counts against it.

    Args:
        pairs: those to measure on, not those that were learned from.
        model: an estimator, or a backbone for zero-shot alone.
        ks: numbers of candidates that may be looked at.
        progress: called as ``progress(stage, done, total)``.
    """
    if not len(pairs):
        raise DataError("There are no pairs to measure on.")
    if isinstance(model, KalmanCLIP):
        tuned = model.tuned_encoder_
        low_rank = LowRankConfig() if tuned is None else tuned.config  # the same place: they share the frozen part
        encoders = [DualEncoder(model.backbone_, low_rank)]  # its corrections are zero: the model as it is
        encoders += [] if tuned is None else [tuned]
    else:
        encoders = [DualEncoder(model, LowRankConfig())]
    index = index_pairs(pairs)
    texts = _embed(
        [encoder.encode_texts for encoder in encoders], _text_activations(encoders[0], index.texts, progress)
    )
    batches = frozen_activations(encoders[0], index.sources, progress)
    images = _embed([encoder.encode_images for encoder in encoders], batches)
    matches = np.array(index.matches)
    nothing = (torch.zeros(len(index.sources), 1), torch.zeros(len(index.texts), 1))
    embeddings = [nothing, *zip(images, texts, strict=True)]
    return RetrievalResult(*(embedding_recall(i, t, matches, ks) for i, t in embeddings))


def _text_activations(encoder: DualEncoder, texts: Sequence[str], progress: Progress) -> Iterator[Activations]:
    """Yield what the frozen part of the text tower makes of texts, in batches."""
    for begin in range(0, len(texts), _TEXTS):
        part = list(texts[begin : begin + _TEXTS])
        yield encoder.text.prefix(encoder.tokenize(part))
        progress("reading texts", begin + len(part), len(texts))


@torch.no_grad()
def _embed(encodes: Sequence[Callable[[Activations], Tensor]], batches: Iterable[Activations]) -> list[Tensor]:
    """Return unit-length embeddings (N, d) on the CPU by each encoder; their common frozen part runs once."""
    rows = [[encode(batch).float().cpu() for encode in encodes] for batch in batches]
    return [torch.cat(column) for column in zip(*rows, strict=True)]

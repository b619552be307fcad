"""Retrieval of texts for images and images for texts: recall@k in both directions.

A query is a hit at k when *any* of its matches is among the k best candidates (the field's "R@k"; torchmetrics calls it
hit rate, and wants all scores in one flat list). Candidates with equal scores are in random order, and what is reported
is the expectation over that order. A model that gives every pair the same score therefore gets what guessing gets, not
whatever the order of the files gives away. What an inner product rounds away is no difference either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from kalmanclip.errors import ConfigError, DataError, NumericalError

CHUNK = 1 << 22
"""So many similarities are held at a time."""


@dataclass(frozen=True)
class RetrievalRecall:
    """Recall@k, a share of one, by k.

    Attributes:
        image_to_text: of the images that have a text.
        text_to_image: of the texts that have an image.
        images: how many images were searched among.
        texts: how many texts were.
    """

    image_to_text: dict[int, float]
    text_to_image: dict[int, float]
    images: int
    texts: int


def recall_at_k(similarities: ArrayLike, matches: ArrayLike, ks: Sequence[int] = (1, 5, 10)) -> RetrievalRecall:
    """Return recall@k from a matrix of similarities.

    Args:
        similarities: (N, M), of N images with M texts.
        matches: (P, 2), pairs of an image (0..N-1) and a text (0..M-1) that belong together. Both may occur several
            times: a text with five images finds any of them. An image or a text in no pair is only searched among.
        ks: numbers of candidates that may be looked at.

    Raises:
        NumericalError: a similarity is not finite (comparing with NaN would count as a hit).
    """
    S = np.asarray(similarities)
    if S.ndim != 2:
        raise DataError(f"similarities must be a matrix (images, texts), not an array of shape {S.shape}")
    return _both(lambda a, b: S[a:b], lambda a, b: S.T[a:b], S.shape, matches, ks, CHUNK, 0.0)


def embedding_recall(
    images: ArrayLike, texts: ArrayLike, matches: ArrayLike, ks: Sequence[int] = (1, 5, 10), chunk: int = CHUNK
) -> RetrievalRecall:
    """Return recall@k from embeddings; only a few rows of the similarities (inner products) exist at a time.

    Args:
        images: (N, d).
        texts: (M, d).
        matches: (P, 2), as in `recall_at_k`.
        ks: numbers of candidates that may be looked at.
        chunk: how many similarities may be held at a time (at least one row is).
    """
    image, text = np.asarray(images, dtype=np.float64), np.asarray(texts, dtype=np.float64)
    if image.ndim != 2 or text.ndim != 2 or image.shape[1] != text.shape[1]:
        raise DataError(f"embeddings must be (N, d) and (M, d), not {image.shape} and {text.shape}")
    shape = (len(image), len(text))
    by_image, by_text = (lambda a, b: image[a:b] @ text.T), (lambda a, b: text[a:b] @ image.T)
    return _both(by_image, by_text, shape, matches, ks, chunk, _rounding(image, text))


Rows = Callable[[int, int], np.ndarray]
"""Similarities of the queries a..b-1 with all candidates."""


def _rounding(x: np.ndarray, y: np.ndarray) -> float:
    """Return how far two computed inner products of rows can lie apart though they are equal: twice their error bound.

    A matrix product may add up one column in another order than the next; without this, equal candidates would be
    ranked by where they stand.
    """
    longest = [float(np.linalg.norm(rows, axis=1).max(initial=0.0)) for rows in (x, y)]
    return 2 * x.shape[1] * float(np.finfo(np.float64).eps) * longest[0] * longest[1]


def _both(
    by_image: Rows,
    by_text: Rows,
    shape: tuple[int, ...],
    matches: ArrayLike,
    ks: Sequence[int],
    chunk: int,
    tolerance: float,
) -> RetrievalRecall:
    pairs = _checked(matches, shape)
    if not ks or any(k < 1 for k in ks):
        raise ConfigError(f"recall@k needs whole numbers k of at least 1, not {list(ks)}")
    return RetrievalRecall(
        _direction(by_image, shape[0], shape[1], pairs, ks, chunk, tolerance),
        _direction(by_text, shape[1], shape[0], pairs[:, ::-1], ks, chunk, tolerance),
        *shape,
    )


def _checked(matches: ArrayLike, shape: tuple[int, ...]) -> np.ndarray:
    pairs = np.asarray(matches)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not len(pairs) or not np.issubdtype(pairs.dtype, np.integer):
        raise DataError(f"matches must be at least one pair (image, text) of whole numbers, not {pairs.shape}")
    if (pairs < 0).any() or (pairs >= np.array(shape)).any():
        raise DataError(f"a match points outside the {shape[0]} images and {shape[1]} texts")
    return pairs


def _direction(
    rows: Rows, queries: int, candidates: int, pairs: np.ndarray, ks: Sequence[int], chunk: int, tolerance: float
) -> dict[int, float]:
    """Return the recall of the queries, the first column of ``pairs`` (P, 2); scores within ``tolerance`` are equal."""
    hits = dict.fromkeys(ks, 0.0)
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    step = max(1, chunk // max(candidates, 1))
    for begin in range(0, queries, step):
        end = min(begin + step, queries)
        first, last = np.searchsorted(pairs[:, 0], (begin, end))
        if first == last:
            continue
        own = np.zeros((end - begin, candidates), dtype=bool)
        own[pairs[first:last, 0] - begin, pairs[first:last, 1]] = True
        asked = own.any(axis=1)
        score, own = rows(begin, end)[asked], own[asked]
        if not np.isfinite(score).all():
            raise NumericalError("Some similarities are not finite, so nothing can be ranked. Check the embeddings.")
        best = np.where(own, score, -np.inf).max(axis=1, keepdims=True)
        ahead = (score > best + tolerance).sum(axis=1)  # a match is never ahead of the best match
        level = np.abs(score - best) <= tolerance
        for k in ks:
            hits[k] += _chance(k - ahead, (level & own).sum(axis=1), (level & ~own).sum(axis=1)).sum()
    asked_in_all = len(np.unique(pairs[:, 0]))
    return {k: float(total / asked_in_all) for k, total in hits.items()}


def _chance(places: np.ndarray, own: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return how likely one of ``own`` is among the first ``places`` of ``own + others`` in random order; all (B,).

    One minus the chance that all places go to others, C(others, places) / C(own + others, places).
    """
    free = np.clip(places, 0, others)
    most = int((own + others).max(initial=0))
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, most + 1)))])
    miss = log_factorial[others] - log_factorial[others - free]
    miss = np.exp(miss - log_factorial[own + others] + log_factorial[own + others - free])
    return np.where(places > others, 1.0, np.where(places <= 0, 0.0, 1 - miss))

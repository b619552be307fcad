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
    return _both(lambda rows: S[rows], lambda rows: S.T[rows], S.shape, matches, ks, CHUNK, 0.0)


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
    # A matrix product may add up one column in another order than the next; so that equal candidates are not ranked by
    # where they stand, inner products are equal within twice the bound of their error.
    longest = [float(np.linalg.norm(rows, axis=1).max(initial=0.0)) for rows in (image, text)]
    tolerance = 2 * image.shape[1] * float(np.finfo(np.float64).eps) * longest[0] * longest[1]
    by_image, by_text = (lambda rows: image[rows] @ text.T), (lambda rows: text[rows] @ image.T)
    return _both(by_image, by_text, (len(image), len(text)), matches, ks, chunk, tolerance)


Rows = Callable[[slice], np.ndarray]
"""Similarities of some queries with all candidates."""


def _both(
    by_image: Rows,
    by_text: Rows,
    shape: tuple[int, ...],
    matches: ArrayLike,
    ks: Sequence[int],
    chunk: int,
    tolerance: float,
) -> RetrievalRecall:
    """Check the arguments and return the recall of both directions."""
    pairs = np.asarray(matches)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not len(pairs) or not np.issubdtype(pairs.dtype, np.integer):
        raise DataError(f"matches must be at least one pair (image, text) of whole numbers, not {pairs.shape}")
    if (pairs < 0).any() or (pairs >= np.array(shape)).any():
        raise DataError(f"a match points outside the {shape[0]} images and {shape[1]} texts")
    if not ks or any(k < 1 for k in ks):
        raise ConfigError(f"recall@k needs whole numbers k of at least 1, not {list(ks)}")
    image_to_text = _direction(by_image, shape[1], pairs, ks, chunk, tolerance)
    text_to_image = _direction(by_text, shape[0], pairs[:, ::-1], ks, chunk, tolerance)
    return RetrievalRecall(image_to_text, text_to_image, *shape)


def _direction(
    rows: Rows, candidates: int, pairs: np.ndarray, ks: Sequence[int], chunk: int, tolerance: float
) -> dict[int, float]:
    """Return the recall of the queries, the first column of ``pairs`` (P, 2); scores within ``tolerance`` are equal."""
    from scipy.stats import hypergeom  # type: ignore[import-untyped]  # half a second, for nothing else

    hits = dict.fromkeys(ks, 0.0)
    step = max(1, chunk // candidates)
    for begin in range(0, int(pairs[:, 0].max()) + 1, step):
        inside = pairs[(pairs[:, 0] >= begin) & (pairs[:, 0] < begin + step)]
        if not len(inside):
            continue
        score = rows(slice(begin, begin + step))
        own = np.zeros(score.shape, dtype=bool)
        own[inside[:, 0] - begin, inside[:, 1]] = True
        score, own = score[own.any(axis=1)], own[own.any(axis=1)]
        if not np.isfinite(score).all():
            raise NumericalError("Some similarities are not finite, so nothing can be ranked. Check the embeddings.")
        best = np.where(own, score, -np.inf).max(axis=1, keepdims=True)
        ahead = (score > best + tolerance).sum(axis=1)  # a match is never ahead of the best match
        level = np.abs(score - best) <= tolerance
        tied, matching = level.sum(axis=1), (level & own).sum(axis=1)
        for k in ks:
            # A miss: none of the matches is drawn for the places that are left to the candidates of this score.
            places = np.clip(k - ahead, 0, tied)
            hits[k] += float((1.0 - hypergeom.pmf(0, tied, matching, places)).sum())
    asked = len(np.unique(pairs[:, 0]))
    return {k: float(total / asked) for k, total in hits.items()}

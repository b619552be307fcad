"""Recall@k against a plain loop, with ties, several matches, and chunks."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalmanclip.errors import ConfigError, DataError, NumericalError
from kalmanclip.metrics import embedding_recall, recall_at_k


def enumerated(S, matches, k):
    """Recall over all orders of the candidates of each query, by enumeration: no formula at all."""
    shares = []
    for query in sorted({q for q, _ in matches}):
        own = {c for q, c in matches if q == query}
        orders = list(itertools.permutations(range(S.shape[1])))
        hits = 0
        for order in orders:
            ranked = sorted(order, key=lambda c: -S[query, c])  # stable: equal scores keep the order
            hits += bool(own & set(ranked[:k]))
        shares.append(hits / len(orders))
    return sum(shares) / len(shares)


@pytest.mark.parametrize("seed", range(6))
def test_against_enumeration_of_all_orders(seed):
    rng = np.random.default_rng(seed)
    S = rng.integers(0, 3, (5, 6)).astype(float)  # many ties
    matches = [(i, int(rng.integers(6))) for i in range(5)] + [(int(rng.integers(5)), int(rng.integers(6)))]
    found = recall_at_k(S, matches, (1, 2, 4, 6, 9))
    for k in (1, 2, 4, 6, 9):
        assert found.image_to_text[k] == pytest.approx(enumerated(S, matches, k))
        assert found.text_to_image[k] == pytest.approx(enumerated(S.T, [(t, i) for i, t in matches], k))


def loop(S, matches, k):
    """Without ties: is any match among the k best?"""
    queries = sorted({q for q, _ in matches})
    hits = [any((q, c) in matches for c in np.argsort(-S[q])[:k]) for q in queries]
    return sum(hits) / len(hits)


@pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 20])
def test_chunks_change_nothing(chunk):
    rng = np.random.default_rng(0)
    images, texts = rng.normal(size=(37, 8)), rng.normal(size=(23, 8))
    matches = [(i, int(rng.integers(20))) for i in range(30)] + [(0, 1), (5, 7)]  # some images and texts match nothing
    S, known = images @ texts.T, set(matches)
    found = embedding_recall(images, texts, matches, (1, 5, 10), chunk)
    assert (found.images, found.texts) == (37, 23)
    for k in (1, 5, 10):
        assert found.image_to_text[k] == pytest.approx(loop(S, known, k))
        assert found.text_to_image[k] == pytest.approx(loop(S.T, {(t, i) for i, t in known}, k))
    assert found == recall_at_k(S, matches, (1, 5, 10))


def test_a_model_that_says_nothing_gets_what_guessing_gets():
    matches = [(i, i) for i in range(50)]
    found = recall_at_k(np.ones((50, 50)), matches, (1, 5, 50))
    assert found.image_to_text == pytest.approx({1: 0.02, 5: 0.1, 50: 1.0})
    for d in (3, 16, 77):  # a matrix product need not round equal columns equally
        collapsed = np.tile(np.random.default_rng(0).normal(size=(1, d)).astype(np.float32), (50, 1))
        found = embedding_recall(collapsed, collapsed, matches, [1], chunk=170)
        assert (found.image_to_text[1], found.text_to_image[1]) == pytest.approx((0.02, 0.02))


def test_ties_are_as_wide_as_rounding_and_no_wider():
    x = np.array([[1.0, 0.0]])
    near = np.array([[1.0, 0.0], [1.0 + 1e-16, 0.0], [1.0 + 1e-12, 0.0]])
    assert embedding_recall(x, near[:2], [(0, 0)], [1]).image_to_text == pytest.approx({1: 0.5})
    assert embedding_recall(x, near[[0, 2]], [(0, 0)], [1]).image_to_text == {1: 0.0}
    assert embedding_recall(x, near[[0, 2]], [(0, 1)], [1]).image_to_text == {1: 1.0}


@st.composite
def problems(draw):
    """Few levels of similarity, so that most scores are tied, and matches with duplicates."""
    n, m = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    scores = draw(st.lists(st.lists(st.integers(-1, 1), min_size=m, max_size=m), min_size=n, max_size=n))
    pair = st.tuples(st.integers(0, n - 1), st.integers(0, m - 1))
    return np.array(scores, dtype=float), draw(st.lists(pair, min_size=1, max_size=12))


@given(problems(), st.randoms(use_true_random=False))
def test_the_order_of_images_texts_and_matches_does_not_matter(problem, random):
    S, matches = problem
    rows, columns = (random.sample(range(n), n) for n in S.shape)
    moved = [(rows.index(i), columns.index(t)) for i, t in matches]
    random.shuffle(moved)
    one, other = recall_at_k(S, matches, (1, 2, 5)), recall_at_k(S[rows][:, columns], moved, (1, 2, 5))
    assert one.image_to_text == pytest.approx(other.image_to_text)
    assert one.text_to_image == pytest.approx(other.text_to_image)


@given(problems())
def test_what_always_holds(problem):
    S, matches = problem
    ks = range(1, max(S.shape) + 1)
    found = recall_at_k(S, matches, ks)
    for recall, candidates in ((found.image_to_text, S.shape[1]), (found.text_to_image, S.shape[0])):
        shares = [recall[k] for k in ks]
        assert all(0 <= a <= b + 1e-12 for a, b in itertools.pairwise(shares))  # looking further never finds less
        assert recall[candidates] == pytest.approx(1)  # looking at everything finds everything
    swapped = recall_at_k(S.T, [(t, i) for i, t in matches], ks)
    assert (swapped.image_to_text, swapped.text_to_image) == (found.text_to_image, found.image_to_text)
    assert recall_at_k(S, matches + matches, ks) == found  # saying a match twice says nothing new


@given(problems())
def test_never_more_than_a_lucky_order_and_never_less_than_an_unlucky_one(problem):
    S, matches = problem
    own = np.zeros(S.shape, dtype=bool)
    own[tuple(np.array(matches).T)] = True
    unlucky, mean, lucky = (recall_at_k(S + luck * own, matches, [1, 3]) for luck in (-0.1, 0.0, 0.1))
    for k in (1, 3):
        assert unlucky.image_to_text[k] - 1e-12 <= mean.image_to_text[k] <= lucky.image_to_text[k] + 1e-12


def test_a_text_finds_any_of_its_images():
    S = np.array([[0.9, 0.1], [0.2, 0.3], [0.8, 0.7]])  # images 0 and 1 share text 0
    found = recall_at_k(S, [(0, 0), (1, 0), (2, 1)], [1])
    assert found.text_to_image == {1: 1.0}
    assert found.image_to_text == pytest.approx({1: 1 / 3})


def test_a_tie_between_one_match_and_one_other_counts_half():
    found = recall_at_k(np.array([[0.5, 0.5], [0.0, 1.0]]), [(0, 0), (1, 1)], [1, 2])
    assert found.image_to_text == {1: pytest.approx(0.75), 2: 1.0}


def test_many_ties_do_not_overflow():
    found = recall_at_k(np.zeros((1, 100_000)), [(0, i) for i in range(10)], [1000])
    expected = 1 - math.prod((99_990 - i) / (100_000 - i) for i in range(1000))
    assert found.image_to_text[1000] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_not_finite(value):
    with pytest.raises(NumericalError, match="not finite"):
        recall_at_k(np.array([[1.0, value], [0.0, 1.0]]), [(0, 0), (1, 1)])


@pytest.mark.parametrize(
    ("S", "matches", "ks", "error", "problem"),
    [
        (np.zeros(3), [(0, 0)], [1], DataError, "must be a matrix"),
        (np.zeros((2, 2)), [], [1], DataError, "at least one pair"),
        (np.zeros((2, 2)), [(0.5, 1)], [1], DataError, "whole numbers"),
        (np.zeros((2, 2)), [(0, 2)], [1], DataError, "outside the 2 images and 2 texts"),
        (np.zeros((2, 2)), [(-1, 0)], [1], DataError, "outside"),
        (np.zeros((2, 2)), [(0, 0)], [0], ConfigError, "at least 1"),
        (np.zeros((2, 2)), [(0, 0)], [], ConfigError, "at least 1"),
    ],
)
def test_refused(S, matches, ks, error, problem):
    with pytest.raises(error, match=problem):
        recall_at_k(S, matches, ks)


def test_embeddings_of_different_width():
    with pytest.raises(DataError, match=r"\(2, 3\) and \(2, 4\)"):
        embedding_recall(np.zeros((2, 3)), np.zeros((2, 4)), [(0, 0)])

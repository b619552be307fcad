"""Prediction sets: the promised coverage, and what must not change it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalmanclip.errors import ConfigError
from kalmanclip.prediction.conformal import KINDS, Calibration, images_needed, nonconformity, quantile


def predictions(n, classes=6, seed=0, sharpness=2.0):
    """A classifier that is too sure of itself: labels come from flatter probabilities than it says."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, classes))
    truth = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (truth.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    said = np.exp(sharpness * logits)
    return said / said.sum(axis=1, keepdims=True), labels


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "coverage"), [(19, 0.9), (60, 0.8), (200, 0.95)])
def test_coverage_holds(kind, n, coverage):
    """Over many draws of calibration and test images the mean coverage is at least what was promised."""
    rates = []
    for seed in range(120):
        p, y = predictions(n + 100, seed=seed)
        sets = Calibration.of(p[:n], y[:n], kind).sets(p[n:], coverage)
        rates.append(sets[np.arange(100), y[n:]].mean())
    error = np.std(rates) / math.sqrt(len(rates))
    assert np.mean(rates) > coverage - 3 * error
    if kind == "lac":  # continuous scores: hardly more than promised either
        assert np.mean(rates) < coverage + 1 / (n + 1) + 3 * error


def test_randomised_sets_cover_exactly():
    rates = []
    n, coverage = 99, 0.9
    for seed in range(150):
        p, y = predictions(n + 100, seed=seed, sharpness=4.0)
        u = np.random.default_rng(1000 + seed).random(n + 100)
        every = nonconformity(p, "aps", u)
        limit = quantile(every[np.arange(n), y[:n]], coverage)
        rates.append((every[np.arange(n, n + 100), y[n:]] <= limit).mean())
    error = np.std(rates) / math.sqrt(len(rates))
    assert abs(np.mean(rates) - coverage) < 3 * error + 1e-3


def test_coverage_of_every_class():
    rates = []
    for seed in range(80):
        p, y = predictions(1000, classes=3, seed=seed)
        sets = Calibration.of(p[:400], y[:400]).sets(p[400:], 0.9, by_class=True)
        hit = sets[np.arange(600), y[400:]]
        rates.append([hit[y[400:] == c].mean() for c in range(3)])
    for column in np.array(rates).T:
        assert column.mean() > 0.9 - 3 * column.std() / math.sqrt(len(column))


def test_nonconformity_by_hand():
    p = [[0.5, 0.2, 0.3]]
    np.testing.assert_allclose(nonconformity(p, "lac"), [[0.5, 0.8, 0.7]])
    np.testing.assert_allclose(nonconformity(p, "aps"), [[0.5, 1.0, 0.8]])
    np.testing.assert_allclose(nonconformity(p, "aps", [0.5]), [[0.25, 0.9, 0.65]])
    many = np.full((1, 8), 1 / 8)
    np.testing.assert_allclose(
        nonconformity(many, "raps") - nonconformity(many, "aps"), [[0, 0, 0, 0, 0, 0.01, 0.02, 0.03]]
    )


def test_sets_by_hand():
    """One image of a class that fits and one of a class that does not; one limit for both, or one for each."""
    calibration = Calibration(np.array([0.1, 0.9]), np.array([0, 1]))
    p = [[0.3, 0.7], [0.95, 0.05]]  # nonconformity 0.7, 0.3 and 0.05, 0.95
    assert calibration.sets(p, 0.5).tolist() == [[True, True], [True, False]]  # the second of two: up to 0.9
    assert calibration.sets(p, 0.5, by_class=True).tolist() == [[False, True], [True, False]]  # up to 0.1, up to 0.9
    sure = Calibration(np.array([0.01, 0.02]), np.array([0, 1]))
    assert sure.sets(p, 0.5).tolist() == [
        [False, True],
        [True, False],
    ]  # the most probable one in any case


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(KINDS), st.floats(0.05, 0.9), st.floats(0.05, 0.9))
def test_sets_grow_with_coverage(seed, kind, first, second):
    p, y = predictions(80, seed=seed)
    calibration = Calibration.of(p[:50], y[:50], kind)
    small, large = (calibration.sets(p[50:], c) for c in sorted((first, second)))
    assert (small <= large).all()
    assert small.any(axis=1).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(KINDS), st.floats(0.1, 0.9))
def test_the_order_of_classes_and_images_does_not_matter(seed, kind, coverage):
    p, y = predictions(80, seed=seed)
    rng = np.random.default_rng(seed)
    classes, images = rng.permutation(6), rng.permutation(50)
    plain = Calibration.of(p[:50], y[:50], kind).sets(p[50:], coverage)
    turned = Calibration.of(p[images][:, classes], np.argsort(classes)[y[images]], kind)
    # sums in another order round differently: compare with a little room at the limit
    limit = quantile(turned.scores, coverage)
    near = np.abs(nonconformity(p[50:], kind) - limit) < 1e-9
    assert ((turned.sets(p[50:][:, classes], coverage) == plain[:, classes]) | near[:, classes]).all()


@pytest.mark.parametrize(("coverage", "needed"), [(0.5, 1), (0.8, 4), (0.9, 9), (0.95, 19), (0.99, 99)])
def test_too_few_images_are_refused(coverage, needed):
    assert images_needed(coverage) == needed
    scores = np.arange(needed, dtype=float)
    assert quantile(scores, coverage) == needed - 1
    with pytest.raises(ConfigError, match=f"at least {needed} calibration images; there are {needed - 1}"):
        quantile(scores[:-1], coverage)


@pytest.mark.parametrize("coverage", [0, 1, 1.5, math.nan])
def test_a_coverage_that_is_none_is_refused(coverage):
    with pytest.raises(ConfigError, match="between 0 and 1"):
        quantile([0.1], coverage)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match="lac, aps, raps"):
        nonconformity([[1.0]], "best")

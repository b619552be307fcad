"""Calibration: by hand, by plain loops, against scikit-learn, and what must hold for any probabilities."""

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st

from kalmanclip.metrics import (
    BINS,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
    reliability_table,
)


@st.composite
def predictions(draw):
    """Probabilities (N, C) and labels (N,)."""
    n, c = draw(st.integers(1, 40)), draw(st.integers(2, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return rng.dirichlet(np.full(c, draw(st.sampled_from([0.1, 1.0, 10.0]))), size=n), rng.integers(0, c, n)


def test_by_hand():
    p = np.array([[0.9, 0.1], [0.8, 0.2], [0.55, 0.45], [0.3, 0.7]])
    y = np.array([0, 1, 0, 1])
    # with ten bins: 0.9 in (0.8, 0.9], 0.8 and 0.7 alone, 0.55 alone
    assert expected_calibration_error(p, y, bins=10) == pytest.approx((0.1 + 0.8 + 0.45 + 0.3) / 4)
    assert negative_log_likelihood(p, y) == pytest.approx(-np.log([0.9, 0.2, 0.55, 0.7]).mean())
    assert brier_score(p, y) == pytest.approx(2 * (0.01 + 0.64 + 0.2025 + 0.09) / 4)


@given(predictions())
def test_ece_by_plain_loops(drawn):
    p, y = drawn
    total = 0.0
    for b in range(BINS):
        lower, upper = np.linspace(0, 1, BINS + 1)[b : b + 2]
        inside = [i for i in range(len(y)) if lower < p[i].max() <= upper]
        if inside:
            hits = sum(p[i].argmax() == y[i] for i in inside)
            total += abs(hits - sum(p[i].max() for i in inside)) / len(y)
    assert expected_calibration_error(p, y) == pytest.approx(total)


@given(predictions())
def test_bounds_and_order(drawn):
    p, y = drawn
    assert 0 <= expected_calibration_error(p, y) <= 1
    assert 0 <= brier_score(p, y) <= 2
    assert negative_log_likelihood(p, y) >= 0
    for measure in (expected_calibration_error, brier_score, negative_log_likelihood):
        assert measure(p[::-1], y[::-1]) == pytest.approx(measure(p, y))


@given(predictions())
def test_one_bin_compares_the_means(drawn):
    p, y = drawn
    gap = abs((p.argmax(axis=1) == y).mean() - p.max(axis=1).mean())
    assert expected_calibration_error(p, y, bins=1) == pytest.approx(gap)


@given(predictions())
def test_the_table_loses_nobody(drawn):
    p, y = drawn
    rows = reliability_table(p, y)
    assert len(rows) == 15
    assert sum(r.images for r in rows) == len(y)
    assert all(r.images == 0 or r.lower < r.confidence <= r.upper + 1e-12 for r in rows)
    assert all((r.accuracy is None) == (r.images == 0) for r in rows)


def test_two_classes_against_scikit_learn():
    rng = np.random.default_rng(0)
    p = rng.random(50)
    y = rng.integers(0, 2, 50)
    both = np.stack([1 - p, p], axis=1)
    assert brier_score(both, y) == pytest.approx(2 * sklearn.metrics.brier_score_loss(y, p))
    assert negative_log_likelihood(both, y) == pytest.approx(sklearn.metrics.log_loss(y, p))


def test_certainty():
    sure = np.eye(3)
    assert expected_calibration_error(sure, [0, 1, 2]) == brier_score(sure, [0, 1, 2]) == 0
    assert expected_calibration_error(sure, [1, 2, 0]) == 1
    assert brier_score(sure, [1, 2, 0]) == 2
    assert np.isfinite(negative_log_likelihood(sure, [1, 2, 0]))


def test_rounding_past_one_stays_in_the_last_bin():
    assert reliability_table([[1.0 + 1e-7, 0.0]], [0])[-1].images == 1

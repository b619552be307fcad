"""Failure prediction and risk-coverage: plain loops and what must hold for any scores."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalmanclip.metrics import area_under_risk_coverage, failure_auroc, risk_coverage, top_k_accuracy

ANSWERS = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=25)


def columns(answers):
    confidence, correct = zip(*answers, strict=True)
    return np.array(confidence, dtype=float), np.array(correct)


@given(ANSWERS)
def test_failure_auroc_counts_pairs(answers):
    confidence, correct = columns(answers)
    pairs = [(a > b) + 0.5 * (a == b) for a in confidence[correct] for b in confidence[~correct]]
    expected = np.mean(pairs) if pairs else np.nan
    assert failure_auroc(confidence, correct) == pytest.approx(expected, nan_ok=True)


def test_risk_by_plain_loops():
    rng = np.random.default_rng(0)
    confidence, correct = rng.random(30), rng.random(30) < 0.7
    curve = risk_coverage(confidence, correct)
    order = np.argsort(-confidence)
    for k in range(1, 31):
        assert curve.coverage[k - 1] == pytest.approx(k / 30)
        assert curve.risk[k - 1] == pytest.approx(1 - correct[order[:k]].mean())
    assert area_under_risk_coverage(confidence, correct) == pytest.approx(curve.risk.mean())


@given(ANSWERS, st.randoms(use_true_random=False))
def test_order_does_not_matter_even_with_ties(answers, random):
    area = area_under_risk_coverage(*columns(answers))
    shuffled = list(answers)
    random.shuffle(shuffled)
    assert area_under_risk_coverage(*columns(shuffled)) == pytest.approx(area)


@given(ANSWERS)
def test_the_curve_ends_at_the_error_rate(answers):
    confidence, correct = columns(answers)
    curve = risk_coverage(confidence, correct)
    assert curve.coverage[-1] == 1
    assert curve.risk[-1] == pytest.approx(1 - correct.mean())
    assert ((curve.risk >= 0) & (curve.risk <= 1 + 1e-12)).all()


@given(ANSWERS)
def test_the_oracle_is_best_and_its_opposite_worst(answers):
    confidence, correct = columns(answers)
    best, worst = area_under_risk_coverage(correct, correct), area_under_risk_coverage(~correct, correct)
    assert best - 1e-12 <= area_under_risk_coverage(confidence, correct) <= worst + 1e-12


def test_a_constant_confidence_gives_the_error_rate():
    assert area_under_risk_coverage(np.zeros(4), [1, 0, 1, 1]) == pytest.approx(0.25)


def test_top_k():
    scores = np.array([[0.1, 0.5, 0.4], [0.3, 0.3, 0.4], [0.9, 0.1, 0.0]])
    labels = [2, 1, 2]
    assert top_k_accuracy(labels, scores, k=1) == 0
    assert top_k_accuracy(labels, scores, k=2) == pytest.approx(1 / 3)  # of the tie in row 1, class 0 is taken
    assert top_k_accuracy(labels, scores, k=3) == top_k_accuracy(labels, scores, k=5) == 1

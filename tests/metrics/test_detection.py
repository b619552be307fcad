"""Out-of-distribution detection: scores, AUROC and FPR95 against plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalmanclip.metrics import detection_auroc, fpr_at_tpr, maximum_softmax

SCORES = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=25)  # integers: many ties


@given(SCORES, SCORES)
def test_auroc_counts_pairs(inside, outside):
    pairs = [(a > b) + 0.5 * (a == b) for a in inside for b in outside]
    assert detection_auroc(inside, outside) == pytest.approx(np.mean(pairs))


@given(SCORES, SCORES, st.sampled_from([0.5, 0.8, 0.95, 1.0]))
def test_fpr_by_plain_loops(inside, outside, tpr):
    for threshold in sorted(set(inside + outside), reverse=True):
        if np.mean([a >= threshold for a in inside]) >= tpr:
            break
    assert fpr_at_tpr(inside, outside, tpr) == pytest.approx(np.mean([b >= threshold for b in outside]))


@given(SCORES, SCORES)
def test_a_growing_function_of_the_score_changes_nothing(inside, outside):
    grown = [np.exp(np.array(s) / 5) for s in (inside, outside)]
    assert detection_auroc(*grown) == pytest.approx(detection_auroc(inside, outside))
    assert fpr_at_tpr(*grown) == pytest.approx(fpr_at_tpr(inside, outside))


def test_apart_and_exchanged():
    assert detection_auroc([3, 4], [1, 2]) == 1
    assert fpr_at_tpr([3, 4], [1, 2]) == 0
    assert detection_auroc([1, 2], [3, 4]) == 0
    assert fpr_at_tpr([1, 2], [3, 4]) == 1


def test_twenty_images_may_lose_one():
    inside = np.arange(20.0)  # 95 % of them score at least 1
    assert fpr_at_tpr(inside, [0.5, 1.5]) == 0.5


def test_maximum_softmax():
    logits = np.array([[1.0, 2.0, 4.0], [500.0, -500.0, 0.0]])
    by_hand = np.exp(4) / (np.exp(1) + np.exp(2) + np.exp(4))
    assert maximum_softmax(logits) == pytest.approx([by_hand, 1.0])
    assert maximum_softmax(logits, temperature=2.0) == pytest.approx(maximum_softmax(logits / 2))
    assert maximum_softmax(np.zeros((1, 4))) == pytest.approx([0.25])

import numpy as np
import pytest
import sklearn.metrics

from kalmanclip.metrics import ClassResult, accuracy, confusion_matrix, per_class, standardized_margin


def test_accuracy_is_the_share_of_equal_entries():
    assert accuracy([0, 1, 2, 2], [0, 1, 2, 0]) == 0.75


def test_rows_of_the_confusion_matrix_are_the_truth_and_all_classes_have_one():
    matrix = confusion_matrix([0, 0, 2], [0, 2, 2], classes=4)
    assert matrix.shape == (4, 4)
    assert matrix[0].tolist() == [1, 0, 1, 0]
    assert matrix.sum() == 3


def test_each_class_has_its_shares_and_its_most_frequent_mistake():
    matrix = np.array([[3, 1, 2], [0, 4, 0], [0, 0, 0]])
    assert per_class(matrix) == [
        ClassResult(images=6, recall=0.5, precision=1.0, f1=2 / 3, confused_with=2, times=2),
        ClassResult(images=4, recall=1.0, precision=0.8, f1=8 / 9, confused_with=None, times=0),
        ClassResult(images=0, recall=None, precision=0.0, f1=0.0, confused_with=None, times=0),
    ]


def test_shares_of_a_class_are_scikit_learns():
    rng = np.random.default_rng(0)
    labels, predicted = rng.integers(0, 5, 60), rng.integers(0, 4, 60)  # nothing is taken for the last class
    results = per_class(confusion_matrix(labels, predicted, classes=6))  # and of one more there is nothing at all
    precision, recall, f1, images = sklearn.metrics.precision_recall_fscore_support(
        labels, predicted, labels=range(6), zero_division=np.nan
    )
    for name, expected in (("precision", precision), ("recall", recall), ("f1", f1), ("images", images)):
        found = [getattr(result, name) for result in results]
        np.testing.assert_allclose([np.nan if value is None else value for value in found], expected)


def test_per_class_leaves_the_matrix_alone():
    matrix = np.array([[3, 1], [0, 4]])
    per_class(matrix)
    assert matrix.tolist() == [[3, 1], [0, 4]]


def test_lead_is_the_distance_of_the_two_largest_logits_in_standard_deviations():
    mean = np.array([[1.0, 8.0, 3.0], [2.0, 2.0, -5.0]])
    std = np.array([[9.0, 3.0, 4.0], [1.0, 1.0, 1.0]])
    assert standardized_margin(mean, std) == pytest.approx([1.0, 0.0])  # (8 - 3) / sqrt(3^2 + 4^2)


def test_lead_of_nothing_is_empty():
    assert standardized_margin(np.empty((0, 3)), np.empty((0, 3))).shape == (0,)

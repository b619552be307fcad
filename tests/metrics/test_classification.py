import numpy as np
import pytest

from kalmanclip.metrics import ClassResult, accuracy, confusion_matrix, per_class, standardized_margin


def test_accuracy_is_the_share_of_equal_entries():
    assert accuracy([0, 1, 2, 2], [0, 1, 2, 0]) == 0.75


def test_rows_of_the_confusion_matrix_are_the_truth_and_all_classes_have_one():
    matrix = confusion_matrix([0, 0, 2], [0, 2, 2], classes=4)
    assert matrix.shape == (4, 4)
    assert matrix[0].tolist() == [1, 0, 1, 0]
    assert matrix.sum() == 3


def test_each_class_has_its_accuracy_and_its_most_frequent_mistake():
    matrix = np.array([[3, 1, 2], [0, 4, 0], [0, 0, 0]])
    assert per_class(matrix) == [
        ClassResult(images=6, accuracy=0.5, confused_with=2, times=2),
        ClassResult(images=4, accuracy=1.0, confused_with=None, times=0),
        ClassResult(images=0, accuracy=None, confused_with=None, times=0),
    ]


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

"""The relative Mahalanobis distance against its definition, image by image."""

import pytest
import torch

from kalmanclip.prediction.mahalanobis import SPHERE, RelativeMahalanobis

COUNTS = [[3, 3, 3], [5, 1, 2], [4, 0, 2], [2, 2], [9, 1, 1]]


def images(counts, d=7, seed=0):
    """Features around class centres in a random order, float64."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=g)]
    centres = torch.randn(len(counts), d, generator=g, dtype=torch.float64)
    return centres[labels] + 0.7 * torch.randn(len(labels), d, generator=g, dtype=torch.float64), labels


def naive(f, features, labels):
    """The definition, with the covariance written out and inverted."""
    present = sorted(set(labels.tolist()))
    means = {c: features[labels == c].mean(dim=0) for c in present}
    d = features.shape[1]
    S = torch.zeros(d, d, dtype=torch.float64)
    for x, c in zip(features, labels.tolist(), strict=True):
        S += torch.outer(x - means[c], x - means[c]) / (len(features) - len(present))
    S = (1 - SPHERE) * S + SPHERE * S.trace() / d * torch.eye(d, dtype=torch.float64)
    P = torch.linalg.inv(S)
    g = torch.stack(list(means.values())).mean(dim=0)
    return torch.stack([min((x - m) @ P @ (x - m) for m in means.values()) - (x - g) @ P @ (x - g) for x in f])


@pytest.mark.parametrize("counts", COUNTS)
def test_the_distance_is_its_definition(counts):
    features, labels = images(counts)
    f = torch.randn(9, 7, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    found = RelativeMahalanobis.of(features, labels, len(counts)).distance(f)
    torch.testing.assert_close(found, naive(f, features, labels))


@pytest.mark.parametrize("counts", COUNTS)
def test_held_out_distances_are_those_of_a_model_without_the_image(counts):
    features, labels = images(counts)
    found = RelativeMahalanobis.of(features, labels, len(counts)).held_out
    for i in range(len(features)):
        others = torch.arange(len(features)) != i
        torch.testing.assert_close(found[i : i + 1], naive(features[i : i + 1], features[others], labels[others]))


def test_one_class_or_one_image_of_each_is_too_little():
    assert RelativeMahalanobis.of(*images([1, 1, 1, 1]), 4) is None
    assert RelativeMahalanobis.of(*images([3, 1, 1]), 3) is None
    assert RelativeMahalanobis.of(*images([6]), 1) is None


def test_a_new_class_of_the_same_kind_is_farther_than_the_known_ones():
    features, labels = images([12] * 8, d=24)
    new = labels >= 6
    known = RelativeMahalanobis.of(features[~new], labels[~new], 6)
    assert known.held_out.median() < known.distance(features[new]).quantile(0.1)


def test_images_that_are_all_the_same_are_no_trouble():
    features, labels = images([3, 3])
    same = RelativeMahalanobis.of(torch.ones_like(features), labels, 2)
    assert torch.isfinite(same.held_out).all()
    assert torch.isfinite(same.distance(features)).all()

"""Acquisition functions against sums over all labels, and against the Kalman filter written out."""

import itertools
import math

import numpy as np
import pytest
import torch

from kalmanclip.prediction import acquisition
from kalmanclip.prediction.acquisition import (
    JointLogits,
    ambiguity,
    batch_mutual_information,
    choose_informative,
    entropy,
    expected_curvature,
    mutual_information,
    predictive_information,
)


def probabilities(draws, images, classes, seed=0, spread=2.0):
    generator = torch.Generator().manual_seed(seed)
    return (spread * torch.randn(draws, images, classes, generator=generator, dtype=torch.float64)).softmax(dim=2)


def log_or_zero(x):
    return math.log(x) if x > 0 else 0.0


def labels_entropy(draws, images):
    """The entropy of the labels of several images together, over all configurations."""
    total = 0.0
    for labels in itertools.product(range(draws.shape[2]), repeat=len(images)):
        p = 0.0
        for classifier in draws:
            p += math.prod(float(classifier[i, y]) for i, y in zip(images, labels, strict=True)) / len(draws)
        total -= p * log_or_zero(p)
    return total


def information(draws, images):
    """Of their labels about the classifier: their entropy less what is left of it when the classifier is known."""
    given = [labels_entropy(classifier.unsqueeze(0), images) for classifier in draws]
    return labels_entropy(draws, images) - sum(given) / len(given)


def test_entropy_and_ambiguity():
    p = torch.tensor([[0.5, 0.3, 0.2], [0.0, 0.0, 1.0]], dtype=torch.float64)
    by_hand = -(0.5 * math.log(0.5) + 0.3 * math.log(0.3) + 0.2 * math.log(0.2))
    assert entropy(p).tolist() == pytest.approx([by_hand, 0])
    assert ambiguity(p).tolist() == pytest.approx([0.8, 0])


def test_mutual_information_is_that_of_the_joint_distribution():
    draws = probabilities(5, 4, 3)
    assert mutual_information(draws).tolist() == pytest.approx([information(draws, [i]) for i in range(4)])


def test_mutual_information_of_two_classes_by_quadrature():
    """A Gaussian difference of two logits: the expectations are integrals over one number."""
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(80))
    weights = weights / weights.sum()
    p = (0.4 + 1.5 * nodes).sigmoid()
    binary = lambda q: -(q * q.log() + (1 - q) * (1 - q).log())  # noqa: E731
    exact = float(binary((weights * p).sum()) - (weights * binary(p)).sum())
    z = torch.randn(40000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = torch.stack([(0.4 + 1.5 * z).sigmoid(), 1 - (0.4 + 1.5 * z).sigmoid()], dim=1).unsqueeze(1)
    assert float(mutual_information(drawn)[0]) == pytest.approx(exact, rel=0.02)


def test_predictive_information_is_that_of_two_labels():
    draws, targets = probabilities(6, 4, 3), probabilities(6, 5, 3, seed=1)
    both = torch.cat([draws, targets], dim=1)
    for i, found in enumerate(predictive_information(draws, targets).tolist()):
        about = [
            labels_entropy(both, [i]) + labels_entropy(both, [4 + j]) - labels_entropy(both, [i, 4 + j])
            for j in range(5)
        ]
        assert found == pytest.approx(sum(about) / 5)


def test_predictive_information_in_parts(monkeypatch):
    draws, targets = probabilities(6, 7, 3), probabilities(6, 5, 3, seed=1)
    whole = predictive_information(draws, targets)
    monkeypatch.setattr(acquisition, "_NUMBERS", 100)
    assert torch.allclose(predictive_information(draws, targets), whole)


def greedy(draws, n):
    """The batch by complete enumeration."""
    chosen = []
    for _ in range(n):
        rest = [i for i in range(draws.shape[1]) if i not in chosen]
        chosen.append(max(rest, key=lambda i: information(draws, [*chosen, i])))
    return chosen


@pytest.mark.parametrize("seed", range(3))
def test_a_batch_is_the_greedy_one(seed):
    draws = probabilities(5, 6, 3, seed)
    assert batch_mutual_information(draws, 4) == greedy(draws, 4)


def test_the_entropy_of_a_large_batch_is_estimated(monkeypatch):
    """Configurations are drawn once there are too many: from the third image on, of 27."""
    draws, seen = probabilities(5, 6, 3, 1), []
    plain = acquisition._entropy_with_each
    monkeypatch.setattr(acquisition, "_CONFIGURATIONS", 26)
    monkeypatch.setattr(
        acquisition, "_entropy_with_each", lambda *a: seen.append((len(a[0]), plain(*a))) or seen[-1][1]
    )
    chosen = batch_mutual_information(draws, 5)
    assert [count for count, _ in seen] == [1, 3, 9, 26, 26]
    for number, (_, found) in enumerate(seen):
        exact = [labels_entropy(draws, [*chosen[:number], i]) for i in range(6) if i not in chosen[:number]]
        there = [value for i, value in enumerate(found.tolist()) if i not in chosen[:number]]
        assert there == pytest.approx(exact, rel=1e-9 if number < 3 else 0.1)


def test_where_a_label_is_certain_its_twin_tells_nothing():
    one = probabilities(6, 4, 3, spread=60.0)
    chosen = batch_mutual_information(torch.cat([one, one], dim=1), 3)
    assert len({i % 4 for i in chosen}) == 3


# The Gaussian.


def gaussian(images=7, classes=3, coordinates=4, seed=0, scale=0.3):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    logits = JointLogits(normal(images, coordinates), normal(classes, coordinates).square(), normal(images, classes))
    curvature = torch.rand(images, classes, generator=generator, dtype=torch.float64) / 4
    return JointLogits(logits.features, logits.variances, logits.shared, scale), curvature


def written_out(logits, c):
    """The covariance of all images' logits of one class."""
    root = torch.cat([logits.features * logits.variances[c].sqrt(), logits.shared[:, c : c + 1]], dim=1)
    return root @ root.mT


def after(covariance, image, precision):
    """The Kalman update for an observation of one coordinate: gain times innovation covariance times gain."""
    H = torch.zeros(1, len(covariance), dtype=covariance.dtype)
    H[0, image] = 1
    S = H @ covariance @ H.mT + 1 / precision
    K = covariance @ H.mT / S
    return covariance - K @ S @ K.mT


def reference(logits, curvature, n):
    """The greedy batch with every covariance written out; a mutual information by determinants."""
    N, C = curvature.shape
    covariances = [written_out(logits, c) for c in range(C)]
    chosen, gains = [], []
    for _ in range(n):
        worth = {}
        for i in set(range(N)) - set(chosen):
            total = 0.0
            for c, S in enumerate(covariances):
                new = after(S, i, float(curvature[i, c]))
                for j in range(N):
                    noise = 1 / float(curvature[j, c])
                    before, later = (logits.scale * float(P[j, j]) + noise for P in (S, new))
                    total += math.log(before / later) / 2
            worth[i] = total / N
        best = max(worth, key=worth.get)
        chosen.append(best)
        gains.append(worth[best])
        covariances = [after(S, best, float(curvature[best, c])) for c, S in enumerate(covariances)]
    return chosen, gains


@pytest.mark.parametrize("seed", range(4))
def test_the_batch_is_that_of_the_filter_run_ahead(seed):
    logits, curvature = gaussian(seed=seed)
    found = choose_informative(logits, curvature, 5)
    positions, gains = reference(logits, curvature, 5)
    assert found.positions == positions
    assert found.information == pytest.approx(gains)


def test_covariances_between_images():
    logits, _ = gaussian()
    rows, columns = torch.tensor([0, 3]), torch.tensor([3, 5, 6])
    found = logits.covariance(rows, columns)
    for c in range(3):
        assert torch.allclose(found[c], written_out(logits, c)[rows][:, columns])
        assert torch.allclose(logits.variance()[:, c], written_out(logits, c).diagonal())


def test_the_information_is_that_of_two_gaussians():
    """Of two images of one class, by the determinants of what is observed of both."""
    logits, curvature = gaussian(images=2, classes=1, scale=1.0)
    S, noise = written_out(logits, 0), torch.diag(1 / curvature[:, 0])
    worth = []
    for i in range(2):
        twice = torch.tensor([i, 0, 1])  # the label, then a further label of each image
        seen = S[twice][:, twice] + noise[twice][:, twice] * torch.eye(3, dtype=S.dtype)
        about = [(seen[0, 0].log() + seen[j, j].log() - seen[[0, j]][:, [0, j]].logdet()) / 2 for j in (1, 2)]
        worth.append(float(sum(about)) / 2)
    assert choose_informative(logits, curvature, 1).information == pytest.approx([max(worth)])


def test_where_the_pool_is_large_a_part_stands_for_it(monkeypatch):
    logits, curvature = gaussian(images=40)
    monkeypatch.setattr(acquisition, "_NUMBERS", 3 * 16 * 10)
    few = choose_informative(logits, curvature, 4, targets=16)
    assert len(set(few.positions)) == 4
    alone = torch.log1p(curvature * logits.variance()).sum(dim=1)
    assert set(few.positions) <= set(alone.argsort(descending=True)[:10].tolist())
    assert len(choose_informative(logits, curvature, 100).positions) == 40


def test_expected_curvature():
    draws = probabilities(5, 4, 3)
    assert torch.allclose(expected_curvature(draws), (draws * (1 - draws)).mean(dim=0))

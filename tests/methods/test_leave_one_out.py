"""What the towers learn from, against literal loops, densities of torch and optima of scipy, in float64."""

import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch.distributions import MultivariateNormal

from kalmanclip.methods.leave_one_out import LeaveOneOut
from kalmanclip.methods.statistics import PSEUDO_COUNT, ClassStatistics

D, SCALE = 6, 20.0
LABELS = torch.tensor([0, 1, 2, 0, 1, 0, 1, 0])
"""Class 2 has one image, class 3 none."""


def unit(*size, generator):
    return F.normalize(torch.randn(*size, generator=generator, dtype=torch.float64), dim=-1)


@pytest.fixture
def world():
    generator = torch.Generator().manual_seed(1)
    T = unit(4, D, generator=generator)
    looks = torch.where(torch.arange(len(LABELS)) == 3, 1, LABELS)  # one looks like another class
    f = F.normalize(T[looks] + 0.9 * unit(len(LABELS), D, generator=generator), dim=-1)
    root = torch.randn(D, D, generator=generator, dtype=torch.float64)
    return f, T, (root @ root.mT / D + torch.eye(D, dtype=torch.float64)).cholesky_inverse().double()


def density(mean, M):
    return MultivariateNormal(mean, precision_matrix=M)


def literal(f, T, M, gains):
    """Image by image: the others' means, and the log-densities of Gaussians around them."""
    g, rows = f.mean(dim=0), []
    for i, at in enumerate(f):
        logits = []
        for c in range(len(T)):
            others = [f[j] for j in range(len(f)) if LABELS[j] == c and j != i]
            if not others and LABELS[i] == c:
                others = [f[i]]  # alone: its own crops stand for the others
            mean = (sum(others, start=torch.zeros(D).double()) + PSEUDO_COUNT * g) / (len(others) + PSEUDO_COUNT)
            apart = density(mean, M).log_prob(at) - density(g, M).log_prob(at)
            logits.append(gains[0] * SCALE * at @ T[c] + gains[1] * apart)
        rows.append(torch.stack(logits))
    return torch.stack(rows)


def test_every_image_is_classified_by_the_others(world):
    f, T, M = world
    root = torch.linalg.cholesky(M)
    found = LeaveOneOut(f, LABELS, T, root, SCALE)
    logits = found.logits(f, torch.arange(len(f)))
    expected = literal(f, T, M, found.gains) / 2
    # densities apart from what all classes share
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)
    some = torch.tensor([6, 0])
    torch.testing.assert_close(found.logits(f[some], some), logits[some])


def test_the_gains_are_scipys_optimum(world):
    f, T, M = world
    found = LeaveOneOut(f, LABELS, T, torch.linalg.cholesky(M), SCALE)
    several = LABELS != 2  # an image that is alone says nothing

    def loss(gains):
        logits = literal(f, T, M, torch.tensor([gains[0], 50 * gains[1]]))
        nll = F.cross_entropy(logits[several], LABELS[several], reduction="sum")
        return float(nll) + ((gains - 1) ** 2).sum() / (2 * 0.5**2)

    best = minimize(loss, [1.0, 1.0], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-12}).x
    assert found.gains.tolist() == pytest.approx([best[0], 50 * best[1]], rel=1e-4)
    assert abs(best - 1).max() > 0.05


def test_one_image_of_each_class_has_typical_gains(world):
    f, T, M = world
    alone = LeaveOneOut(f[:3], torch.arange(3), T, torch.linalg.cholesky(M), SCALE)
    assert alone.gains.tolist() == [1.0, 50.0]


def test_the_deviance_and_its_slope(world):
    f, T, M = world
    found = LeaveOneOut(f, LABELS, T, torch.linalg.cholesky(M), SCALE)
    at = torch.tensor([3, 1, 2])
    moved = F.normalize(f[at].flip(0) + f[at], dim=1)
    residual, slope = found.deviance(moved, at)
    p = found.logits(moved, at).softmax(dim=1)[range(3), LABELS[at]]
    torch.testing.assert_close(residual, (-2 * p.log()).sqrt())
    h = 1e-6
    for d in range(D):
        away = torch.zeros(D, dtype=torch.float64)
        away[d] = h
        numeric = (found.deviance(moved + away, at)[0] - found.deviance(moved - away, at)[0]) / (2 * h)
        torch.testing.assert_close(slope[:, d], numeric, rtol=1e-5, atol=1e-6)


def test_an_image_that_is_certain_pulls_no_more(world):
    f, T, M = world
    found = LeaveOneOut(f, LABELS, T, torch.linalg.cholesky(M), SCALE)
    found.gains = torch.tensor([1e3, 0.0], dtype=torch.float64)
    residual, slope = found.deviance(T[LABELS], torch.arange(len(f)))
    certain = residual < 1e-4
    assert certain.any()
    assert (slope[certain] == 0).all()
    assert slope.isfinite().all()


def test_it_follows_the_images_that_were_seen(world):
    f, T, M = world
    found = LeaveOneOut(f, LABELS, T, torch.linalg.cholesky(M), SCALE)
    before, at = found.f.clone(), torch.tensor([5, 0])
    new = unit(2, D, generator=torch.Generator().manual_seed(3))
    found.remember(new, at)
    torch.testing.assert_close(found.f[at], F.normalize(0.7 * before[at] + 0.3 * new, dim=1))
    rest = [i for i in range(len(f)) if i not in (0, 5)]
    assert torch.equal(found.f[rest], before[rest])
    assert f.data_ptr() != found.f.data_ptr()  # the caller's stay as they are


def test_the_generative_classifier_is_that_of_gaussian_classes(world):
    """Of images that lie along the mean of all as it does itself; else it only has no intercept."""
    f, _, M = world
    weights = ClassStatistics.of(f.unsqueeze(1), LABELS, 4).generative(torch.linalg.cholesky(M))
    g = f.mean(dim=0)
    x = f + (1 - f @ g / (g @ g)).unsqueeze(1) * g
    for c in range(3):
        own = f[c == LABELS]
        mean = (own.sum(dim=0) + PSEUDO_COUNT * g) / (len(own) + PSEUDO_COUNT)
        expected = density(mean, M).log_prob(x) - density(g, M).log_prob(x)
        torch.testing.assert_close(x @ weights[c], expected)
    assert (weights[3].abs() < 1e-12).all()  # no images, nothing to say

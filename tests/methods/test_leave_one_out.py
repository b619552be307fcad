"""The leave-one-out classifier of training images, against Gaussians that are written out, and against SciPy."""

import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize

from kalmanclip.methods.leave_one_out import LeaveOneOut
from kalmanclip.methods.statistics import ClassStatistics

N, C, WIDTH, SCALE = 14, 4, 6, 20.0
LABELS = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 0, 0, 1])
EVERY = torch.arange(N)


def unit(*size, seed):
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(*size, generator=generator, dtype=torch.float64) + 0.6, dim=-1)


def classifier(labels=LABELS):
    T, f = unit(C, WIDTH, seed=1), unit(len(labels), WIDTH, seed=2)
    f = F.normalize(f + 0.7 * T[labels], dim=1)
    return LeaveOneOut(f, labels, T, ClassStatistics.of(f.unsqueeze(1), labels, C).metric(), SCALE)


def densities(one, f, position):
    """Log-densities (C,) of Gaussian classes, drawn to the mean of all by two images, without the image itself."""
    g, kept = one.f.mean(dim=0), position != EVERY
    gaussians = torch.distributions.MultivariateNormal
    parts = [one.f[kept & (one.labels == c)] for c in range(C)]
    means = torch.stack([(part.sum(dim=0) + 2 * g) / (len(part) + 2) for part in parts])
    return gaussians(means, precision_matrix=one.M).log_prob(f)


def centred(logits):
    return logits - logits.mean(dim=-1, keepdim=True)


def test_an_image_is_classified_by_the_texts_and_by_the_others():
    one, f = classifier(), unit(N, WIDTH, seed=3)
    expected = torch.stack([densities(one, f[i], i) for i in range(N)])
    expected = (one.gains[0] * SCALE * f @ one.T.mT + one.gains[1] * expected) / 2
    torch.testing.assert_close(centred(one.logits(f, EVERY)), centred(expected))
    some = torch.tensor([3, 0])
    torch.testing.assert_close(one.logits(f[some], some), one.logits(f, EVERY)[some])


def test_the_classes_it_is_not_of_are_those_of_the_generative_classifier():
    one, f = classifier(), unit(N, WIDTH, seed=3)
    g = one.f.mean(dim=0)
    f = f - torch.outer(f @ g / (g @ g) - 1, g)  # the constants of the weights lie along the mean
    one.gains = one.gains.new_tensor([0.0, 2.0])
    statistics = ClassStatistics.of(one.f.unsqueeze(1), LABELS, C)
    found, expected = one.logits(f, EVERY), f @ statistics.generative(statistics.metric()).mT
    others = F.one_hot(LABELS, C) == 0
    torch.testing.assert_close(found[others], expected[others])


def test_a_lone_image_has_its_class():
    labels = LABELS.clone()
    labels[[3, 7]] = torch.tensor([3, 2])  # one image of class 3
    one = classifier(labels)
    one.gains = one.gains.new_tensor([0.0, 1.0])
    f = unit(1, WIDTH, seed=4)
    torch.testing.assert_close(centred(one.logits(f, torch.tensor([3]))), centred(densities(one, f[0], -1) / 2)[None])
    assert classifier(torch.arange(C)).gains.tolist() == [1.0, 50.0]  # nothing tells how much the others are worth


def test_the_gains_make_the_labels_most_probable():
    one = classifier()

    def loss(gains):
        one.gains = one.f.new_tensor([gains[0], 50 * gains[1]])
        prior = ((one.f.new_tensor(gains) - 1) / 0.5).square().sum() / 2
        return float(F.cross_entropy(2 * one.logits(one.f, EVERY), LABELS, reduction="sum") + prior)

    found = one.gains
    best = minimize(loss, [1.0, 1.0], method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-9}).x
    assert found.tolist() == pytest.approx([best[0], 50 * best[1]], rel=1e-3)
    assert abs(best - 1).max() > 0.05  # the images have a say


def test_the_deviance_and_its_derivative():
    one, f, at = classifier(), unit(N, WIDTH, seed=3), EVERY.flip(0)
    residual, slope = one.deviance(f, at)
    nll = F.cross_entropy(one.logits(f, at), LABELS[at], reduction="none")
    torch.testing.assert_close(residual.square() / 2, nll)
    step = 1e-6 * unit(N, WIDTH, seed=5)
    moved = one.deviance(f + step, at)[0] - one.deviance(f - step, at)[0]
    torch.testing.assert_close(moved / 2, (slope * step).sum(dim=1), rtol=1e-5, atol=1e-12)


def test_it_follows_the_towers():
    one, seen = classifier(), unit(2, WIDTH, seed=6)
    before, at = one.f.clone(), torch.tensor([4, 1])
    one.remember(seen, at)
    torch.testing.assert_close(one.f[at], F.normalize(0.7 * before[at] + 0.3 * seen, dim=1))
    rest = (EVERY != 4) & (EVERY != 1)
    assert torch.equal(one.f[rest], before[rest])

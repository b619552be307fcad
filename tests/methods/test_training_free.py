"""APE, TIMO and ProKeR against plain loops over their published formulae, in float64."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from kalmanclip.data import FewShotTask
from kalmanclip.encoders import DualEncoder, features
from kalmanclip.encoders.features import text_weights
from kalmanclip.encoders.preprocess import RandomCrop
from kalmanclip.errors import ConfigError, DataError
from kalmanclip.methods.baselines.ape import APE, APEConfig, channel_criterion
from kalmanclip.methods.baselines.proker import ProKeR, ProKeRConfig
from kalmanclip.methods.baselines.timo import TIMO, TIMOS, TIMOConfig, TIMOSConfig, discriminant, guided_text, joined

C, D, SHOTS = 4, 12, 3
TEMPLATES = ("a photo of a {}.", "a drawing of a {}.", "{} on a noisy ground.")


def image_features(backbone, *arguments, **options):
    """Of the frozen towers."""
    return features.image_features(DualEncoder(backbone), *arguments, **options)


class Toy:
    """Random unit-length features of classes that overlap: text weights, training and validation images."""

    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        centres = rng.normal(size=(C, D))
        self.T = self.unit(centres + rng.normal(size=(C, D)))
        self.y = np.repeat(np.arange(C), SHOTS)
        self.X = self.unit(centres[self.y] + 1.2 * rng.normal(size=(C * SHOTS, D)))
        self.vy = np.arange(28) % C
        self.v = self.unit(centres[self.vy] + 1.5 * rng.normal(size=(28, D)))
        self.prompts = self.unit(self.T[:, None] + 0.6 * rng.normal(size=(C, 3, D)))

    @staticmethod
    def unit(x):
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    def tensors(self, *names):
        return [torch.from_numpy(getattr(self, name)) for name in names]


@pytest.fixture(params=range(6))
def toy(request):
    """Several, as one alone may have its best options where a wrong search looks first."""
    return Toy(request.param)


def right(logits, labels):
    return int((logits.argmax(axis=1) == labels).sum())


def crops(tiny, task, views):
    """The features of each pass of random crops, (V, N, d), in float64."""
    passes = [
        image_features(tiny, task.train.sources, crop=RandomCrop(tiny, (0.5, 1.0), task.seed, v)) for v in range(views)
    ]
    return torch.stack(passes).double().numpy()


# APE


def ape_logits(T, K, y, f, chosen, scale, alpha, beta, gamma):
    """By the formula, one number at a time."""
    Tq, Kq, fq = (Toy.unit(x[:, chosen]) for x in (T, K, f))
    logits = scale * f @ T.T
    for j, c in enumerate(y):
        p = np.exp(Kq[j] @ Tq.T)
        p = p / p.sum()
        one_hot = np.eye(len(T))[c]
        divergence = sum(one_hot[k] * math.log2((one_hot[k] + 1e-6) / (p[k] + 1e-6)) for k in range(len(T)))
        for i in range(len(f)):
            logits[i, c] += alpha * math.exp(-beta * (1 - fq[i] @ Kq[j])) * math.exp(gamma * divergence)
    return logits


def ape_criterion(T, K, y, similarity_weight, variance_weight):
    found = []
    samples = [(c, T[c]) for c in range(len(T))] + list(zip(y, K, strict=True))
    for k in range(T.shape[1]):
        pairs = [a[k] * b[k] for c, a in samples for e, b in samples if c != e]
        found.append(variance_weight * T[:, k].var(ddof=1) - similarity_weight * np.mean(pairs))
    return np.array(found)


def test_the_channels_criterion_of_text_and_images(toy):
    T, X, y = toy.tensors("T", "X", "y")
    unequal = slice(2, None)  # a class with fewer images
    found = channel_criterion(T, X[unequal], y[unequal], 0.7, 0.3)
    np.testing.assert_allclose(found, ape_criterion(toy.T, toy.X[unequal], toy.y[unequal], 0.7, 0.3), atol=1e-14)


def test_ape_and_its_search_by_plain_loops(tiny, toy):
    config = APEConfig(search_scale=(9.0, 400.0, 1.5), search_steps=(3, 4, 3), channels=0.6)
    method = APE(tiny, config)
    method.T, X, y, v, vy = toy.tensors("T", "X", "y", "v", "vy")
    method.fill(X, y)
    chosen = np.argsort(-ape_criterion(toy.T, toy.X, toy.y, 0.7, 0.3))[: int(0.6 * D)]
    assert sorted(method.chosen.tolist()) == sorted(chosen)
    best = (-1, None, None)
    scores = set()
    for i in range(3):
        for j in range(4):
            for k in range(3):
                beta, alpha, gamma = i * (9 - 0.1) / 3 + 0.1, j * (400 - 0.1) / 4 + 0.1, k * 1.5 / 3
                logits = ape_logits(toy.T, toy.X, toy.y, toy.v, chosen, tiny.logit_scale, alpha, beta, gamma)
                scores.add(right(logits, toy.vy))
                if right(logits, toy.vy) > best[0]:
                    best = (right(logits, toy.vy), (alpha, beta, gamma), logits)
    assert len(scores) > 2  # there is something to choose
    method.search(v, vy)
    assert (method.alpha, method.beta, method.gamma) == pytest.approx(best[1])
    np.testing.assert_allclose(method.score(v), best[2], rtol=1e-10)


def test_ape_fits_on_the_mean_of_its_crops(tiny, task):
    plain = FewShotTask(task.train, seed=task.seed)
    method = APE(tiny, APEConfig(crops=2))
    method.fit(plain)
    K, T = Toy.unit(crops(tiny, task, 2).mean(axis=0)), method.T.double().numpy()
    f = image_features(tiny, task.train.sources)
    expected = ape_logits(
        T, K, task.train.labels, f.double().numpy(), method.chosen.numpy(), tiny.logit_scale, 2.0, 1.0, 0.1
    )
    np.testing.assert_allclose(method.score(f), expected, rtol=1e-4)
    assert len(method.chosen) == 350  # 700 of 1024, of 512 channels


# TIMO


def timo_text(t, s, gamma):
    rows = []
    for c in range(len(t)):
        weights = np.exp(gamma * s[c] / np.linalg.norm(s[c]))
        weights /= weights.sum()
        rows.append(sum(w * prompt for w, prompt in zip(weights, t[c], strict=True)))
    return Toy.unit(np.array(rows))


def timo_discriminant(f, y, t, s, count):
    """Means and shrunken precision of images and scaled prompts, as the authors' code computes them."""
    samples = {c: [x for x, label in zip(f, y, strict=True) if label == c] for c in range(len(t))}
    for c in range(len(t)):
        order = [*np.argsort(-s[c]), *np.argsort(-s[c])][:count]
        samples[c] += [s[c, p] * t[c, p] for p in order]
    mu = np.array([np.mean(samples[c], axis=0) for c in range(len(t))])
    centred = np.concatenate([np.array(samples[c]) - mu[c] for c in range(len(t))])
    n, d = centred.shape
    S = np.cov(centred.T)
    precision = d * np.linalg.pinv((n - 1) * S + np.trace(S) * np.eye(d))
    return mu @ precision, -0.5 * np.diag(mu @ precision @ mu.T)


@pytest.fixture
def similar(toy):
    """Similarities (C, P) of the toy's prompts to the mean image of their class."""
    means = Toy.unit(np.array([toy.X[toy.y == c].mean(axis=0) for c in range(C)]))
    return np.array([[prompt @ means[c] for prompt in toy.prompts[c]] for c in range(C)])


@pytest.mark.parametrize("gamma", [1.0, 50.0])
def test_images_guide_text(toy, similar, gamma):
    found = guided_text(*toy.tensors("prompts"), torch.from_numpy(similar), gamma)
    np.testing.assert_allclose(found, timo_text(toy.prompts, similar, gamma), atol=1e-14)


@pytest.mark.parametrize("count", [1, 3, 5])
def test_text_guides_images(toy, similar, count):
    X, y, prompts = toy.tensors("X", "y", "prompts")
    W, b = discriminant(*joined(X, y, prompts, torch.from_numpy(similar), count))
    expected = timo_discriminant(toy.X, toy.y, toy.prompts, similar, count)
    np.testing.assert_allclose(W, expected[0], rtol=1e-9)
    np.testing.assert_allclose(b, expected[1], rtol=1e-9)


def test_timo_s_and_its_search_by_plain_loops(tiny, toy, similar):
    method = TIMOS(tiny, TIMOSConfig(alpha_grid=(0.1, 1.0, 10.0, 100.0, 1e3), gamma_grid=(1.0, 20.0, 90.0)))
    X, y, prompts, v, vy = toy.tensors("X", "y", "prompts", "v", "vy")
    s = torch.from_numpy(similar)
    method.guide(prompts, s, (v, vy))
    by_gamma = [right(toy.v @ timo_text(toy.prompts, similar, g).T, toy.vy) for g in (1.0, 20.0, 90.0)]
    gamma = (1.0, 20.0, 90.0)[by_gamma.index(max(by_gamma))]
    assert method.gamma == gamma
    T = timo_text(toy.prompts, similar, gamma)
    best = (-1, None, None)
    for count in [int(x) for x in np.linspace(1, 6, 10)]:  # as published: 10 numbers up to twice the prompts
        W, b = timo_discriminant(toy.X, toy.y, toy.prompts, similar, count)
        for alpha in (0.1, 1.0, 10.0, 100.0, 1e3):
            logits = alpha * toy.v @ T.T + toy.v @ W.T + b
            if right(logits, toy.vy) > best[0]:
                best = (right(logits, toy.vy), (alpha, count), logits)
    method.search(X, y, prompts, s, v, vy)
    assert (method.alpha, method.prompts) == best[1]
    np.testing.assert_allclose(method.score(v), best[2], rtol=1e-8)


@pytest.mark.parametrize(
    ("prompts", "expected"), [(1, [1, 2]), (3, [1, 2, 3, 4, 5, 6]), (7, [1, 2, 3, 5, 6, 8, 9, 11, 12, 14])]
)
def test_the_numbers_of_prompts(tiny, prompts, expected):
    assert TIMOS(tiny).counts(prompts) == expected == sorted({int(x) for x in np.linspace(1, 2 * prompts, 10)})
    assert TIMO(tiny).counts(prompts) == [prompts]


def test_timo_fits_on_all_crops_and_every_template(tiny, task):
    several = FewShotTask(task.train, templates=TEMPLATES, seed=task.seed)
    method = TIMO(tiny, TIMOConfig(crops=2, alpha=70.0))
    method.fit(several)
    passes, y = crops(tiny, task, 2), np.array(task.train.labels)
    keys = Toy.unit(passes.mean(axis=0))
    means = Toy.unit(np.array([keys[y == c].mean(axis=0) for c in range(3)]))
    t = np.stack([text_weights(tiny, task.class_names, [x]).double().numpy() for x in TEMPLATES], axis=1)
    s = np.einsum("cpd, cd -> cp", t, means)
    W, b = timo_discriminant(passes.reshape(-1, passes.shape[-1]), np.tile(y, 2), t, s, 3)
    f = image_features(tiny, task.train.sources).double().numpy()
    expected = 70 * f @ timo_text(t, s, 50.0).T + f @ W.T + b
    logits = method.logits(task.train.sources).numpy()
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


def test_timo_needs_every_class(tiny, task):
    with pytest.raises(DataError, match="none of triangle"):
        TIMO(tiny, TIMOConfig(crops=0)).fit(FewShotTask(task.train.subset(range(6))))


# ProKeR


def proker_logits(T, X, y, f, beta, lmbda):
    K = np.array([[math.exp(-beta * (1 - a @ b)) for b in X] for a in X])
    k = np.array([[math.exp(-beta * (1 - a @ b)) for b in X] for a in f])
    A = np.linalg.solve(K / lmbda + np.eye(len(X)), np.eye(len(T))[y] - X @ T.T)
    return f @ T.T + k @ A


def test_prokers_search_by_plain_loops(tiny, toy):
    method = ProKeR(tiny, ProKeRConfig(beta_range=(0.2, 8.0, 4), lmbda_range=(0.01, 2.0, 5)))
    method.T, method.X, y, v, vy = toy.tensors("T", "X", "y", "v", "vy")
    best, scores = (-1, None), set()
    for beta in np.linspace(0.2, 8, 4):
        for lmbda in np.linspace(0.01, 2, 5):
            found = right(proker_logits(toy.T, toy.X, toy.y, toy.v, beta, lmbda), toy.vy)
            scores.add(found)
            if found > best[0]:
                best = (found, (beta, lmbda))
    assert len(scores) > 1
    method.search(torch.eye(C, dtype=torch.float64)[y] - method.X @ method.T.mT, v, vy, lambda *_: None)
    assert (method.beta, method.lmbda) == pytest.approx(best[1])


@pytest.mark.parametrize(("shots", "beta", "lmbda"), [(1, 3.0, 0.05), (3, 2.6, 0.05)])
def test_proker_fits_all_crops_with_the_transferred_options(tiny, task, shots, beta, lmbda):
    few = FewShotTask(task.train.subset(i for i in range(9) if i % 3 < shots), seed=task.seed)
    method = ProKeR(tiny, ProKeRConfig(crops=2))
    method.fit(few)
    assert (method.beta, method.lmbda) == (beta, lmbda)
    X = crops(tiny, few, 2)
    f = image_features(tiny, task.train.sources).double().numpy()
    expected = tiny.logit_scale * proker_logits(
        method.T.double().numpy(), X.reshape(-1, X.shape[-1]), np.tile(few.train.labels, 2), f, beta, lmbda
    )
    np.testing.assert_allclose(method.logits(task.train.sources), expected, rtol=1e-4, atol=1e-3)


def test_prokers_own_options_come_first(tiny, task):
    method = ProKeR(tiny, ProKeRConfig(crops=0, beta=0.7, lmbda=0.3))
    method.fit(FewShotTask(task.train))
    assert (method.beta, method.lmbda) == (0.7, 0.3)


@pytest.mark.parametrize("method", [APE, TIMO, TIMOS, ProKeR])
def test_choices_are_made_on_validation_images_where_there_are_some(tiny, task, method):
    config = dataclasses.replace(method(tiny).config, crops=0)
    chosen, fixed = method(tiny, config), method(tiny, config)
    chosen.fit(task)
    fixed.fit(dataclasses.replace(task, validation=None))
    names = ("alpha", "beta", "gamma", "lmbda")
    assert [getattr(chosen, k, None) for k in names] != [getattr(fixed, k, None) for k in names]


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        (APEConfig, {"gamma": -0.1}),
        (APEConfig, {"channels": 0.0}),
        (APEConfig, {"search_steps": (1, 0, 1)}),
        (TIMOConfig, {"gamma": 0.0}),
        (TIMOConfig, {"alpha_grid": ()}),
        (TIMOSConfig, {"prompt_counts": 1}),
        (TIMOSConfig, {"gamma_grid": (0.0,)}),
        (ProKeRConfig, {"beta": 0.0}),
        (ProKeRConfig, {"lmbda_range": (1.0, 0.1, 5)}),
        (ProKeRConfig, {"beta_range": (0.1, 1.0, 0)}),
        (ProKeRConfig, {"crops": -1}),
    ],
)
def test_bad_options(kind, bad):
    with pytest.raises(ConfigError):
        kind(**bad)

"""The searches and the crops of the rivals, against plain loops in float64 on made-up features."""

import math
import types
import zlib

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from kalmanclip.data import FewShotTask, LabelledImages
from kalmanclip.encoders import features
from kalmanclip.encoders.preprocess import CropConfig
from kalmanclip.errors import ConfigError
from kalmanclip.methods.baselines import base
from kalmanclip.methods.baselines.ape import APET, APETConfig
from kalmanclip.methods.baselines.clip_adapter import CLIPAdapter, CLIPAdapterConfig
from kalmanclip.methods.baselines.gda import GDA, GDAConfig
from kalmanclip.methods.baselines.linear_probe import LinearProbe, LinearProbeConfig
from kalmanclip.methods.baselines.lp_plus_plus import LPPlusPlus, LPPlusPlusConfig
from kalmanclip.methods.baselines.tip_adapter import TipAdapter, TipAdapterConfig, TipAdapterF, TipAdapterFConfig

C, D, SHOTS, SCALE = 4, 12, 3, 20.0


def vector(words):
    """A direction of unit length that depends on the words alone, in float64."""
    generator = torch.Generator().manual_seed(zlib.crc32(words.encode()))
    return F.normalize(torch.randn(D, generator=generator, dtype=torch.float64), dim=0)


def feature(name, crop="centre"):
    """An image is near its class, a crop near its image; names end in the number of the class."""
    return F.normalize(vector(f"class {name[-1]}") + 1.2 * vector(name) + 0.6 * vector(f"{name} {crop}"), dim=0)


def images(prefix, count):
    names = [f"{prefix} {i} of {c}" for c in range(C) for i in range(count)]
    return LabelledImages(names, [int(name[-1]) for name in names], [f"name {c}" for c in range(C)])


TRAIN, HELD_OUT = images("train", SHOTS), images("held out", 6)
TASK = FewShotTask(TRAIN, HELD_OUT, seed=5)
Y, Y_VAL = np.array(TRAIN.labels), np.array(HELD_OUT.labels)
T = torch.stack([F.normalize(vector(f"class {c}") + 1.5 * vector(f"text {c}"), dim=0) for c in range(C)])
BACKBONE = types.SimpleNamespace(logit_scale=SCALE, width=D, device=torch.device("cpu"), image_size=8)


def features_of(names, crop="centre"):
    return torch.stack([feature(name, crop) for name in names])


def random_crop(scale, view):
    """The name of a random crop, by what it depends on."""
    return f"{scale} {TASK.seed}:{view}"


@pytest.fixture(autouse=True)
def made_up(monkeypatch):
    def image_features(encoder, sources, progress=None, crop=None, keep=True):
        return features_of(sources, "centre" if crop is None else f"{crop.scale} {crop.key}")

    for module in (features, base):
        monkeypatch.setattr(module, "image_features", image_features)
    monkeypatch.setattr(features, "cache_decoded", lambda sources, min_side: sources)
    monkeypatch.setattr(base, "DualEncoder", lambda backbone: types.SimpleNamespace(backbone=backbone))
    monkeypatch.setattr(base, "text_weights", lambda backbone, names, templates: T)


def fitted(kind, config, task=TASK):
    method = kind(BACKBONE, config)
    method.fit(task)
    return method


VAL = features_of(HELD_OUT.sources)


def right(logits):
    return int((np.asarray(logits.detach() if isinstance(logits, torch.Tensor) else logits).argmax(1) == Y_VAL).sum())


# the crops


def test_the_crops_share_their_images_weight():
    assert CropConfig().weights == pytest.approx([0.5] + [0.1] * 5)
    assert CropConfig(crops=0).weights == [1.0]
    assert CropConfig(crops=4, centre_weight=0.0).weights == [0.25] * 4
    config = CropConfig(crops=2, centre_weight=0.6)
    f = features.crop_features(types.SimpleNamespace(backbone=BACKBONE), TRAIN.sources, config, TASK.seed)
    by_hand = ["centre", random_crop((0.3, 1.0), 0), random_crop((0.3, 1.0), 1)]
    assert torch.equal(f, torch.stack([features_of(TRAIN.sources, crop) for crop in by_hand], dim=1))
    assert config.weights == pytest.approx([0.6, 0.2, 0.2])
    for bad in ({"crops": -1}, {"crops": 1.5}, {"centre_weight": 1.1}, {"crop_scale": (0.0, 1.0)}):
        with pytest.raises(ConfigError):
            CropConfig(**bad)


def samples(config):
    """By plain loops: every crop of every image with its label and its share of the image."""
    found = []
    for name, label in zip(TRAIN.sources, TRAIN.labels, strict=True):
        names = [("centre", config.centre_weight)] if config.centre_weight else []
        names += [
            (random_crop(config.crop_scale, v), (1 - config.centre_weight) / config.crops) for v in range(config.crops)
        ]
        found += [(feature(name, crop).numpy(), label, share) for crop, share in names]
    f, y, shares = (np.array(column) for column in zip(*found, strict=True))
    return f, y, shares


def softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def test_the_linear_probe_weighs_images_alike_and_searches_its_pull():
    config = LinearProbeConfig(crops=3, centre_weight=0.4, iterations=2000)
    f, y, shares = samples(config)
    scores = {}
    for l2 in sorted(config.l2_grid, reverse=True):
        method = fitted(LinearProbe, LinearProbeConfig(crops=3, centre_weight=0.4, l2_grid=(l2,), iterations=2000))
        W = method.W.numpy()
        errors = softmax(SCALE * f @ W.T) - np.eye(C)[y]
        gradient = SCALE * (shares[:, None] * errors).T @ f / len(Y) + l2 * (W - T.numpy())
        assert np.abs(gradient).max() < 1e-4 * max(l2, 1)
        scores[l2] = right(SCALE * VAL.numpy() @ W.T), W
    best = max(score for score, _ in scores.values())
    chosen = next(l2 for l2, (score, _) in scores.items() if score == best)
    method = fitted(LinearProbe, config)
    assert method.l2 == chosen
    assert np.allclose(method.W, scores[chosen][1], atol=1e-6)
    assert len({score for score, _ in scores.values()}) > 1


@pytest.mark.parametrize("crops_used", [{"crops": 1, "crop_scale": (0.5, 1.0), "centre_weight": 0.0}, {"crops": 3}])
def test_lp_plus_plus_by_numpy(crops_used):
    config = LPPlusPlusConfig(epochs=35, **crops_used)
    f, y, shares = samples(config)
    n, text = len(Y), T.numpy()
    sims = f @ text.T
    rate = 4 * n / np.linalg.eigvalsh((shares[:, None] * f).T @ f).max()
    alpha_rate = n / (4 * (shares[:, None] * sims**2).sum(axis=0).max())
    W = np.stack([(shares[y == c, None] * f[y == c]).sum(axis=0) for c in range(C)])
    alpha = np.full(C, 250 * np.mean([(shares[y == c] * sims[y == c, c]).sum() / SHOTS for c in range(C)]))
    b, moved_W, moved_b, best = np.zeros(C), 0.0, 0.0, (-1,)
    for epoch in range(1, 36):
        errors = shares[:, None] * (softmax(f @ W.T + b + alpha * sims) - np.eye(C)[y]) / n
        moved_W, moved_b = 0.9 * moved_W + errors.T @ f, 0.9 * moved_b + errors.sum(axis=0)
        W, b = W - rate * moved_W, b - rate * moved_b
        if epoch % 10 == 0:
            alpha = alpha - alpha_rate * (errors * sims).sum(axis=0)
        score = right(VAL.numpy() @ W.T + b + alpha * (VAL @ T.T).numpy())
        if score >= best[0]:
            best = score, W, b, alpha
    method = fitted(LPPlusPlus, config)
    for ours, theirs in zip((method.W, method.b, method.alpha), best[1:], strict=True):
        assert np.allclose(ours, theirs, atol=1e-8)


def test_gda_as_published():
    """The authors' lines, on ten random crops of each image."""
    config = GDAConfig(crops=10, crop_scale=(0.5, 1.0), centre_weight=0.0)
    f, y, _ = samples(config)
    mus = np.stack([f[y == c].mean(axis=0) for c in range(C)])
    centred = f - mus[y]
    covariance = np.cov(centred.T)
    inverse = D * np.linalg.pinv((len(f) - 1) * covariance + np.trace(covariance) * np.eye(D))
    logits = VAL.numpy() @ (mus @ inverse).T - 0.5 * np.einsum("nd,dc,nc->n", mus, inverse, mus)
    best, alpha = 0, 0.1
    for candidate in (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0):
        score = right(SCALE * (VAL @ T.T).numpy() + candidate * logits)
        if score > best:
            best, alpha = score, candidate
    method = fitted(GDA, config)
    assert method.alpha == alpha
    assert np.allclose(method.discriminant(VAL), logits)


def test_gda_with_weights_is_gda_with_repetitions():
    """A centre crop with half of the weight beside five others is five copies of it."""
    method = fitted(GDA, GDAConfig())
    f, y, shares = samples(GDAConfig())
    f, y = (np.repeat(x, np.round(shares * 10).astype(int), axis=0) for x in (f, y))
    mus = np.stack([f[y == c].mean(axis=0) for c in range(C)])
    scatter = (f - mus[y]).T @ (f - mus[y]) * 6 / 10  # six crops of each image, not ten
    n = 6 * len(Y)
    inverse = np.linalg.inv((scatter + np.trace(scatter) / (n - 1) * np.eye(D)) / D)
    assert np.allclose(method.W, mus @ inverse)
    assert np.allclose(method.b, -0.5 * np.einsum("nd,dc,nc->n", mus, inverse, mus))


# Tip-Adapter, its trained kin, CLIP-Adapter


def grid(scale, steps):
    """The authors' list."""
    return [i * (scale - 0.1) / steps + 0.1 for i in range(steps)]


def search(clip, affinity, values, scale, steps):
    """The authors' search: the first best pair, beta outside."""
    best, found = 0, (0, 0)
    for beta in grid(scale[0], steps[0]):
        cache = np.exp(-(beta - beta * affinity)) @ values
        for alpha in grid(scale[1], steps[1]):
            score = right(clip + alpha * cache)
            if score > best:
                best, found = score, (alpha, beta)
    return found


def test_tip_adapter_searches_up_to_fifty():
    passes = torch.stack([features_of(TRAIN.sources, random_crop((0.5, 1.0), v)) for v in range(10)])
    K = F.normalize(passes.mean(dim=0), dim=1).numpy()
    clip, affinity = SCALE * (VAL @ T.T).numpy(), VAL.numpy() @ K.T
    wide = search(clip, affinity, np.eye(C)[Y], (50, 50), (200, 200))
    method = fitted(TipAdapter, TipAdapterConfig())
    assert (method.alpha, method.beta) == pytest.approx(wide)
    narrow = fitted(TipAdapter, TipAdapterConfig(search_scale=(7, 3), search_steps=(200, 20)))
    assert (narrow.alpha, narrow.beta) == pytest.approx(search(clip, affinity, np.eye(C)[Y], (7, 3), (200, 20)))
    assert method.alpha > 3  # so that a short grid would be noticed
    alone = fitted(TipAdapter, TipAdapterConfig(), FewShotTask(TRAIN, seed=5))
    assert (alone.alpha, alone.beta) == (1.17, 1.0)


def plain_training(parameters, logits, optimiser, scheduler, epochs, batch, crop_of_epoch, per_epoch=False):
    """An ordinary loop; yields after each epoch."""
    generator, y = torch.Generator().manual_seed(TASK.seed), torch.from_numpy(Y)
    for epoch in range(epochs):
        f = features_of(TRAIN.sources, crop_of_epoch(epoch))
        for i in torch.randperm(len(y), generator=generator).split(batch):
            optimiser.zero_grad()
            F.cross_entropy(logits(f[i]), y[i]).backward()
            optimiser.step()
            if not per_epoch:
                scheduler.step()
        if per_epoch:
            scheduler.step()
        yield epoch


def trained_cache(parameters, parts, alpha, lr, eps, decay, epochs):
    """One training with one weight of the cache; the last of its best epochs."""
    V = torch.eye(C, dtype=torch.float64)[Y]

    def logits(f):
        clip, affinity, weights = parts(f)
        return clip + alpha * torch.exp(-(1 - affinity)) @ (weights * V)

    optimiser = torch.optim.AdamW(parameters, lr=lr, eps=eps, weight_decay=decay)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * math.ceil(len(Y) / 5))
    best = (-1, None)
    for _ in plain_training(
        parameters, logits, optimiser, scheduler, epochs, 5, lambda e: random_crop((0.5, 1.0), e % 2)
    ):
        score = right(logits(VAL))
        if score >= best[0]:
            best = score, [p.detach().clone() for p in parameters]
    return best


QUICK = {"crops": 2, "train_crops": 2, "epochs": 8, "batch_size": 5, "lr": 0.03, "search_steps": (40, 40)}


def keys():
    passes = [features_of(TRAIN.sources, random_crop((0.5, 1.0), v)) for v in range(2)]
    return F.normalize(sum(passes) / 2, dim=1)


@pytest.mark.parametrize("validation", [True, False])
def test_tip_adapter_f_searches_the_weight_it_is_trained_with(validation):
    results = {}
    for alpha in range(10) if validation else [1.17]:
        K = keys().requires_grad_()
        parts = lambda f, K=K: (SCALE * f @ T.T, f @ K.T, 1.0)  # noqa: E731
        results[alpha] = trained_cache([K], parts, alpha, 0.03, 1e-4, 1e-2, 8)
        results[alpha] += (K.detach(),)
    if not validation:
        method = fitted(TipAdapterF, TipAdapterFConfig(**QUICK), FewShotTask(TRAIN, seed=5))
        assert torch.allclose(method.K, results[1.17][2])
        assert (method.alpha, method.beta) == (1.17, 1.0)
        return
    best = max(score for score, *_ in results.values())
    chosen = next(alpha for alpha, (score, *_) in results.items() if score == best)
    (K,) = results[chosen][1]
    method = fitted(TipAdapterF, TipAdapterFConfig(**QUICK))
    assert torch.allclose(method.K, K)
    assert chosen not in (0, 1)  # so that a search that does not happen would be noticed
    clip, affinity = SCALE * (VAL @ T.T).numpy(), (VAL @ K.T).numpy()
    assert (method.alpha, method.beta) == pytest.approx(search(clip, affinity, np.eye(C)[Y], (50, 50), (40, 40)))
    assert not method.K.requires_grad
    fixed = fitted(TipAdapterF, TipAdapterFConfig(**QUICK, alpha_grid=(), alpha=2.0))
    assert torch.allclose(fixed.K, results[2][1][0])


def test_ape_t_trains_with_its_rate_and_searches():
    """Residues by explicit addition to text weights and keys, with the criterion by plain loops."""
    criterion = []
    for k in range(D):
        pairs = [float(T[i, k] * T[j, k]) for i in range(C) for j in range(C) if i != j]
        criterion.append(0.8 * float(T[:, k].var()) - 0.2 * np.mean(pairs))
    chosen = np.argsort(criterion)[::-1][:6].copy()
    results = {}
    for alpha in (0.5, 3.0):
        r = torch.zeros(C, 6, dtype=torch.float64, requires_grad=True)
        v = torch.ones(len(Y), 1, dtype=torch.float64, requires_grad=True)

        def parts(f, r=r, v=v):
            full = torch.zeros(C, D, dtype=torch.float64).index_copy(1, torch.from_numpy(chosen), r)
            return SCALE * f @ (T + full).T, f @ (keys() + full[Y]).T, v

        results[alpha] = trained_cache([r, v], parts, alpha, 0.03, 1e-3, 0.1, 8)
    method = fitted(APET, APETConfig(**QUICK, channels=0.5, alpha_grid=(0.5, 3.0)))
    _, (r, v) = max(results.values(), key=lambda result: result[0])
    assert torch.allclose(method.r, r)
    assert torch.allclose(method.v, v)


@pytest.mark.parametrize("validation", [True, False])
def test_clip_adapter_searches_its_ratio(validation):
    results = {}
    for ratio in [i / 10 for i in range(1, 11)] if validation else [0.6]:
        generator = torch.Generator().manual_seed(TASK.seed)
        down = ((2 * torch.rand(3, D, generator=generator) - 1) / D**0.5).double().requires_grad_()
        up = ((2 * torch.rand(D, 3, generator=generator) - 1) / 3**0.5).double().requires_grad_()

        def logits(f, down=down, up=up, ratio=ratio):
            blend = ratio * torch.relu(torch.relu(f @ down.T) @ up.T) + (1 - ratio) * f
            return SCALE * F.normalize(blend, dim=1) @ T.T

        optimiser = torch.optim.SGD([down, up], lr=1.0, momentum=0.9, weight_decay=5e-4)
        rates = [1e-5] + [2e-3 * (1 + math.cos(math.pi * e / 60)) / 2 for e in range(60)]
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda e, rates=rates: rates[e])
        crop = lambda e: random_crop((0.08, 1.0), e % 2)  # noqa: E731
        list(plain_training([down, up], logits, optimiser, scheduler, 60, 5, crop, per_epoch=True))
        results[ratio] = right(logits(VAL)), down.detach(), up.detach()
    task = TASK if validation else FewShotTask(TRAIN, seed=5)
    options = {"ratio": 0.6, "epochs": 60, "batch_size": 5, "crops": 2}
    method = fitted(CLIPAdapter, CLIPAdapterConfig(**options), task)
    best = max(score for score, *_ in results.values())
    chosen = next(ratio for ratio, (score, *_) in results.items() if score == best)
    assert method.ratio == chosen
    assert torch.allclose(method.D, results[chosen][1])
    assert torch.allclose(method.U, results[chosen][2])
    if validation:
        assert chosen not in (0.1, 0.6)  # so that a search that does not happen would be noticed
        fixed = fitted(CLIPAdapter, CLIPAdapterConfig(**options, ratio_grid=()))
        assert torch.allclose(fixed.D, results[0.6][1])

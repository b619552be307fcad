"""Classes in steps, images at sites: the protocols are the field's, and sums over steps and sites are exact."""

import argparse
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from benchmarks import federated, incremental
from benchmarks.ranpac import RIDGES, RandomFeatures, RanPAC, chosen_ridge
from benchmarks.table import resumed
from sklearn.linear_model import Ridge

from kalmanclip.data import LabelledImages
from kalmanclip.encoders.precomputed import precomputed
from kalmanclip.errors import DataError
from kalmanclip.methods.fusion import fuse_methods
from kalmanclip.methods.statistics import ClassStatistics

CLOSE = {"rtol": 1e-9, "atol": 1e-11}
NAMES = ["cat", "dog", "owl", "fox"]
WIDTH = 6


def cloud(seed=0, each=8, classes=4):
    """Features around class means, in double precision, class by class, with the text of each class."""
    generator = torch.Generator().manual_seed(seed)
    T = F.normalize(torch.randn(classes, WIDTH, generator=generator, dtype=torch.float64), dim=1)
    labels = torch.arange(classes).repeat_interleave(each)
    noise = 0.5 * torch.randn(len(labels), WIDTH, generator=generator, dtype=torch.float64)
    return T, F.normalize(T[labels] + noise, dim=1), labels


def test_classes_come_in_the_fields_order():
    assert incremental.class_order(100, 1993)[:9].tolist() == [68, 56, 78, 8, 23, 84, 90, 65, 74]
    assert incremental.sizes(100) == list(range(10, 101, 10))
    assert incremental.sizes(37) == [4, 8, 12, 16, 20, 24, 28, 31, 34, 37]
    assert incremental.sizes(10) == list(range(1, 11))


def test_a_step_has_the_new_classes_only(monkeypatch, tmp_path):
    """Labels count in the order of coming, in both parts and for the texts."""
    T, f, labels = cloud(classes=4, each=3)
    parts = {part: LabelledImages([str(i) for i in range(12)], labels.tolist(), NAMES) for part in ("train", "test")}
    monkeypatch.setattr(incremental, "read_folder", lambda path: parts[path.name])
    monkeypatch.setattr(incremental, "image_features", lambda encoder, sources: f[[int(s) for s in sources]])
    monkeypatch.setattr(incremental, "STEPS", 4)
    stream = incremental.Stream.read(precomputed(T, NAMES), tmp_path, 2, order=1)
    order = np.random.RandomState(1).permutation(4).tolist()
    torch.testing.assert_close(stream.T, T[order])
    steps = list(stream.steps())
    assert [classes for *_, classes in steps] == [1, 2, 3, 4]
    for number, (new, y, _) in enumerate(steps):
        torch.testing.assert_close(new, f[labels == order[number]][:2])
        assert y.tolist() == [number] * 2
    assert stream.test[1].tolist() == [order.index(label) for label in labels.tolist()]


def test_development_opens_no_test_image(monkeypatch, tmp_path):
    """Of eight training images of a class it learns from six, and measures on the fourth and the eighth."""
    T, f, labels = cloud(classes=4, each=8)
    train = LabelledImages([str(i) for i in range(32)], labels.tolist(), NAMES)
    monkeypatch.setattr(incremental, "read_folder", lambda path: {"train": train}[path.name])
    monkeypatch.setattr(incremental, "image_features", lambda encoder, sources: f[[int(s) for s in sources]])
    stream = incremental.Stream.read(precomputed(T, NAMES), tmp_path, None, order=1, part="development")
    held = torch.arange(32) % 4 == 3
    for (found, own), there in ((stream.test, held), (stream.train, ~held)):
        torch.testing.assert_close(found, f[there])
        assert torch.bincount(own).tolist() == [int(there.sum()) // 4] * 4


def test_ranpac_is_ridge_regression_on_all_images():
    _, f, labels = cloud()
    expand = RandomFeatures(WIDTH, 20, seed=3, like=f)
    learner = RanPAC(expand, seed=3)
    for step, classes in (((0, 1), 2), ((2, 3), 4)):
        new = torch.isin(labels, torch.tensor(step))
        learner.learn(f[new], labels[new], classes)
    h, y = expand(f).numpy(), np.eye(4)[labels]
    assert (h >= 0).all()
    assert 0.3 < (h > 0).mean() < 0.7
    rows = np.concatenate([h, learner.ridge**0.5 * np.eye(20)])
    expected = np.linalg.lstsq(rows, np.concatenate([y, np.zeros((20, 4))]), rcond=None)[0]
    np.testing.assert_allclose(learner.weights, expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(learner.scores(f), h @ expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("features", [5, 60])  # fewer and more than images
def test_the_ridge_is_the_best_on_held_out_images(features):
    generator = torch.Generator().manual_seed(0)
    _, f, labels = cloud(each=10)
    labels = labels[torch.randperm(40, generator=generator)]  # nothing to be learned: the least ridge is not the best
    order = torch.randperm(40, generator=generator)
    h, y = RandomFeatures(WIDTH, features, 1, f)(f[order]), F.one_hot(labels[order]).double()
    losses = {}
    for ridge in RIDGES:
        fit = Ridge(alpha=ridge, fit_intercept=False, solver="svd").fit(h[:32].numpy(), y[:32].numpy())
        losses[ridge] = ((fit.predict(h[32:].numpy()) - y[32:].numpy()) ** 2).mean()
    best = min(losses, key=losses.get)
    assert RIDGES[0] < best < RIDGES[-1]
    assert chosen_ridge(h, y) == best


def test_random_features_leave_the_texts_logits_alone():
    T, f, _ = cloud()
    stream = incremental.Stream(T, 30.0, (f, f), (f, f), [4])
    learner = incremental.Residuals(stream, features=7)
    learner.belief.set_classes(NAMES, F.pad(2**0.5 * T, (0, 7)))
    torch.testing.assert_close(learner.scores(f), 30 * f @ T.mT, **CLOSE)


def test_every_image_is_dealt_to_one_site():
    labels = torch.arange(8).repeat_interleave(16)
    for partition in federated.PARTITIONS:
        parts = federated.dealt(labels, 10, partition, seed=1)
        assert torch.cat(parts).sort()[0].tolist() == list(range(128))
        classes = [len(labels[part].unique()) for part in parts]
        if partition == "alike":
            assert {len(part) for part in parts} == {12, 13}
            assert min(classes) > 4
        else:
            assert min(classes) < 4
            assert sum(classes) < 40
        again = federated.dealt(labels, 10, partition, seed=2)
        assert [part.tolist() for part in again] != [part.tolist() for part in parts]


def test_fused_statistics_are_those_of_all_images():
    """Of sites that lack classes, or know one only: the sums, the metric and the generative classifier."""
    T, f, labels = cloud()
    shots = federated.Shots(NAMES, "a photo of a {}.", (f, labels), (f, labels))
    backbone = precomputed(T, NAMES, 20.0)
    sites = [torch.arange(0, 4), torch.arange(4, 20), torch.arange(20, 32)]
    parts = [federated.fitted(backbone, shots, site) for site in sites]
    fused, whole = fuse_methods(parts).residuals, ClassStatistics.of(f.unsqueeze(1), labels, 4)
    for name in ("count", "total", "within"):
        torch.testing.assert_close(getattr(fused.statistics, name), getattr(whole, name), **CLOSE)
    torch.testing.assert_close(fused.root, whole.metric(), **CLOSE)
    shares = [part.residuals.generative * len(site) for part, site in zip(parts, sites, strict=True)]
    assert fused.generative == pytest.approx(sum(shares) / 32)
    assert fused.generative > 0
    known = [part.residuals.scales.std for part in parts]
    assert fused.scales.std.precision == pytest.approx(sum(p for _, p in known) - 2 * 0.25)  # the prior counts once
    assert fused.scales.std.precision * fused.scales.std.mean == pytest.approx(sum(m * p for m, p in known))
    torch.testing.assert_close(fused.shift, fused.generative / 20 * whole.generative(whole.metric()), **CLOSE)


def test_averages_of_sites(monkeypatch):
    """Of one site each is that site; of two, rows by images and by images of the class."""
    T, f, labels = cloud()
    shots = federated.Shots(NAMES, "a photo of a {}.", (f, labels), (f, labels))
    backbone = precomputed(T, NAMES, 20.0)
    sites = [torch.arange(0, 12), torch.arange(12, 32)]
    monkeypatch.setattr(federated, "dealt", lambda *args: sites)
    seen = []
    monkeypatch.setattr(federated, "asked", lambda shots, scale, W: (seen.append(W), (float(len(seen)), 0.0))[1])
    found = federated.federation(backbone, shots, 2, "alike", seed=0)
    first, second, averaged, by_class, _ = seen
    torch.testing.assert_close(averaged, (12 * first + 20 * second) / 32, **CLOSE)
    torch.testing.assert_close(by_class[0], first[0], **CLOSE)  # 8 of 8 are there
    torch.testing.assert_close(by_class[1], (4 * first[1] + 4 * second[1]) / 8, **CLOSE)
    torch.testing.assert_close(by_class[2:], second[2:], **CLOSE)
    assert (found["mean site"], found["best site"]) == ((1.5, 0.0), (2.0, 0.0))


def test_an_interrupted_study_goes_on(tmp_path):
    """With other cells, too, but not with other options."""
    options = argparse.Namespace(json=tmp_path / "a.json", model="tiny", seeds=[1, 2])
    done = []

    def measured(seed):
        if seed == 3:
            raise DataError("interrupted")
        done.append(seed)
        return [{"seed": seed}]

    with pytest.raises(DataError):
        resumed(options, [(1,), (2,), (3,)], measured, choosing=["seeds"])
    options.seeds = [1]
    kept = (tmp_path / "a.partial").read_bytes()
    assert resumed(options, [(2,)], measured, choosing=["seeds"]) == [{"seed": 2}]
    assert done == [1, 2]
    assert json.loads((tmp_path / "a.json").read_text())["rows"] == [{"seed": 2}]
    assert not (tmp_path / "a.partial").exists()
    (tmp_path / "a.partial").write_bytes(kept)
    options.model = "other"
    resumed(options, [(2,)], measured, choosing=["seeds"])
    assert done == [1, 2, 2]

"""Classifiers learned apart and fused: against the joint fit, over different classes, and what is refused."""

import copy
import dataclasses

import numpy as np
import pytest
import torch

from kalmanclip import KalmanCLIP
from kalmanclip.data import read_folder
from kalmanclip.encoders import LowRankConfig
from kalmanclip.errors import ConfigError
from kalmanclip.methods import ClassResidualsConfig, Kalman, preset
from kalmanclip.methods.fusion import fuse_methods

from .conftest import shape_picture

SHAPES = ("circle", "square", "triangle")
QUICK = {
    "default": ClassResidualsConfig(crops=2),
    "head": dataclasses.replace(preset("head"), epochs=1, low_rank=LowRankConfig(rank=2)),
}
every_kind = pytest.mark.parametrize("kind", QUICK)


@pytest.fixture(scope="module")
def pictures():
    """Lists of images and labels: two sites with all classes, and images to ask about."""

    def some(begin, count):
        pairs = [(shape_picture(s, 1000 * c + i), s) for c, s in enumerate(SHAPES) for i in range(begin, begin + count)]
        return [image for image, _ in pairs], [name for _, name in pairs]

    return {"first": some(0, 4), "second": some(4, 4), "test": some(8, 10)}


def only(part, *names):
    images, labels = part
    kept = [i for i, label in enumerate(labels) if label in names]
    return [images[i] for i in kept], [labels[i] for i in kept]


def site(tiny, part, kind="default", **options):
    config = dataclasses.replace(QUICK[kind], **options)
    return KalmanCLIP(tiny, config).partial_fit(*part)


@every_kind
def test_fused_knows_what_both_know(tiny, pictures, kind, tmp_path):
    first, second = (site(tiny, pictures[name], kind) for name in ("first", "second"))
    before = first.predict_proba(pictures["test"][0][:3])
    fused = KalmanCLIP.fuse([first, second])
    assert fused.class_names_ == first.class_names_ == list(SHAPES)
    alone = min(part.score(*pictures["test"]) for part in (first, second))
    assert fused.score(*pictures["test"]) >= alone
    assert (first.predict_proba(pictures["test"][0][:3]) == before).all()  # the parts stay as they are
    # an ordinary classifier: it is stored, predicts and learns on
    again = KalmanCLIP.load(fused.save(tmp_path / "fused.adapter"), tiny)
    assert (again.predict_proba(pictures["test"][0]) == fused.predict_proba(pictures["test"][0])).all()
    assert again.notes_ == {"fused": 2}
    again.partial_fit([shape_picture("circle", 77)], ["circle"])
    assert again.predict_full(pictures["test"][0][:2]).std.isfinite().all()


def test_fused_halves_are_nearly_the_joint_fit(tiny, pictures):
    config = {"prior_std": 0.15}
    first, second = (site(tiny, pictures[name], **config) for name in ("first", "second"))
    both = [pictures["first"][i] + pictures["second"][i] for i in (0, 1)]
    joint = site(tiny, both, **config)
    fused = KalmanCLIP.fuse([first, second])
    ask = pictures["test"][0]
    apart = [abs(clf.predict_proba(ask) - joint.predict_proba(ask)).mean() for clf in (fused, first, second)]
    assert apart[0] < 0.5 * min(apart[1:])
    assert fused.method_.residuals.prior_std == pytest.approx(0.15)
    torch.testing.assert_close(fused.method_.residuals.root, joint.method_.residuals.root, rtol=1e-3, atol=1e-4)
    assert fused.method_.residuals.statistics.count.tolist() == [8, 8, 8]


def test_sites_with_different_classes(tiny, pictures):
    """A class of one site keeps what is known of it, and is told from those of the other."""
    here = site(tiny, only(pictures["first"], "circle", "square"))
    there = site(tiny, only(pictures["first"], "triangle", "square"))
    fused = KalmanCLIP.fuse([here, there])
    assert fused.class_names_ == ["circle", "square", "triangle"]
    assert fused.method_.residuals.statistics.count.tolist() == [4, 8, 4]
    zero_shot = KalmanCLIP(tiny).set_classes(fused.class_names_)
    assert fused.score(*pictures["test"]) > zero_shot.score(*pictures["test"])
    swapped = KalmanCLIP.fuse([there, here])
    assert swapped.class_names_ == ["square", "triangle", "circle"]
    order = [swapped.class_names_.index(name) for name in fused.class_names_]
    ask = pictures["test"][0]
    assert abs(swapped.predict_proba(ask)[:, order] - fused.predict_proba(ask)).max() < 0.02


def test_spellings_of_a_class_are_one_class(tiny, pictures):
    here = site(tiny, only(pictures["first"], "circle", "square"))
    images, labels = only(pictures["second"], "circle", "triangle")
    there = site(tiny, (images, [label.upper() for label in labels]))
    assert KalmanCLIP.fuse([here, there]).class_names_ == ["circle", "square", "TRIANGLE"]


def test_low_rank_beliefs_fuse_as_the_product_of_their_gaussians(tiny, pictures):
    first, second = (site(tiny, pictures[name], "head").method_ for name in ("first", "second"))
    fused = fuse_methods([first, second])
    assert first.prior_variance != second.prior_variance  # each measured its own
    assert fused.prior_variance == pytest.approx((first.prior_variance * second.prior_variance) ** 0.5)
    start = Kalman(tiny, first.config).encoder.theta.double()
    precisions = [1 / part.filter.belief.s.double() for part in (first, second)]
    seen = [p - 1 / part.prior_variance for p, part in zip(precisions, (first, second), strict=True)]
    total = 1 / fused.prior_variance + sum(seen)
    pull = sum(p * (part.encoder.theta.double() - start) for p, part in zip(precisions, (first, second), strict=True))
    torch.testing.assert_close(fused.encoder.theta.double(), start + pull / total, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(fused.filter.belief.s.double(), 1 / total, rtol=1e-4, atol=0)
    assert fused.filter.belief.mean.data_ptr() == fused.encoder.theta.data_ptr()
    assert fused.filter.steps == first.filter.steps + second.filter.steps


def test_sites_whose_priors_are_ten_times_apart(tiny, pictures):
    """What each has seen is what it knows beyond *its* prior; it is added to the geometric mean of both."""
    first = site(tiny, pictures["first"], "head", prior_variance=2e-2).method_
    second = site(tiny, pictures["second"], "head", prior_variance=2e-3).method_
    fused = fuse_methods([first, second])
    common = 2e-2 * 10**-0.5
    assert fused.prior_variance == pytest.approx(common)
    start = Kalman(tiny, first.config).encoder.theta.double().numpy()
    s = [part.filter.belief.s.double().numpy() for part in (first, second)]
    shift = [part.encoder.theta.double().numpy() - start for part in (first, second)]
    seen = (1 / s[0] - 1 / 2e-2) + (1 / s[1] - 1 / 2e-3)
    assert (seen * common).max() > 0.1  # some parameters are known better than by any prior
    total = 1 / common + seen
    np.testing.assert_allclose(fused.filter.belief.s.numpy(), 1 / total, rtol=1e-4)
    expected = start + (shift[0] / s[0] + shift[1] / s[1]) / total
    np.testing.assert_allclose(fused.encoder.theta.numpy(), expected, rtol=1e-4, atol=1e-6)


def test_residuals_of_sites_whose_priors_are_ten_times_apart(tiny, pictures):
    """Twelve images with 0.05 and six with 0.5: the geometric mean, by images."""
    few = tuple(values[::2] for values in pictures["second"])
    first = site(tiny, pictures["first"], prior_std=0.05)
    second = site(tiny, few, prior_std=0.5)
    assert [len(pictures["first"][0]), len(few[0])] == [12, 6]
    fused = KalmanCLIP.fuse([first, second])
    assert fused.method_.residuals.prior_std == pytest.approx(0.05 * 10 ** (1 / 3))


def test_what_must_agree(tiny, pictures):
    few = only((pictures["first"][0][::2], pictures["first"][1][::2]), *SHAPES)
    default = site(tiny, few)
    head = site(tiny, few, "head")
    for other, what in [
        (head, "method"),
        (KalmanCLIP(tiny, QUICK["default"], templates=["{}"]).partial_fit(*few), "templates"),
        (site(tiny, few, crops=0, gain_std=0.1), "gain_std"),
    ]:
        with pytest.raises(ConfigError, match=f"agree in the {what}.*classifier 2"):
            KalmanCLIP.fuse([default, other])
    with pytest.raises(ConfigError, match="agree in the seed"):
        KalmanCLIP.fuse([head, site(tiny, few, "head", seed=1)])
    elsewhere = site(copy.copy(tiny), few)
    elsewhere.backbone_.__dict__["hash"] = "0" * 64
    with pytest.raises(ConfigError, match="agree in the backbone"):
        KalmanCLIP.fuse([default, elsewhere])
    untaught = KalmanCLIP(tiny, QUICK["default"], templates=default.templates).set_classes(["circle", "square"])
    with pytest.raises(ConfigError, match="learned nothing"):
        KalmanCLIP.fuse([default, untaught])
    with pytest.raises(ConfigError, match="at least one"):
        KalmanCLIP.fuse([])
    both = KalmanCLIP(tiny, dataclasses.replace(preset("joint"), steps=1)).partial_fit(*few)
    with pytest.raises(ConfigError, match="the preset 'joint' cannot be fused"):
        KalmanCLIP.fuse([both, both])


@pytest.mark.slow
def test_split_shots_of_real_images(tiny, shared_data):
    """EuroSAT, 8 + 8 shots: fused, they know more than each, and nearly as much as together."""
    from benchmarks.development import development
    from benchmarks.fusion import by_classes, fitted, halves

    task, _ = development(shared_data / "eurosat", 16, 1)
    test = read_folder(shared_data / "eurosat" / "test")

    def accuracy(method):
        number = [method.class_names.index(name) for name in test.class_names]
        return (method.logits(test.sources)[:, number].argmax(dim=1) == torch.tensor(test.labels)).double().mean()

    sites = [fitted("default", tiny, task, part) for part in halves(task.train)]
    joint = accuracy(fitted("default", tiny, task, task.train))
    fused = accuracy(fuse_methods(sites))
    assert fused > max(map(accuracy, sites)) - 0.01
    assert fused > joint - 0.05
    apart = [fitted("default", tiny, task, part) for part in by_classes(task.train, 1)]
    assert accuracy(fuse_methods(apart)) > joint - 0.1

"""Predictions averaged over the belief, for every kind of parameters."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from kalmanclip import KalmanCLIP
from kalmanclip.data import FewShotTask, LabelledImages, read_folder
from kalmanclip.encoders import LowRankConfig, SimilarityJacobian
from kalmanclip.encoders.features import frozen_activations
from kalmanclip.errors import ConfigError, DataError
from kalmanclip.methods import ClassResidualsConfig, JointConfig, Kalman, KalmanConfig, joint, kalman, make_classifier
from kalmanclip.prediction import TYPICAL_SCALE

HEAD = KalmanConfig(epochs=1, batch_size=5, low_rank=LowRankConfig(rank=2), prior_std=0.1)
TOWERS = dataclasses.replace(HEAD, low_rank=LowRankConfig(placement="towers", last_blocks=1, rank=2))
CLASSES = ClassResidualsConfig(crops=0)
BOTH = JointConfig(
    low_rank=LowRankConfig(placement="towers", towers=("image",), last_blocks=1, rank=2, learn_a=False),
    steps=2,
    batch_size=4,
    residuals=CLASSES,
)
KINDS = {"head": HEAD, "towers": TOWERS, "classes": CLASSES, "both": BOTH}


@pytest.fixture(scope="module")
def task(shapes):
    return FewShotTask(read_folder(shapes))


@pytest.fixture(scope="module")
def methods(tiny, task):
    found = {}
    for name, config in KINDS.items():
        found[name] = make_classifier(tiny, config)
        found[name].fit(task)
    return found


@pytest.fixture(params=list(KINDS))
def method(request, methods):
    return methods[request.param]


@pytest.mark.parametrize("how", ["linearised", "sampled", "mean"])
def test_it_is_a_distribution_about_every_image(method, task, how):
    prediction = method.predict(task.train.sources, how=how, samples=8)
    assert len(prediction) == len(task.train)
    assert prediction.class_names == tuple(task.class_names)
    torch.testing.assert_close(prediction.probabilities.sum(dim=1), torch.ones(15))
    torch.testing.assert_close(prediction.mean, method.logits(task.train.sources), atol=1e-3, rtol=1e-4)
    assert (prediction.aleatoric >= 0).all()
    averages = how != "mean"
    assert ((prediction.epistemic > 0) == averages).all()
    assert ((prediction.std > 0) == averages).all()
    assert method.predict([], how=how).probabilities.shape == (0, 3)


def test_the_mean_alone_is_the_softmax_of_the_logits(method, task):
    prediction = method.predict(task.train.sources, how="mean")
    torch.testing.assert_close(prediction.probabilities, method.logits(task.train.sources).softmax(dim=1))


def test_the_same_call_gives_the_same_numbers(method, task):
    for how in ("linearised", "sampled"):
        one, other = (method.predict(task.train.sources[:3], how=how, samples=4) for _ in range(2))
        assert torch.equal(one.probabilities, other.probabilities)


@pytest.mark.parametrize("kind", ["head", "towers"])
def test_the_covariance_of_the_logits_is_that_of_the_dense_jacobian(tiny, methods, task, kind, monkeypatch):
    """``J Sigma J^T`` of an image, from C rows of n derivatives, beside that of many directions."""
    method = methods[kind]
    count = {"head": 400, "towers": 60}[kind]
    monkeypatch.setitem(kalman.DIRECTIONS, kind, count)
    (activations,) = frozen_activations(method.encoder, task.train.sources[:1])
    with torch.no_grad():
        logits = method.linearized(scaled=False)(activations)
    rows = SimilarityJacobian(method.encoder, activations, method.texts).rows(torch.eye(3).unsqueeze(0))
    expected = tiny.logit_scale**2 * method.filter.belief.project(rows)
    found = logits.shared[0] @ logits.shared[0].mT
    size = expected.diagonal().max().sqrt() * expected.diagonal().sqrt()
    assert ((found - expected).abs() < 4 * (2 / count) ** 0.5 * size).all()  # four standard errors
    (belief,) = method.linearized_batches(task.train.sources[:1], scaled=False)
    torch.testing.assert_close(belief.std[0], logits.std[0], rtol=1e-4, atol=0)


def test_a_narrow_belief_is_linear(method, task, monkeypatch):
    """Where the belief is narrow, sampling the parameters and drawing the linearised logits say the same."""
    monkeypatch.setitem(kalman.DIRECTIONS, "towers", 60)
    monkeypatch.setattr(joint, "DRAWS_SCALE", 1e-7)
    if isinstance(method, Kalman):
        monkeypatch.setattr(method, "covariance_scale", 1e-7)
    images = task.train.sources[::6]
    linear = method.predict(images, samples=400)
    drawn = method.predict(images, how="sampled", samples=200 if method.config is not TOWERS else 60)
    torch.testing.assert_close(drawn.std, linear.std, rtol=0.35, atol=1e-3)
    torch.testing.assert_close(drawn.probabilities, linear.probabilities, atol=0.02, rtol=0)


def test_class_residuals_are_sampled_with_their_covariance(methods, task):
    """Logits are linear in the residuals: many draws have the variance that `variance` has in closed form."""
    method = methods["classes"]
    drawn = method.predict(task.train.sources[:2], how="sampled", samples=3000)
    linear = method.predict(task.train.sources[:2])
    torch.testing.assert_close(drawn.std, linear.std, rtol=0.08, atol=0)
    torch.testing.assert_close(drawn.probabilities, linear.probabilities, atol=0.03, rtol=0)


def test_the_covariance_scale_comes_from_held_out_images(methods, tiny, task):
    fitted = methods["classes"].residuals.covariance_scale
    assert TYPICAL_SCALE / 128 <= fitted <= TYPICAL_SCALE * 128
    one_each = LabelledImages(task.train.sources[::5], task.train.labels[::5], task.class_names)
    alone = make_classifier(tiny, CLASSES)
    alone.fit(FewShotTask(one_each))
    assert alone.residuals.covariance_scale == TYPICAL_SCALE  # nothing can be held out


def test_validation_images_decide_how_much_is_averaged(tiny, task):
    """Labels that contradict a classifier ask for more width, labels that agree with it for less."""
    for shift, wider in ((0, False), (1, True)):
        method = Kalman(tiny, HEAD)
        method.fit(task)
        guess = (method.logits(task.train.sources).argmax(dim=1) + shift) % 3
        before = method.covariance_scale
        factor = method.fit_covariance_scale(LabelledImages(task.train.sources, guess.tolist(), task.class_names))
        assert method.covariance_scale == pytest.approx(before * factor)
        assert (factor > 1) == wider
        assert factor != 1


def test_bad_calls(tiny, methods, task):
    with pytest.raises(ConfigError, match="fit first"):
        Kalman(tiny).predict([])
    with pytest.raises(ConfigError, match="fit first"):
        Kalman(tiny).fit_covariance_scale(task.train)
    with pytest.raises(ConfigError, match="linearised, sampled, mean"):
        methods["classes"].predict([], how="laplace")
    for samples in (1, 2.0):
        with pytest.raises(ConfigError, match="samples"):
            methods["classes"].predict([], samples=samples)
    with pytest.raises(DataError, match="classes of the classifier"):
        methods["classes"].fit_covariance_scale(LabelledImages(task.train.sources, task.train.labels, ["a", "b", "c"]))
    with pytest.raises(DataError, match="at least one image"):
        methods["classes"].fit_covariance_scale(LabelledImages([], [], task.class_names))


@pytest.mark.parametrize("config", [CLASSES, HEAD], ids=["classes", "head"])
def test_the_covariance_scale_is_saved(tiny, shapes, tmp_path, config):
    clf = KalmanCLIP(tiny, config).fit(shapes)
    part = clf.method_.residuals if config is CLASSES else clf.method_
    part.covariance_scale = 0.123456789012345
    again = KalmanCLIP.load(clf.save(tmp_path / "a"), tiny)
    one, other = (c.predict_full(shapes / "circle") for c in (clf, again))
    assert torch.equal(one.probabilities, other.probabilities)
    assert torch.equal(one.epistemic, other.epistemic)
    assert list(one.labels) == list(np.array(clf.class_names_)[one.probabilities.argmax(dim=1)])


def test_averaging_costs_little_confidence_where_the_model_is_right(methods, task):
    labels = torch.tensor(task.train.labels)
    method = methods["classes"]
    plain = F.cross_entropy(method.logits(task.train.sources), labels)
    averaged = F.nll_loss(method.predict(task.train.sources).probabilities.log(), labels)
    assert averaged < plain + 0.1

"""A filter inside the image tower beside class residuals: what it learns from, keeps, predicts and refuses."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
import torch

import kalmanclip.estimator
from kalmanclip import KalmanCLIP
from kalmanclip.adapter import save_adapter
from kalmanclip.data import FewShotTask, LabelledImages, read_folder
from kalmanclip.data.embedding import Embedding
from kalmanclip.encoders import LowRankConfig
from kalmanclip.encoders.features import crop_features, frozen_activations
from kalmanclip.encoders.jacobian import image_rows
from kalmanclip.errors import AdapterError, ConfigError, NumericalError
from kalmanclip.methods import ClassResidualsConfig, Joint, JointConfig, joint, make_classifier, preset
from kalmanclip.methods.joint import SEEN, Order

LOW_RANK = LowRankConfig(placement="towers", towers=("image",), targets=("q", "v", "mlp"), rank=2, last_blocks=1)
SMALL = JointConfig(
    low_rank=dataclasses.replace(LOW_RANK, learn_a=False),
    steps=2,
    batch_size=4,
    residuals=ClassResidualsConfig(crops=1, folds=2, prior_std=0.2),
)


@pytest.fixture(scope="module")
def task(shapes):
    return FewShotTask(read_folder(shapes))


def fitted(tiny, task, config=SMALL, progress=lambda *_: None):
    method = make_classifier(tiny, config)
    method.fit(task, progress)
    return method


@pytest.fixture(scope="module", autouse=True)
def few_steps():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joint, "LEAST_PASSES", 1)
        yield


@pytest.fixture(scope="module")
def whole(tiny, task, few_steps):
    """A finished fit; tests must not change it."""
    return fitted(tiny, task)


# --- how many steps; which images, in which order


@pytest.mark.parametrize(
    ("counts", "steps"),
    [
        ([4] * 37, 15 * 4),
        ([16] * 10, 15 * 16),
        ([4] * 10 + [0] * 5, 15 * 4),  # a class without images changes nothing
        ([1] * 9 + [91], 15 * 10),  # nor does one that has nearly all of them
        ([16] * 1000, 3 * 16_000 // 32),  # every image three times
        ([1], 15),
    ],
)
def test_steps_grow_with_the_images_of_a_class_and_see_every_image(monkeypatch, counts, steps):
    monkeypatch.setattr(joint, "LEAST_PASSES", 3)
    assert JointConfig().steps_for(counts) == steps


@pytest.mark.parametrize(("count", "size"), [(5, 4), (10, 4), (7, 7), (3, 1), (33, 32)])
def test_no_image_twice_in_a_batch_and_all_equally_often(count, size):
    order, seen, numbers = Order(count, size, 3), torch.zeros(count, dtype=torch.long), set()
    for _ in range(60):
        batch, number = order.draw()
        assert len(set(batch.tolist())) == size
        numbers.add(number)
        seen[batch] += 1
        assert seen.max() - seen.min() <= 1
    assert len(numbers) == 60  # never the same crop of an image
    again, other = Order(count, size, 3), Order(count, size, 4)
    first = [again.draw()[0].tolist() for _ in range(4)]
    replay = Order(count, size, 3)
    assert first == [replay.draw()[0].tolist() for _ in range(4)]
    assert count == size or first != [other.draw()[0].tolist() for _ in range(4)]


# --- learning inside the tower


def test_the_prior_of_every_layer_moves_similarities_alike(tiny, task):
    method = make_classifier(tiny, dataclasses.replace(SMALL, prior_std=0.4))
    method.set_classes(task.class_names, task.templates)
    (images,) = frozen_activations(method.encoder, task.train.sources)
    labels = torch.tensor(task.train.labels)
    method.encoder.start_principal(images)
    method._begin(images, labels)
    texts = method.residuals.T[labels]
    _, H, _ = image_rows(method.encoder, images, lambda f: ((f * texts).sum(dim=1), texts))
    spread = H.square().mean(dim=0) * method.filter.belief.marginal_variance()
    shares = torch.stack([part.sum() for part in spread.split(method.encoder.groups)])
    torch.testing.assert_close(shares, torch.full_like(shares, 0.4**2 / len(shares)))


def test_the_tower_is_the_average_over_the_second_half_of_the_steps(tiny, task):
    method, means = make_classifier(tiny, SMALL), []

    def look(stage, done, total):
        if stage.startswith("adapting"):
            means.append(method.encoder.theta.clone())

    method.fit(task, look)
    assert len(means) == 2 * 5
    torch.testing.assert_close(method.encoder.theta, torch.stack(means[5:]).mean(dim=0))
    assert means[4].norm() > 0
    assert method.filter.belief.mean.data_ptr() == method.encoder.theta.data_ptr()
    assert (method.filter.steps, method.filter.skipped) == (10, 0)


def test_a_single_step_is_its_own_average(tiny, task):
    one_each = FewShotTask(task.train.subset([0, 5, 10]))
    method = fitted(tiny, one_each, dataclasses.replace(SMALL, steps=1))
    assert method.filter.steps == 1
    assert method.encoder.theta.norm() > 0


def test_it_is_observed_as_the_others_classify_it(tiny, task, monkeypatch):
    """The first step's innovation: the deviance of each image by the texts and the other images, in the first crops."""
    seen = []
    original = joint.LeaveOneOut.deviance

    def spy(self, f, positions):
        residual, slope = original(self, f, positions)
        seen.append((self.logits(f, positions), self.labels[positions], residual))
        return residual, slope

    monkeypatch.setattr(joint.LeaveOneOut, "deviance", spy)
    method = fitted(tiny, task)
    logits, labels, residual = seen[0]
    expected = (2 * torch.nn.functional.cross_entropy(logits, labels, reduction="none")).sqrt()
    torch.testing.assert_close(residual, expected)
    assert method.history[0].innovation == pytest.approx(float(expected.norm()), rel=1e-4)


def test_all_steps_skipped_is_an_error(tiny, task, monkeypatch):
    nan = lambda self, f, positions: (f[:, 0] * math.nan, f * math.nan)  # noqa: E731
    monkeypatch.setattr(joint.LeaveOneOut, "deviance", nan)
    with pytest.raises(NumericalError, match="All 10 steps were skipped"):
        fitted(tiny, task)


def test_centre_crops_are_an_option(tiny, task):
    fixed = dataclasses.replace(SMALL, crop_scale=None)
    method = make_classifier(tiny, fixed)
    seen = [batch.activations[0][batch.positions == 3] for batch in _batches(method, task, 10)]
    shown = [row for row in seen if len(row)]
    assert len(shown) > 1
    assert all(torch.equal(row, shown[0]) for row in shown)
    method.fit(task)
    assert method.encoder.theta.norm() > 0
    with pytest.raises(ConfigError, match="crop_scale"):
        JointConfig(crop_scale=(0.5, 0.1))


# --- the residuals on both kinds of embeddings


def test_residuals_of_untouched_embeddings_are_those_of_the_other_preset(tiny, task, whole):
    alone = fitted(tiny, task, SMALL.residuals)
    torch.testing.assert_close(whole.residuals.belief.mean, alone.residuals.belief.mean, rtol=1e-3, atol=1e-5)
    assert whole.expected_accuracy == alone.expected_accuracy


def test_residuals_of_adapted_embeddings_are_narrower(tiny, task, whole):
    assert whole.adapted.prior_std == pytest.approx(SEEN * whole.residuals.prior_std)
    assert whole.adapted.generative == pytest.approx(SEEN * whole.residuals.generative)
    crops = crop_features(whole.encoder, task.train.sources, SMALL.residuals, 0)
    means = torch.stack([crops[c * 5 : c * 5 + 5].mean(dim=(0, 1)) for c in range(3)])
    torch.testing.assert_close(whole.adapted.statistics.means, means, rtol=1e-4, atol=1e-5)


def test_the_logits_are_those_of_both_kinds_by_their_shares(tiny, task, whole):
    assert whole.shares == (0.5, 0.5 * 5 / 6)
    (images,) = frozen_activations(whole.encoder, task.train.sources[:4])
    with torch.no_grad():
        f, g = whole._untouched().encode_images(images), whole.encoder.encode_images(images)
    expected = whole.residuals.logits(f) / 2 + 5 / 12 * whole.adapted.logits(g)
    torch.testing.assert_close(whole.logits(task.train.sources[:4]), expected, rtol=1e-4, atol=1e-4)
    assert (f - g).abs().max() > 1e-4


def test_before_anything_is_learned_it_is_the_text(tiny, task):
    method, alone = make_classifier(tiny, SMALL), make_classifier(tiny, SMALL.residuals)
    for one in (method, alone):
        one.set_classes(task.class_names, task.templates)
    images = task.train.sources[:3]
    torch.testing.assert_close(method.logits(images), alone.logits(images), rtol=1e-4, atol=1e-3)
    assert not method.fitted


def test_draws_agree_with_the_linearised_belief(task, whole):
    images = task.train.sources[::4]
    linear, drawn = whole.predict(images), whole.predict(images, how="sampled", samples=400)
    torch.testing.assert_close(drawn.probabilities, linear.probabilities, atol=0.03, rtol=0)
    assert (drawn.std / linear.std).median() == pytest.approx(1, abs=0.25)


def test_no_activations_are_encoded_twice(whole, task):
    (images,) = frozen_activations(whole.encoder, task.train.sources[:2])
    encoder = whole._untouched()
    assert encoder.encode_images(images) is encoder.encode_images(images)
    (others,) = frozen_activations(whole.encoder, task.train.sources[2:4])
    assert not torch.equal(encoder.encode_images(others), encoder.encode_images(images))


# --- learning on


def test_more_images_leave_the_tower_where_it_is(tiny, task):
    method = fitted(tiny, task)
    theta, untouched, adapted = (
        t.clone() for t in (method.encoder.theta, method.residuals.belief.mean, method.adapted.belief.mean)
    )
    assert method.update(task.train.subset([0, 5, 10])) == []
    assert torch.equal(method.encoder.theta, theta)
    assert not torch.equal(method.residuals.belief.mean, untouched)
    assert not torch.equal(method.adapted.belief.mean, adapted)


def test_a_class_without_images_and_a_new_one(tiny, task):
    """The first is told by its text; images of it may come later."""
    train = LabelledImages(task.train.sources[:10], task.train.labels[:10], task.class_names)
    method = fitted(tiny, FewShotTask(train))
    assert method.adapted.statistics.count.tolist() == [5, 5, 0]
    assert method.shares == (0.5, 0.5 * 5 / 6)
    assert method.logits(task.train.sources).isfinite().all()
    before = method.logits(task.train.sources[10:])[:, 2].mean()
    method.update(task.train.subset(range(10, 15)))
    assert method.logits(task.train.sources[10:])[:, 2].mean() > before
    five = [*task.class_names, "moon"]
    method.set_classes(five, task.templates)
    assert method.logits(task.train.sources[:2]).shape == (2, 4)


def test_one_image_of_each_class(tiny, task):
    """Nothing can be held out: the typical prior, and gains; fewer images than a batch."""
    config = dataclasses.replace(SMALL, batch_size=32, residuals=ClassResidualsConfig(crops=0))
    method = fitted(tiny, FewShotTask(task.train.subset([0, 5, 10])), config)
    assert method.shares == (0.5, 0.25)
    assert method.expected_accuracy is None
    assert method.predict(task.train.sources).probabilities.isfinite().all()


# --- saving


def test_all_is_saved(tiny, shapes, tmp_path):
    clf = KalmanCLIP(tiny, SMALL).fit(shapes)
    again = KalmanCLIP.load(clf.save(tmp_path / "a"), tiny)
    assert torch.equal(again.method_.encoder.fixed, clf.method_.encoder.fixed)
    assert not torch.equal(clf.method_.encoder.fixed, make_classifier(tiny, SMALL).encoder.fixed)
    for how in ("linearised", "sampled"):
        one, other = (c.predict_full(shapes, how=how, samples=5) for c in (clf, again))
        assert torch.equal(one.mean, other.mean)
        assert torch.equal(one.std, other.std)
    more = [shapes / "circle" / "1.png", shapes / "square" / "2.png"], ["oval", "square"]
    one, other = (c.partial_fit(*more).predict_proba(shapes) for c in (clf, again))
    assert np.array_equal(one, other)


@pytest.mark.parametrize("change", ["fixed", "belief.mean"])
def test_parameters_that_do_not_fit_are_refused(whole, tiny, change):
    state = whole.state_dict()
    state.tensors[change] = state.tensors[change][:-1]
    with pytest.raises(ConfigError, match="do not fit"):
        make_classifier(tiny, SMALL).load_state_dict(state, whole.class_names, whole.templates)


def test_an_adapter_of_the_older_joint_method_says_so(tiny, whole, tmp_path):
    folder = save_adapter(tmp_path / "a", whole)
    file = folder / "adapter.json"
    content = json.loads(file.read_text())
    content["config"] = {"kalman": {}, "residuals": {}}
    file.write_text(json.dumps(content))
    with pytest.raises(AdapterError, match=r"older version.*Fit again"):
        KalmanCLIP.load(folder, tiny)


# --- what it cannot do, and what to do instead


def test_what_it_cannot_do_says_what_to_do(whole, tiny, task, tmp_path):
    with pytest.raises(ConfigError, match=r"both are written.*--format onnx"):
        whole.class_weights()
    embeddings = [Embedding(np.ones(tiny.width, dtype=np.float32) * i) for i in (1, 2)]
    given = FewShotTask(LabelledImages(embeddings, [0, 1], ["a", "b"]))
    with pytest.raises(ConfigError, match=r"only embeddings.*'residuals' or 'head'"):
        make_classifier(tiny, SMALL).fit(given)
    with pytest.raises(ConfigError, match="'residuals'"):
        whole.describe({"circle": ["round"]})


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"low_rank": LowRankConfig()}, "inside the image tower"),
        ({"low_rank": dataclasses.replace(LOW_RANK, towers=("image", "text"))}, "inside the image tower"),
        ({"low_rank": ClassResidualsConfig()}, "must be a LowRankConfig"),
        ({"residuals": LOW_RANK}, "must be a ClassResidualsConfig"),
        ({"steps": 0}, "steps"),
        ({"batch_size": 0}, "batch_size"),
        ({"step_size": 2.0}, "step_size"),
        ({"prior_std": -1.0}, "prior_std"),
    ],
)
def test_bad_options(bad, message):
    with pytest.raises(ConfigError, match=message):
        JointConfig(**bad)


def test_the_default_on_a_gpu(tiny, shapes, monkeypatch):
    """Chosen where the tower can be adapted: for all images of a fit, not for images that come one by one."""
    monkeypatch.setattr(kalmanclip.estimator, "usual_preset", lambda device, images, together: "joint" * images)
    made = KalmanCLIP(tiny)._new_method
    images = read_folder(shapes).sources
    assert isinstance(made(images), Joint)
    monkeypatch.setattr(kalmanclip.estimator, "usual_preset", lambda *given: seen.append(given[1:]) or "residuals")
    seen = []
    made()
    made([Embedding(np.ones(tiny.width, dtype=np.float32))])
    KalmanCLIP(tiny, descriptions={"circle": ["round"]})._new_method(images)
    assert seen == [(False, False)] * 3
    monkeypatch.setattr(kalmanclip.estimator, "usual_preset", lambda *given: "joint")
    monkeypatch.setattr(kalmanclip.estimator, "supports_low_rank", lambda *given: False)
    assert made(images).config == preset("residuals")


def _batches(method, task, count):
    return list(itertools.islice(method._batches(task.train, lambda *_: None), count))


def test_all_batches_come_in_fresh_crops(tiny, task):
    first, second = _batches(make_classifier(tiny, dataclasses.replace(SMALL, batch_size=15)), task, 2)
    rows = [{int(p): row for p, row in zip(b.positions, b.activations[0], strict=True)} for b in (first, second)]
    assert sorted(rows[0]) == sorted(rows[1]) == list(range(15))
    assert all(not torch.allclose(rows[0][i], rows[1][i], atol=1e-2) for i in range(15))

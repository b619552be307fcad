"""The method over low-rank parameters: prior in observation units, order, regulation, uncertainty, every option.

With class residuals beside them where both meet; the residuals by themselves are in `test_classes`.
"""

import dataclasses
from itertools import chain

import pytest
import torch

from kalmanclip.data import FewShotTask, LabelledImages, read_folder
from kalmanclip.encoders import LowRankConfig
from kalmanclip.encoders.features import ActivationStore, decoded, frozen_activations
from kalmanclip.errors import ConfigError, DataError, NumericalError
from kalmanclip.filtering import FilterConfig, NoiseConfig
from kalmanclip.methods import (
    ClassResidualsConfig,
    Kalman,
    KalmanConfig,
    make_classifier,
    preset,
    silent,
)
from kalmanclip.observation import LIKELIHOODS, make_likelihood, observe

QUICK = KalmanConfig(epochs=2, batch_size=4, low_rank=LowRankConfig(rank=2))


@pytest.fixture(scope="module")
def task(shapes):
    return FewShotTask(read_folder(shapes))


def fitted(tiny, task, config=QUICK):
    method = make_classifier(tiny, config)
    method.fit(task)
    return method


@pytest.mark.parametrize("observation", list(LIKELIHOODS))
def test_every_observation_runs(tiny, task, observation):
    method = fitted(tiny, task, dataclasses.replace(QUICK, observation=observation))
    assert len(method.history) == 2 * 4  # fifteen images: three batches of four and a short one
    assert method.filter.skipped == 0
    assert torch.isfinite(method.encoder.theta).all()
    assert method.logits(task.train.sources).shape == (15, 3)


@pytest.mark.parametrize(
    ("belief", "options"),
    [("diagonal", {}), ("diagonal", {"update": "precision"}), ("block", {}), ("low_rank", {"rank": 4}), ("dense", {})],
)
def test_every_belief_runs(tiny, task, belief, options):
    config = dataclasses.replace(QUICK, belief=belief, belief_options=options, low_rank=LowRankConfig(rank=1), epochs=1)
    method = fitted(tiny, task, config)
    assert method.filter.skipped == 0
    assert (method.filter.belief.marginal_variance() > 0).all()


@pytest.mark.parametrize("observation", ["cosine", "bounded"])
def test_parameters_inside_the_towers(tiny, task, observation):
    config = dataclasses.replace(
        QUICK, observation=observation, low_rank=LowRankConfig(placement="towers", last_blocks=1, rank=2), epochs=1
    )
    method = fitted(tiny, task, config)
    assert method.filter.skipped == 0
    assert method.encoder.n == 3 * 2 * (192 + 192) + 3 * 2 * (128 + 128)


@pytest.mark.parametrize("config", [preset("default"), preset("head")], ids=["default", "head"])
def test_it_learns_shapes(tiny, task, config):
    before = make_classifier(tiny, config)
    before.set_classes(task.class_names, task.templates)
    labels = torch.tensor(task.train.labels)

    def loss(method):
        return torch.nn.functional.cross_entropy(method.logits(task.train.sources), labels).item()

    method = fitted(tiny, task, config)
    assert loss(method) < 0.5 * loss(before)


def test_the_prior_is_in_units_of_similarity(tiny, task):
    """mean diag(H Sigma_0 H^T) of the first batch's similarities is prior_std squared."""
    method = Kalman(tiny, dataclasses.replace(QUICK, prior_std=0.17))
    method.set_classes(task.class_names, task.templates)
    store = method._read(task.train, silent, True)
    batch = torch.arange(4)
    labels = torch.tensor(task.train.labels)[batch]
    kalman = method._prior(store(batch, 0), labels)
    seen = observe(method.encoder, make_likelihood("cosine"), store(batch, 0), labels, method.texts)
    assert kalman.belief.project(seen.H).diagonal().mean().sqrt().item() == pytest.approx(0.17, rel=1e-4)


def test_the_papers_settings_are_the_defaults():
    """Scaling factor 0.1, forgetting factor 0.98, batches of ten: the section on experiments."""
    config = KalmanConfig()
    assert (config.filter.alpha, config.noise.beta, config.batch_size) == (0.1, 0.98, 10)
    assert (FilterConfig().alpha, NoiseConfig().beta) == (0.1, 0.98)


def test_a_variance_can_be_given(tiny, task):
    method = Kalman(tiny, dataclasses.replace(QUICK, prior_variance=1e-3))
    method.set_classes(task.class_names, task.templates)
    store = method._read(task.train, silent, True)
    kalman = method._prior(store(torch.arange(2), 0), torch.tensor([0, 0]))
    assert kalman.belief.marginal_variance().unique().tolist() == pytest.approx([1e-3])


def test_deterministic_given_a_seed(tiny, task):
    one, two, other = (fitted(tiny, task, dataclasses.replace(QUICK, seed=s)) for s in (1, 1, 2))
    assert torch.equal(one.encoder.theta, two.encoder.theta)
    assert not torch.allclose(one.encoder.theta, other.encoder.theta)


def test_every_pass_has_an_order_of_its_own(tiny, task, monkeypatch):
    """Each pass shows every image once, in another order; the seed says which, and going on is like never stopping."""
    shown = []
    take = ActivationStore.__getitem__

    def read(self, positions):
        if len(positions) <= QUICK.batch_size:  # all at once is no pass: their frozen features are kept
            shown.append(positions.tolist())
        return take(self, positions)

    monkeypatch.setattr(ActivationStore, "__getitem__", read)

    def orders(fit):
        shown.clear()
        fit()
        return [list(chain(*shown[i : i + 4])) for i in range(0, len(shown), 4)]  # fifteen images, four batches

    def in_parts():
        method = fitted(tiny, task, dataclasses.replace(QUICK, epochs=1))
        method.update(task.train, epochs=2)

    three = dataclasses.replace(QUICK, epochs=3)
    passes = orders(lambda: fitted(tiny, task, three))
    assert [sorted(order) for order in passes] == [list(range(15))] * 3
    assert len({tuple(order) for order in passes}) == 3
    assert orders(in_parts) == passes
    assert orders(lambda: fitted(tiny, task, dataclasses.replace(three, seed=1)))[0] != passes[0]


def test_permuting_a_batch_does_not_change_the_result(tiny, task):
    """All images in one batch, in two orders: the belief is the same up to rounding."""
    config = dataclasses.replace(QUICK, batch_size=15, epochs=3)
    train = task.train
    order = list(reversed(range(len(train))))
    one, two = Kalman(tiny, config), Kalman(tiny, config)
    one.fit(task)
    two.fit(
        FewShotTask(
            LabelledImages([train.sources[i] for i in order], [train.labels[i] for i in order], train.class_names)
        )
    )
    scale = one.encoder.theta.abs().max()
    assert torch.allclose(one.encoder.theta, two.encoder.theta, atol=1e-4 * scale)


def test_exchangeable_noise_makes_moving_averages_order_free(tiny, task):
    config = dataclasses.replace(QUICK, observation="log_likelihood", batch_size=15, epochs=3)
    train = task.train
    order = list(reversed(range(len(train))))
    thetas = []
    for images in (
        train,
        LabelledImages([train.sources[i] for i in order], [train.labels[i] for i in order], train.class_names),
    ):
        thetas.append(fitted(tiny, FewShotTask(images), config).encoder.theta)
    assert torch.allclose(*thetas, atol=1e-4 * thetas[0].abs().max().item())


def test_repeated_images_and_batches_of_one(tiny, task):
    doubled = LabelledImages(task.train.sources[:1] * 3, task.train.labels[:1] * 3, task.class_names)
    for size in (1, 3):
        method = fitted(tiny, FewShotTask(doubled), dataclasses.replace(QUICK, batch_size=size))
        assert method.filter.skipped == 0


def test_activations_too_large_to_keep_are_recomputed(tiny, task, monkeypatch):
    kept = fitted(tiny, task)
    monkeypatch.setattr("kalmanclip.encoders.features.ActivationStore.__init__.__defaults__", (1000,))
    recomputed = fitted(tiny, task)
    scale = kept.encoder.theta.abs().max()
    assert torch.allclose(kept.encoder.theta, recomputed.encoder.theta, atol=1e-3 * scale)


def test_regulation_holds_back_outlying_batches(tiny, task):
    free = fitted(tiny, task, dataclasses.replace(QUICK, filter=FilterConfig(alpha=0.0)))
    held = fitted(tiny, task, dataclasses.replace(QUICK, filter=FilterConfig(alpha=2.0)))
    assert all(step.regulation == 1 for step in free.history)
    assert all(0 < step.regulation < 0.5 for step in held.history)
    start = Kalman(tiny, QUICK).encoder.theta
    assert (held.encoder.theta - start).norm() < (free.encoder.theta - start).norm()


def test_logit_belief_is_the_linearised_posterior(tiny, task):
    """The standard deviation against sampling parameters of a narrow posterior."""
    method = fitted(tiny, task, dataclasses.replace(QUICK, prior_std=0.001, filter=FilterConfig(alpha=0.0)))
    images = task.train.sources[:2]
    (belief,) = method.linearized_batches(images, scaled=False)
    assert torch.allclose(belief.mean, method.logits(images), atol=1e-3)
    (batch,) = decoded(tiny, images)
    activations = method.encoder.image.prefix(batch)
    draws = []
    for sample in method.filter.belief.sample(400, torch.Generator().manual_seed(0)):
        method.encoder.theta.copy_(sample)
        with torch.no_grad():
            draws.append(tiny.logit_scale * method.encoder(activations, method.texts))
    assert torch.allclose(torch.stack(draws).std(dim=0), belief.std, rtol=0.15)


def test_all_steps_skipped_is_an_error(tiny, task, monkeypatch):
    method = Kalman(tiny, QUICK)
    monkeypatch.setattr("kalmanclip.observation.categorical.BoundedCategorical.terms", _poisoned)
    with pytest.raises(NumericalError, match="All 4 steps were skipped"):
        method.fit(task)


def _poisoned(self, S, column, scale):
    from kalmanclip.observation import Terms

    nan = torch.full_like(S[:, :1], float("nan"))
    return Terms(nan, nan, nan.unsqueeze(1).expand(-1, 1, S.shape[1]))


@pytest.mark.parametrize("config", [QUICK, ClassResidualsConfig()], ids=["low_rank", "classes"])
def test_no_images_and_no_classes(tiny, task, config):
    with pytest.raises(DataError, match="no images"):
        make_classifier(tiny, config).fit(FewShotTask(task.train.subset([])))
    with pytest.raises(ConfigError, match="no classes"):
        make_classifier(tiny, config).logits([])
    with pytest.raises(ConfigError, match="no classes"):
        make_classifier(tiny, config).class_weights()
    with pytest.raises(ConfigError, match="no belief"):
        make_classifier(tiny, config).linearized_batches([])


@pytest.mark.parametrize(
    "bad",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"prior_std": 0.0},
        {"prior_std": float("nan")},
        {"observation": "?"},
        {"belief": "?"},
        {"prior_variance": -1.0},
        {"low_rank": {"rank": 3}},
    ],
)
def test_bad_options(bad):
    with pytest.raises(ConfigError):
        KalmanConfig(**bad)


def test_short_batches_with_the_papers_noise(tiny, task):
    config = dataclasses.replace(QUICK, observation="cosine", noise=NoiseConfig(structure="full"), batch_size=10)
    method = fitted(tiny, task, config)  # ten, then five
    assert method.filter.noise.R.shape == (10, 10)
    assert method.filter.skipped == 0


@pytest.mark.parametrize("low_rank", [LowRankConfig(rank=2), LowRankConfig(placement="towers", rank=2, last_blocks=1)])
def test_tuned_and_zero_shot_scores_from_one_pass(tiny, task, low_rank):
    untouched = Kalman(tiny)
    untouched.set_classes(task.class_names, task.templates)
    method = fitted(tiny, task, dataclasses.replace(QUICK, low_rank=low_rank, epochs=1))
    prediction = method.predict(task.train.sources, how="mean", zero_shot=True)
    tuned, zero_shot = prediction.mean, prediction.zero_shot
    assert torch.allclose(tuned, method.logits(task.train.sources), atol=1e-4)
    assert torch.allclose(zero_shot, untouched.logits(task.train.sources), atol=1e-3)


def test_class_residuals_and_zero_shot_scores_from_one_pass(tiny, task):
    untouched = Kalman(tiny)
    untouched.set_classes(task.class_names, task.templates)
    method = fitted(tiny, task, ClassResidualsConfig(crops=1))
    prediction = method.predict(task.train.sources, how="mean", zero_shot=True)
    tuned, zero_shot = prediction.mean, prediction.zero_shot
    assert torch.equal(tuned, method.logits(task.train.sources))
    assert torch.allclose(zero_shot, untouched.logits(task.train.sources), atol=1e-3)
    assert not torch.allclose(tuned, zero_shot, atol=1)


ONCE = dataclasses.replace(
    QUICK,
    observation="deviance",
    filter=FilterConfig(alpha=0, step_size=0.2),
    prior_per_matrix=True,
    crop_scale=(0.5, 1.0),
    low_rank=LowRankConfig(placement="towers", rank=2),
)


def test_every_matrix_has_the_same_share_in_the_prior(tiny, task):
    method = make_classifier(tiny, dataclasses.replace(ONCE, prior_std=0.2))
    method.set_classes(task.class_names, task.templates)
    (images,) = frozen_activations(method.encoder, task.train.sources)
    labels = torch.tensor(task.train.labels)
    s = method._prior(images, labels).belief.s
    H = observe(method.encoder, make_likelihood("cosine"), images, labels, method.texts, len(method.templates)).H
    shares = torch.stack([part.sum() for part in (H.square().mean(0) * s).split(method.encoder.groups)])
    assert shares.sum() == pytest.approx(0.2**2, rel=1e-3)
    assert torch.allclose(shares, shares.mean().expand_as(shares), rtol=1e-3)


def test_an_interrupted_fit_that_counts_once_goes_on_from_its_prior(tiny, task):
    whole, states = make_classifier(tiny, ONCE), []
    whole.fit(task, after_epoch=lambda done: states.append(whole.state_dict()))
    assert {"prior.mean", "prior.s"} <= set(states[0].tensors)
    assert not [name for name in states[-1].tensors if name.startswith("prior.")]  # the posterior is the next prior
    resumed = make_classifier(tiny, ONCE)
    resumed.set_classes(task.class_names, task.templates)
    resumed._load(states[0], task.class_names)
    resumed.update(task.train, epochs=1)
    assert torch.equal(resumed.encoder.theta, whole.encoder.theta)


def test_passes_see_fresh_crops(tiny, task):
    pick = make_classifier(tiny, ONCE)._read(task.train, silent, from_prior=True)
    first, again, other = (pick(torch.arange(2), number)[0] for number in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    "options", [{"observation": "cosine"}, {"belief": "dense"}, {"crop_scale": (0.0, 1.0)}, {"crop_scale": (0.9, 0.5)}]
)
def test_options_that_do_not_go_together_are_refused(options):
    with pytest.raises(ConfigError, match=r"step_size|crop_scale"):
        dataclasses.replace(ONCE, **options)

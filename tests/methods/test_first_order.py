"""First-order rivals of the filter: the same gradient, the same batches, rates chosen on validation images only."""

import dataclasses

import pytest
import torch

from kalmanclip.data import FewShotTask
from kalmanclip.encoders import LowRankConfig, load_backbone
from kalmanclip.encoders.features import ActivationStore, activation_store
from kalmanclip.errors import ConfigError, NumericalError
from kalmanclip.filtering import FilterConfig, KalmanFilter, NoiseConfig, Observation, ObservationNoise, make_belief
from kalmanclip.methods import make_method, preset
from kalmanclip.methods.baselines.base import hits
from kalmanclip.methods.baselines.first_order import FirstOrderConfig
from kalmanclip.methods.kalman import pass_order
from kalmanclip.observation import LIKELIHOODS, make_likelihood, observe

SMALL = LowRankConfig(placement="towers", rank=2, last_blocks=1)
ONE_STEP = FirstOrderConfig(
    SMALL, "contrastive", optimizer="sgd", lr=1e-3, weight_decay=0.0, epochs=1, batch_size=100, seed=3
)
GAUSSIAN = ["cosine", "contrastive", "classes", "pairwise", "log_likelihood"]
TEMPLATES = ("a photo of a {}.", "a drawing of a {}.")


@pytest.fixture(scope="module")
def double():
    backbone = load_backbone("tiny")
    backbone.model.double()
    return backbone


def learned(backbone, task, config):
    method = make_method("first_order", backbone, config)
    method.fit(task)
    return method


def seen_before(backbone, task, config):
    """The parameters before the first step, and what the filter observes of all images there."""
    method = make_method("first_order", backbone, config)
    encoder, sources = method.encoder, task.train.sources
    texts = encoder.text.prefix(encoder.tokenize([prompt for group in task.prompts for prompt in group]))
    images = activation_store(encoder, sources, lambda *_: None)[torch.arange(len(sources))]
    likelihood = make_likelihood(config.observation, **config.observation_options)
    labels = torch.tensor(task.train.labels)
    return encoder.theta.clone(), observe(encoder, likelihood, images, labels, texts, len(task.templates))


@pytest.mark.parametrize("name", GAUSSIAN)
def test_a_step_of_sgd_is_the_filters_jacobian_times_the_innovation(double, task, name):
    """theta + eta H^T (y - y_hat) / B, with H from the filter's own Jacobian: no autograd of ours in it."""
    config = dataclasses.replace(ONE_STEP, observation=name)
    several = FewShotTask(task.train, templates=TEMPLATES, seed=1)
    start, seen = seen_before(double, several, config)
    expected = config.lr * seen.H.mT @ (seen.y - seen.y_hat) / len(several.train)
    moved = learned(double, several, config).encoder.theta - start
    torch.testing.assert_close(moved, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))
    assert expected.abs().max() > 0


@pytest.mark.parametrize("name", ["contrastive", "classes", "log_likelihood"])
def test_a_step_on_the_cross_entropy(double, task, name):
    """d -log p = -dp / p; a log-likelihood is its own."""
    config = dataclasses.replace(ONE_STEP, observation=name, loss="cross_entropy")
    start, seen = seen_before(double, task, config)
    weights = torch.ones_like(seen.y) if name == "log_likelihood" else 1 / seen.y_hat
    expected = config.lr * seen.H.mT @ weights / len(task.train)
    moved = learned(double, task, config).encoder.theta - start
    torch.testing.assert_close(moved, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))


def step_of_filter(start, seen, R, variance):
    """How far a dense filter without regulation moves from N(start, variance I)."""
    belief = make_belief("dense", start.clone(), variance)
    kalman = KalmanFilter(belief, ObservationNoise(NoiseConfig()), FilterConfig(alpha=0.0))
    record = kalman.step(lambda mean: Observation(seen.y, seen.y_hat, seen.H, R))
    assert not record.skipped
    return kalman.belief.mean - start


def test_the_lemma_links_both(double, task):
    """The filter moves by -Sigma_k times the gradient that SGD descends, and is SGD where that is eta I."""
    head = dataclasses.replace(ONE_STEP, low_rank=LowRankConfig(placement="head", rank=1))
    start, seen = seen_before(double, task, head)
    gradient = -(learned(double, task, head).encoder.theta - start) / head.lr * len(task.train)  # of the sum
    n, m = len(start), len(seen.y)
    eta = 0.1 / float(torch.linalg.matrix_norm(seen.H, 2)) ** 2
    identity = torch.eye(m, dtype=start.dtype)
    posterior = torch.linalg.inv(torch.eye(n, dtype=start.dtype) / eta + seen.H.mT @ seen.H)
    filtered = step_of_filter(start, seen, identity, eta)
    torch.testing.assert_close(filtered, -posterior @ gradient, rtol=1e-7, atol=1e-7 * float(filtered.abs().max()))
    plain = step_of_filter(start, seen, identity - eta * seen.H @ seen.H.mT, eta)  # eta H H^T + R = I
    torch.testing.assert_close(plain, -eta * gradient, rtol=1e-7, atol=1e-7 * float(plain.abs().max()))


def test_the_same_start_and_the_same_images_in_the_same_order_as_the_filter(tiny, task, monkeypatch):
    shown = []
    real = ActivationStore.__getitem__
    monkeypatch.setattr(ActivationStore, "__getitem__", lambda s, i: (shown.append(i.tolist()), real(s, i))[1])
    without = FewShotTask(task.train, seed=1)
    kalman = dataclasses.replace(preset("paper"), low_rank=SMALL, batch_size=4, epochs=3, seed=5)
    filtered = make_method("kalman", tiny, kalman)
    before = filtered.encoder.theta.clone()
    filtered.fit(without)
    everything, *of_filter = shown  # first all at once, for the out-of-distribution score
    assert everything == list(range(len(task.train)))
    shown.clear()
    same = FirstOrderConfig(SMALL, kalman.observation, batch_size=4, epochs=3, seed=5)
    assert torch.equal(make_method("first_order", tiny, same).encoder.theta, before)
    learned(tiny, without, same)
    assert shown == of_filter
    assert [len(batch) for batch in shown] == [4, 4, 1] * 3
    assert shown[:3] != shown[3:6]
    assert [i for batch in shown[3:6] for i in batch] == pass_order(9, 5, 3).tolist()


def test_the_defaults_are_the_papers_preset_and_its_settings_for_baselines():
    config, paper = FirstOrderConfig(), preset("paper")
    for name in ("low_rank", "observation", "observation_options", "epochs", "batch_size", "seed"):
        assert getattr(config, name) == getattr(paper, name), name
    assert (config.optimizer, config.lr, config.decay, config.weight_decay) == ("adamw", 1e-3, "linear", 1e-4)
    assert config.lr_grid == ()


def test_the_rate_is_the_best_on_the_validation_images(tiny, task):
    grid = (1e-6, 3e-3, 3e-2)
    config = FirstOrderConfig(SMALL, "contrastive", epochs=3, batch_size=4, seed=1)
    labels = torch.tensor(task.validation.labels)
    single = {}
    for lr in grid:
        method = learned(tiny, task, dataclasses.replace(config, lr=lr))
        scores = method.logits(task.validation.sources)
        single[lr] = hits(scores, labels), -float(torch.nn.functional.cross_entropy(scores, labels)), method
    best = max(grid, key=lambda lr: single[lr][:2])
    assert best != grid[0]
    chosen = learned(tiny, task, dataclasses.replace(config, lr_grid=grid))
    assert chosen.lr == best
    assert torch.equal(chosen.encoder.theta, single[best][2].encoder.theta)
    without = learned(tiny, FewShotTask(task.train, seed=1), dataclasses.replace(config, lr_grid=grid))
    assert without.lr == config.lr


def test_a_rate_that_breaks_down_is_not_chosen(tiny, task):
    config = FirstOrderConfig(SMALL, "contrastive", optimizer="sgd", loss="cross_entropy", epochs=3, batch_size=4)
    assert learned(tiny, task, dataclasses.replace(config, lr_grid=(1e-3, 1e30))).lr == 1e-3
    with pytest.raises(NumericalError, match="No learning rate"):
        learned(tiny, task, dataclasses.replace(config, lr_grid=(1e30, 1e35)))


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_observations_whose_outputs_are_not_what_is_differentiated_are_refused(name):
    if name in ("categorical", "bounded", "deviance"):
        with pytest.raises(ConfigError, match="no squared loss"):
            FirstOrderConfig(observation=name)
    else:
        FirstOrderConfig(observation=name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"observation": "cosine", "loss": "cross_entropy"}, "stands for no cross-entropy"),
        ({"observation": "pairwise", "loss": "cross_entropy"}, "stands for no cross-entropy"),
        ({"loss": "hinge"}, "loss must be one of"),
        ({"optimizer": "paper"}, "optimizer must be one of"),
        ({"decay": "step"}, "decay must be one of"),
        ({"lr": 0.0}, "lr must be positive"),
        ({"lr_grid": (1e-3, -1.0)}, r"lr_grid\[1\] must be positive"),
        ({"weight_decay": -1.0}, "weight_decay must not be negative"),
        ({"observation": "contrastif"}, "Unknown observation"),
    ],
)
def test_mistakes(options, message):
    with pytest.raises(ConfigError, match=message):
        FirstOrderConfig(**options)

"""Every method on a toy task: shapes, determinism, learning, validation only, clear errors."""

import dataclasses
import functools

import pytest
import torch
import torch.nn.functional as F

from kalmanclip.data import FewShotTask
from kalmanclip.encoders import LowRankConfig
from kalmanclip.errors import ConfigError, DataError
from kalmanclip.methods import METHODS, ClassResidualsConfig, JointConfig, KalmanConfig, make_method, method_name
from kalmanclip.methods.baselines.ape import APEConfig, APETConfig
from kalmanclip.methods.baselines.base import ZeroShotConfig
from kalmanclip.methods.baselines.clip_adapter import CLIPAdapterConfig
from kalmanclip.methods.baselines.clip_lora import CLIPLoRAConfig
from kalmanclip.methods.baselines.clip_svd import CLIPSVDConfig
from kalmanclip.methods.baselines.coop import CoOpConfig
from kalmanclip.methods.baselines.first_order import FirstOrderConfig
from kalmanclip.methods.baselines.gda import GDAConfig
from kalmanclip.methods.baselines.linear_probe import LinearProbeConfig
from kalmanclip.methods.baselines.lp_plus_plus import LPPlusPlusConfig
from kalmanclip.methods.baselines.proker import ProKeRConfig
from kalmanclip.methods.baselines.timo import TIMOConfig, TIMOSConfig
from kalmanclip.methods.baselines.tip_adapter import TipAdapterConfig, TipAdapterFConfig

SMALL_LORA = LowRankConfig(placement="towers", last_blocks=1, rank=2, scale=0.5)
SMALL_KALMAN = KalmanConfig(low_rank=LowRankConfig(rank=2), epochs=2, batch_size=4)
QUICK = {
    "class_residuals": ClassResidualsConfig(crops=2, folds=2),
    "kalman": SMALL_KALMAN,
    "joint": JointConfig(
        low_rank=LowRankConfig(placement="towers", towers=("image",), last_blocks=1, rank=2, learn_a=False),
        steps=2,
        residuals=ClassResidualsConfig(crops=1, folds=2),
    ),
    "zero_shot": ZeroShotConfig(),
    "linear_probe": LinearProbeConfig(l2_grid=(10.0, 1.0)),
    "gda": GDAConfig(crops=2),
    "tip_adapter": TipAdapterConfig(crops=2, search_steps=(4, 3)),
    "tip_adapter_f": TipAdapterFConfig(crops=2, train_crops=2, search_steps=(4, 3), epochs=5),
    "clip_adapter": CLIPAdapterConfig(epochs=8, crops=2, batch_size=4),
    "lp_plus_plus": LPPlusPlusConfig(epochs=50),
    "ape": APEConfig(crops=2, search_steps=(4, 3, 2)),
    "ape_t": APETConfig(crops=2, train_crops=2, search_steps=(4, 3), epochs=5),
    "timo": TIMOConfig(crops=2),
    "timo_s": TIMOSConfig(crops=2),
    "proker": ProKeRConfig(crops=2, beta_range=(1.0, 3.0, 2), lmbda_range=(0.1, 1.0, 3)),
    "clip_lora": CLIPLoRAConfig(low_rank=SMALL_LORA, iterations=3, batch_size=8, augment=False),
    "clip_svd": CLIPSVDConfig(most_iterations=4, batch_size=8, augment=False),
    "coop": CoOpConfig(context=4, epochs=10, crops=2, batch_size=8),
    "first_order": FirstOrderConfig(low_rank=SMALL_LORA, lr_grid=(1e-3, 1e-2), lr=1e-2, epochs=5, batch_size=4),
}
LEARNERS = [name for name in METHODS if name != "zero_shot"]
TRAINED = [name for name, config in QUICK.items() if getattr(config, "optimizer", "") == "published"]


def fitted(name, tiny, task, config=None):
    method = make_method(name, tiny, config or QUICK[name])
    method.fit(task)
    return method


def without_validation(task):
    return FewShotTask(task.train, seed=task.seed)


@pytest.fixture(scope="module")
def learned(tiny, task):
    """Logits of the training images by each method, fitted without validation; once for all tests."""

    @functools.cache
    def logits(name):
        return fitted(name, tiny, without_validation(task)).logits(task.train.sources)

    return logits


def loss(logits, task):
    return F.cross_entropy(logits, torch.tensor(task.train.labels)).item()


def test_the_tables_agree():
    assert list(METHODS) == list(QUICK)
    assert [method_name(QUICK[name]) for name in METHODS] == list(METHODS)
    assert all(type(QUICK[name]) is METHODS[name].Config for name in METHODS)


class Untouchable:
    """Test images that nobody may look at."""

    class_names = ("circle", "square", "triangle")

    def __getattr__(self, name):
        raise AssertionError("a method looked at the test images")

    def __len__(self):
        raise AssertionError("a method looked at the test images")


@pytest.mark.parametrize("name", list(METHODS))
def test_shapes_and_determinism_without_a_look_at_the_test_images(tiny, task, name):
    Untouchable.class_names = task.class_names
    hidden = dataclasses.replace(task, test=Untouchable())
    method, again = fitted(name, tiny, task), fitted(name, tiny, hidden)
    one, two = (m.logits(task.train.sources) for m in (method, again))
    assert one.shape == (9, 3)
    assert one.device.type == "cpu"
    assert torch.isfinite(one).all()
    assert torch.equal(one, two)
    assert not one.requires_grad
    assert method.logits([]).shape == (0, 3)


@pytest.mark.parametrize("name", LEARNERS)
def test_learning_beats_zero_shot_on_the_training_images(task, learned, name):
    assert loss(learned(name), task) < loss(learned("zero_shot"), task)


@pytest.mark.parametrize("name", TRAINED)
def test_the_papers_optimizer(tiny, task, learned, name):
    config = dataclasses.replace(QUICK[name], optimizer="paper")
    logits = fitted(name, tiny, without_validation(task), config).logits(task.train.sources)
    assert loss(logits, task) < loss(learned("zero_shot"), task)
    assert not torch.allclose(logits, learned(name))
    with pytest.raises(ConfigError, match="'published' or 'paper'"):
        dataclasses.replace(QUICK[name], optimizer="best")


@pytest.mark.parametrize(
    "name", ["clip_adapter", "clip_lora", "clip_svd", "coop", "tip_adapter", "gda", "ape", "timo", "proker"]
)
def test_the_tasks_seed_is_the_only_chance(tiny, task, name):
    other = dataclasses.replace(task, seed=2)
    one, two = (fitted(name, tiny, t).logits(task.train.sources) for t in (task, other))
    assert not torch.equal(one, two)


@pytest.mark.parametrize("name", list(METHODS))
def test_not_fitted(tiny, name):
    with pytest.raises(ConfigError, match="no classes"):
        make_method(name, tiny, QUICK[name]).logits([])


@pytest.mark.parametrize("name", LEARNERS)
def test_nothing_to_learn_from(tiny, task, name):
    with pytest.raises(DataError, match="no images"):
        fitted(name, tiny, FewShotTask(task.train.subset([])))


@pytest.mark.parametrize("name", [n for n in LEARNERS if n not in ("gda", "timo", "timo_s")])
def test_a_class_without_images_can_still_be_named(tiny, task, name):
    two = FewShotTask(task.train.subset(range(6)))
    assert torch.isfinite(fitted(name, tiny, two).logits(task.train.sources)).all()


def test_several_prompts(tiny, task):
    several = dataclasses.replace(task, templates=("a photo of a {}.", "a drawing of a {}."))
    for name in ("clip_lora", "clip_svd", "timo_s"):
        assert fitted(name, tiny, several).logits(task.train.sources).shape == (9, 3)
    assert fitted("zero_shot", tiny, several).T.norm(dim=1) == pytest.approx([1.0] * 3)


def test_unknown_names_and_foreign_options(tiny):
    with pytest.raises(ConfigError, match="did you mean 'tip_adapter'"):
        make_method("tip-adapter", tiny)
    with pytest.raises(ConfigError, match="takes a GDAConfig, not a CoOpConfig"):
        make_method("gda", tiny, CoOpConfig())


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        (LinearProbeConfig, {"l2": 0.0}),
        (LinearProbeConfig, {"l2_grid": (1.0, -1.0)}),
        (GDAConfig, {"crops": -1}),
        (TipAdapterConfig, {"alpha": float("nan")}),
        (TipAdapterConfig, {"search_steps": (0, 1)}),
        (TipAdapterFConfig, {"epochs": 0}),
        (CLIPAdapterConfig, {"ratio": 1.5}),
        (LPPlusPlusConfig, {"epochs": 0}),
        (APETConfig, {"channels": 0.0}),
        (CLIPLoRAConfig, {"dropout": 1.0}),
        (CoOpConfig, {"context": 0}),
    ],
)
def test_bad_options(kind, bad):
    with pytest.raises(ConfigError):
        kind(**bad)

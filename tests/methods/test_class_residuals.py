"""Class residuals: the choice of the prior, the metric of the crops, classes that come and go; then the method."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from kalmanclip.data import FewShotTask, LabelledImages, read_folder, read_shot_lists
from kalmanclip.encoders import DualEncoder, FeatureCache
from kalmanclip.encoders.features import image_features
from kalmanclip.errors import ConfigError, NumericalError
from kalmanclip.methods import ClassResiduals, ClassResidualsConfig, residuals, statistics
from kalmanclip.methods.residuals import (
    TYPICAL_GENERATIVE,
    TYPICAL_STD,
    Fold,
    FoldResiduals,
    ResidualBelief,
    held_out_parts,
)
from kalmanclip.methods.statistics import ClassStatistics

WIDTH, SCALE = 12, 30.0
NAMES = ["ash", "birch", "cedar"]
GRID = [TYPICAL_STD * 2 ** (step / 2) for step in range(-6, 7)]


def unit(*size, generator, dtype=torch.float64):
    return F.normalize(torch.randn(*size, generator=generator, dtype=dtype), dim=-1)


@dataclasses.dataclass
class World:
    """Classes with a text direction and another one, which their images lie around."""

    T: torch.Tensor
    centres: torch.Tensor
    generator: torch.Generator

    def views(self, labels, V=5, noise=0.3):
        """Images of these labels: each with a place of its own, and crops that differ in the last three directions."""
        crops = self.centres[labels].unsqueeze(1) + noise * self._normal(len(labels), 1, WIDTH) / math.sqrt(WIDTH)
        jitter = 0.5 * self._normal(len(labels), 1 + V, WIDTH)
        jitter[..., :-3] *= 0.02
        return F.normalize(crops + jitter, dim=-1)

    def _normal(self, *size):
        return torch.randn(*size, generator=self.generator, dtype=torch.float64)


def world(seed=0, C=3, distance=1.0):
    generator = torch.Generator().manual_seed(seed)
    T = unit(C, WIDTH, generator=generator)
    return World(T, F.normalize(T + distance * unit(C, WIDTH, generator=generator), dim=-1), generator)


def learned(views, labels, T, config=None, alpha=0.0, names=None):
    config = dataclasses.replace(config or ClassResidualsConfig(), crops=views.shape[1] - 1, alpha=alpha)
    residuals = ResidualBelief(config, SCALE)
    residuals.set_classes(names or NAMES[: len(T)], T)
    residuals.learn(views, torch.as_tensor(labels))
    return residuals


def loss(residuals, views, labels):
    return F.cross_entropy(residuals.logits(views[:, 0]), torch.as_tensor(labels)).item()


FOUR_EACH = [0, 1, 2] * 4
FOUR = torch.tensor(FOUR_EACH)


def text_alone(T):
    residuals = ResidualBelief(ClassResidualsConfig(alpha=0.0), SCALE)
    residuals.set_classes(NAMES, T)
    return residuals


def test_before_the_first_image_it_is_the_text():
    w = world()
    residuals = text_alone(w.T)
    f = w.views(FOUR_EACH)[:, 0]
    torch.testing.assert_close(residuals.logits(f), SCALE * f @ w.T.mT)
    assert torch.equal(residuals.weights(), w.T)
    assert residuals.prior_std is None
    with pytest.raises(ConfigError, match="fit first"):
        residuals.variance(f)


@pytest.mark.parametrize("views", [0, 1, 5])
def test_it_learns_and_its_weights_are_its_logits(views):
    w = world()
    train, test = w.views(FOUR_EACH, views), w.views([0, 1, 2] * 20, views)
    residuals = learned(train, FOUR_EACH, w.T, ClassResidualsConfig(crops=views))
    assert loss(residuals, test, [0, 1, 2] * 20) < 0.7 * loss(text_alone(w.T), test, [0, 1, 2] * 20)
    f = test[:, 0]
    torch.testing.assert_close(SCALE * f @ residuals.weights().mT, residuals.logits(f), rtol=1e-10, atol=1e-10)
    assert (residuals.variance(f) > 0).all()


def test_the_weight_of_an_image_does_not_depend_on_its_crops():
    """Crops that equal the centre crop are the centre crop."""
    w = world()
    one = w.views(FOUR_EACH, 0)
    config = ClassResidualsConfig(prior_std=0.1)
    same = learned(one.expand(-1, 6, -1).contiguous(), FOUR_EACH, w.T, config)
    torch.testing.assert_close(same.belief.mean, learned(one, FOUR_EACH, w.T, config).belief.mean)
    torch.testing.assert_close(same.belief.gram, learned(one, FOUR_EACH, w.T, config).belief.gram)


def test_the_whole_weight_can_be_the_centre_crops():
    w = world()
    views = w.views(FOUR_EACH)
    a = learned(views, FOUR_EACH, w.T, ClassResidualsConfig(prior_std=0.1, generative=5.0, centre_weight=1.0))
    other = views.clone()
    other[:, 1:] = other[:, 1:].roll(3, dims=0)  # the crops stay in their class, for the metric, not with their images
    b = learned(other, FOUR_EACH, w.T, ClassResidualsConfig(prior_std=0.1, generative=5.0, centre_weight=1.0))
    torch.testing.assert_close(a.weights(), b.weights())


# --- the prior that is chosen


@pytest.mark.parametrize("seed", range(3))
def test_the_prior_is_the_best_of_those_tried_and_always_the_same(seed):
    w = world(seed)
    views = w.views(FOUR_EACH)
    a, b = learned(views, FOUR_EACH, w.T), learned(views, FOUR_EACH, w.T)
    assert a.prior_std == b.prior_std
    assert torch.equal(a.belief.mean, b.belief.mean)
    assert all(min(abs(std - known) for known in GRID) < 1e-12 for std in a.held_out_log_likelihood)

    def score(std):  # a variance four times larger or smaller is a standard deviation away
        return len(FOUR_EACH) * a.held_out_log_likelihood[std] - (math.log2(std**2 / TYPICAL_STD**2) / 2) ** 2 / 2

    assert a.prior_std == pytest.approx(max(a.held_out_log_likelihood, key=score))
    assert len(a.held_out_log_likelihood) >= 3


def test_held_out_images_are_predicted_from_the_others():
    """Held out one by one with a given prior: the same mean log-probability."""
    w, labels = world(1), FOUR_EACH
    views = w.views(labels, 0)
    given = ClassResidualsConfig(crops=0, folds=4, generative=1.0)
    residuals = learned(views, labels, w.T, given)
    std = residuals.prior_std
    total = 0.0
    for part in range(4):
        held = [i for i in range(12) if i // 3 == part]
        kept = [i for i in range(12) if i // 3 != part]
        others = learned(views[kept], [labels[i] for i in kept], w.T, dataclasses.replace(given, prior_std=std))
        total -= loss(others, views[held], [labels[i] for i in held]) * len(held)
    scores = residuals.held_out_log_likelihood
    found = scores[min(scores, key=lambda known: abs(known - std))]
    assert found == pytest.approx(total / 12, abs=1e-4)
    assert found < -2 * loss(residuals, views, labels)  # of images that were learned from


def test_what_is_said_of_held_out_images_is_what_the_others_say_by_their_centre_crops():
    w, labels = world(1), [0, 1, 2] * 3
    views = w.views(labels, 2)
    config = ClassResidualsConfig(crops=2, folds=3, prior_std=0.1, generative=1.0, alpha=0.0)
    residuals = learned(views, labels, w.T, config)
    logits, found, folds, weights = residuals.held_out
    assert folds.tolist() == [0] * 3 + [1] * 3 + [2] * 3
    assert found.tolist() == labels  # part by part, as they lie here
    for part in range(3):
        held, kept = ([i for i in range(9) if (i // 3 == part) is wanted] for wanted in (True, False))
        others = learned(views[kept], labels[:6], w.T, config)
        said, expected = (a.softmax(dim=1) for a in (logits[held], others.logits(views[held][:, 0])))
        torch.testing.assert_close(said, expected, atol=2e-3, rtol=0)
        torch.testing.assert_close(residuals.scale * views[held][:, 0] @ weights[part].mT, logits[held])
    assert (logits - residuals.logits(views[:, 0])).abs().max() > 0.1  # of those that have seen them
    residuals.learn(views, torch.tensor(labels))
    assert residuals.held_out is None  # about what had learned less
    assert learned(w.views([0, 1, 2]), [0, 1, 2], w.T).held_out is None  # one of each: none can be held out


def test_the_more_the_images_say_the_wider_the_prior():
    labels = [0, 1, 2] * 8
    far, near = world(2, distance=3.0), world(2, distance=0.0)
    wide = learned(far.views(labels), labels, far.T).prior_std
    shuffled = torch.tensor(labels)[torch.randperm(24, generator=far.generator)]
    narrow = learned(near.views(shuffled.tolist()), labels, near.T).prior_std  # labels that mean nothing
    assert GRID[0] - 1e-12 <= narrow < TYPICAL_STD / 1.9
    assert 1.9 * narrow < wide <= GRID[-1] + 1e-12


def test_it_is_not_chosen_where_it_cannot_be_or_need_not_be():
    w = world()
    one = learned(w.views([0, 1, 2]), [0, 1, 2], w.T)
    assert (one.prior_std, one.held_out_log_likelihood) == (pytest.approx(TYPICAL_STD), {})
    given = learned(w.views(FOUR_EACH), FOUR_EACH, w.T, ClassResidualsConfig(prior_std=0.07))
    assert (given.prior_std, given.held_out_log_likelihood) == (pytest.approx(0.07), {})


def test_progress_is_told():
    w, told = world(), []
    residuals = text_alone(w.T)
    residuals.learn(w.views(FOUR_EACH), torch.tensor(FOUR_EACH), lambda done, total: told.append((done, total)))
    assert len(told) == len(residuals.held_out_log_likelihood) + 1
    assert all(done <= total for done, total in told)
    assert told[-1][0] == told[-1][1]


@given(labels=st.lists(st.integers(0, 5), min_size=1, max_size=40), folds=st.integers(2, 6))
@settings(max_examples=100, deadline=None)
def test_parts_hold_every_image_out_once_and_leave_every_class_one(labels, folds):
    parts = held_out_parts(torch.tensor(labels), folds)
    count = {c: labels.count(c) for c in labels}
    assert len(parts) <= folds
    for kept, held in parts:
        assert sorted(kept.tolist() + held.tolist()) == list(range(len(labels)))  # none in both
        assert len(held)
        assert {labels[i] for i in kept.tolist()} == set(labels)
    out = [i for _, held in parts for i in held.tolist()]
    assert sorted(out) == [i for i, c in enumerate(labels) if count[c] > 1]


def test_parts_stop_when_enough_was_held_out():
    parts = held_out_parts(torch.arange(600).repeat(4), 4)
    assert [len(held) for _, held in parts] == [600, 600]


# --- few, many, no images of a class


def test_classes_with_unequal_counts():
    w = world()
    labels = [0] * 7 + [1] * 2 + [2]
    residuals = learned(w.views(labels), labels, w.T)
    test = w.views([0, 1, 2] * 10)
    assert residuals.held_out_log_likelihood  # the lone image of the third class was kept, the others had their turn
    assert loss(residuals, test, [0, 1, 2] * 10) < 0.8 * loss(text_alone(w.T), test, [0, 1, 2] * 10)


def test_a_class_without_images_is_told_what_it_is_not():
    w = world()
    labels = [0, 1] * 4
    residuals = learned(w.views(labels), labels, w.T)
    assert residuals.weights().isfinite().all()
    assert residuals.variance(w.views([2])[:, 0]).isfinite().all()
    moved = residuals.weights() - residuals.belief.gain * w.T
    assert (w.views(labels)[:, 0] @ moved[2]).mean() < 0


def test_a_single_class():
    w = world(C=1)
    residuals = learned(w.views([0, 0, 0]), [0, 0, 0], w.T)
    assert residuals.logits(w.views([0])[:, 0]).isfinite().all()
    assert residuals.belief.mean.abs().max() < 1e-12  # nothing to tell it from


def test_numbers_that_are_none_leave_it_as_it_was():
    w = world()
    views = w.views(FOUR_EACH)
    for where in ((0, 0), (0, 2)):  # in a centre crop, in a random one
        broken = views.clone()
        broken[where] = math.nan
        fresh = text_alone(w.T)
        with pytest.raises(NumericalError):
            fresh.learn(broken, torch.tensor(FOUR_EACH))
        assert fresh.belief is None
        residuals = learned(views, FOUR_EACH, w.T)
        before = residuals.belief
        with pytest.raises(NumericalError):
            residuals.learn(broken, torch.tensor(FOUR_EACH))
        assert residuals.belief is before


def test_single_precision_is_enough():
    w = world()
    views, test = w.views(FOUR_EACH), w.views([0, 1, 2] * 5)[:, 0]
    double = learned(views, FOUR_EACH, w.T, alpha=0.1)
    single = learned(views.float(), FOUR_EACH, w.T.float(), alpha=0.1)
    assert single.prior_std == pytest.approx(double.prior_std)
    torch.testing.assert_close(single.logits(test.float()).double(), double.logits(test), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(single.variance(test.float()).double(), double.variance(test), rtol=1e-2, atol=1e-2)


# --- classes that come and go


def test_what_is_known_stays_with_the_name():
    """What the generative classifier says of a class depends on the mean of all: see the next test."""
    w = world(C=4)
    residuals = learned(w.views([0, 1, 2] * 4), [0, 1, 2] * 4, w.T[:3], ClassResidualsConfig(generative=0.0))
    f = w.views([0, 1, 2, 3] * 3)[:, 0]
    before, curvature = residuals.logits(f), residuals.belief.curvature
    residuals.set_classes(["cedar", "elm", "ash"], w.T[[2, 3, 0]])
    torch.testing.assert_close(residuals.logits(f)[:, [0, 2]], before[:, [2, 0]])
    assert torch.equal(residuals.belief.curvature[[0, 2]], curvature[[2, 0]])
    torch.testing.assert_close(residuals.weights()[1], residuals.belief.gain * w.T[3])  # new: its text, with the share
    residuals.set_classes(NAMES, w.T[:3])
    torch.testing.assert_close(residuals.logits(f)[:, [0, 2]], before[:, [0, 2]])
    torch.testing.assert_close(residuals.weights()[1], residuals.belief.gain * w.T[1])  # what was dropped is forgotten


def test_the_generative_classifier_is_of_the_classes_that_are_there():
    w = world(C=4)
    residuals = learned(w.views([0, 1, 2] * 4), [0, 1, 2] * 4, w.T[:3], ClassResidualsConfig(generative=1.0))
    f = w.views([0, 1, 2, 3] * 3)[:, 0]
    before = residuals.logits(f)
    residuals.set_classes(["cedar", "elm", "ash", "birch"], w.T[[2, 3, 0, 1]])
    torch.testing.assert_close(residuals.logits(f)[:, [0, 2, 3]], before[:, [2, 0, 1]])
    assert torch.equal(residuals.shift[1], torch.zeros(WIDTH, dtype=torch.float64))  # nothing is known about it
    residuals.set_classes(["cedar", "ash"], w.T[[2, 0]])
    other = text_alone(w.T)
    other.load_state_dict(residuals.state_dict(), residuals.names)
    other.set_classes(residuals.names, w.T[[2, 0]])
    assert torch.equal(other.logits(f), residuals.logits(f))  # and not of those before, after it was stored
    torch.testing.assert_close(SCALE * residuals.shift, residuals.statistics.generative(residuals.root))


def test_the_generative_classifier_is_gaussian_classes():
    """Two log-densities with class means drawn to the mean of all, where images lie along that mean as it does."""
    w = world()
    images = ClassStatistics.of(w.views(FOUR_EACH), FOUR, 3)
    root = images.metric()
    g = images.total.sum(dim=0) / 12
    means = [(total + 2 * g) / 6 for total in images.total]
    f = w.views([0, 1, 2])[:, 0]
    f = f - torch.outer(f @ g / (g @ g) - 1, g)
    gaussian = [-0.5 * ((f - m) @ root).square().sum(dim=1) for m in means]
    found = f @ images.generative(root).mT
    torch.testing.assert_close(found[:, 0] - found[:, 1], gaussian[0] - gaussian[1])


def test_how_much_of_the_generative_classifier_is_chosen_on_held_out_images():
    """No other share that was within reach makes them more probable, by more than is unusual about it."""
    w = world(3)
    views = w.views(FOUR_EACH, noise=1.5)
    chosen = learned(views, FOUR_EACH, w.T, ClassResidualsConfig(prior_std=0.1))
    parts = [
        FoldResiduals(chosen, Fold(views[kept], FOUR[kept], views[held], FOUR[held], w.T))
        for kept, held in held_out_parts(FOUR, 4)
    ]

    def posterior(value):
        for part in parts:
            part.generative = value
        steps = 2 * math.log2(value / TYPICAL_GENERATIVE)
        return sum(part.log_likelihood(0.1) for part in parts) - steps**2 / 8

    assert 1.9 * chosen.generative < TYPICAL_GENERATIVE  # images that lie far apart
    for factor in (0.5, 2.0):
        assert posterior(chosen.generative) > posterior(factor * chosen.generative)
    assert learned(views[:3], [0, 1, 2], w.T).generative == TYPICAL_GENERATIVE
    assert learned(views, FOUR_EACH, w.T, ClassResidualsConfig(generative=0.0)).shift is None


def test_images_that_are_read_some_at_a_time_are_all_read(monkeypatch):
    w = world()
    views = w.views(FOUR_EACH)

    def found():
        kept, held = held_out_parts(FOUR, 2)[0]
        fold = FoldResiduals(
            learned(views, FOUR_EACH, w.T), Fold(views[kept], FOUR[kept], views[held], FOUR[held], w.T)
        )
        sums = ClassStatistics.of(views, FOUR, 3)
        return fold.log_likelihood(0.1), fold.probabilities(0.1), sums.total, sums.within

    whole = found()
    for module in (residuals, statistics):
        monkeypatch.setattr(module, "_NUMBERS", 1)
    for some, all_of_them in zip(found(), whole, strict=True):
        torch.testing.assert_close(some, all_of_them)


def test_drawn_classifiers_have_the_generative_part():
    w = world()
    residuals = learned(w.views(FOUR_EACH), FOUR_EACH, w.T, ClassResidualsConfig(generative=5.0))
    residuals.covariance_scale = 1e-12
    (drawn,) = residuals.sampled([w.T], torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn, residuals.weights(), atol=1e-4, rtol=0)
    residuals.learn(w.views(FOUR_EACH), torch.tensor(FOUR_EACH))  # what is learned later moves its means
    torch.testing.assert_close(residuals.shift, 5 / SCALE * residuals.statistics.generative(residuals.root))


def test_a_new_class_alone_does_not_swallow_the_old_ones():
    w = world(C=4)
    residuals = learned(w.views([0, 1, 2] * 4), [0, 1, 2] * 4, w.T[:3])
    test = w.views([0, 1, 2, 3] * 30)[:, 0]
    labels = torch.tensor([0, 1, 2, 3] * 30)
    residuals.set_classes([*NAMES, "elm"], w.T)
    residuals.learn(w.views([3] * 4), torch.tensor([3] * 4))
    right = residuals.logits(test).argmax(dim=1) == labels
    old = residuals.logits(test)[labels < 3, :3].argmax(dim=1) == labels[labels < 3]
    assert right[labels == 3].float().mean() > 0.5
    assert right[labels < 3].float().mean() > 0.8 * old.float().mean()


def test_more_images_of_the_same_classes():
    w = world()
    first, second, test = w.views(FOUR_EACH), w.views(FOUR_EACH), w.views([0, 1, 2] * 30)
    residuals = learned(first, FOUR_EACH, w.T)
    std, before = residuals.prior_std, loss(residuals, test, [0, 1, 2] * 30)
    variance = residuals.variance(test[:, 0])
    residuals.learn(second, torch.tensor(FOUR_EACH))
    assert residuals.prior_std == std  # of the first images, for good
    assert loss(residuals, test, [0, 1, 2] * 30) < before
    assert residuals.variance(test[:, 0]).mean() < variance.mean()
    joint = learned(torch.cat([first, second]), FOUR_EACH * 2, w.T, ClassResidualsConfig(prior_std=std))
    torch.testing.assert_close(residuals.root, joint.root)  # of all images
    p, q = (r.logits(test[:, 0]).softmax(dim=1) for r in (residuals, joint))
    assert (p - q).abs().mean() < 0.05


def test_the_belief_survives_being_stored():
    w = world()
    residuals = learned(w.views(FOUR_EACH), FOUR_EACH, w.T)
    state = residuals.state_dict()
    other = ResidualBelief(ClassResidualsConfig(alpha=0.0), SCALE)
    other.load_state_dict(state, NAMES)
    other.set_classes(NAMES, w.T)
    more, f = w.views(FOUR_EACH), w.views(FOUR_EACH)[:, 0]
    for _ in range(2):  # as it is, and as it goes on
        assert torch.equal(other.logits(f), residuals.logits(f))
        assert torch.equal(other.variance(f), residuals.variance(f))
        assert other.prior_std == residuals.prior_std
        for r in (residuals, other):
            r.learn(more, torch.tensor(FOUR_EACH))


STATE = ("root", "mean", "gram", "curvature", "strength", "gain", "gain_precision")
STATE += ("covariance_scale", "generative", "count", "total", "within", "slope", "gain_slope")


@pytest.mark.parametrize("broken", [torch.zeros(2, 7), torch.zeros(5), torch.zeros(()), None])
@pytest.mark.parametrize("name", STATE)
def test_a_state_that_does_not_fit_is_refused(name, broken):
    w = world()
    residuals = learned(w.views([0, 1, 2]), [0, 1, 2], w.T)
    state = residuals.state_dict()
    assert set(state) >= set(STATE)
    if broken is not None and broken.shape == state[name].shape:
        return
    damaged = {key: value for key, value in state.items() if key != name}
    if broken is None and name == "generative":
        return  # older versions had none
    if broken is not None:
        damaged[name] = broken
    with pytest.raises(ConfigError, match="tensor"):
        ResidualBelief(ClassResidualsConfig(), SCALE).load_state_dict(damaged, NAMES)
    with pytest.raises(ConfigError, match="mean"):
        ResidualBelief(ClassResidualsConfig(), SCALE).load_state_dict(state, NAMES[:2])


@pytest.mark.parametrize("value", [-1.0, 1e300])
def test_a_state_whose_generative_classifier_cannot_be_is_refused(value):
    w = world()
    state = learned(w.views([0, 1, 2]), [0, 1, 2], w.T).state_dict() | {"generative": torch.tensor(value).double()}
    with pytest.raises(ConfigError, match="generative classifier counts"):
        ResidualBelief(ClassResidualsConfig(), SCALE).load_state_dict(state, NAMES)


def test_a_state_of_an_older_version_has_no_generative_classifier():
    w = world()
    residuals = learned(w.views(FOUR_EACH), FOUR_EACH, w.T, ClassResidualsConfig(generative=0.0))
    state = residuals.state_dict()
    del state["generative"]
    other = ResidualBelief(ClassResidualsConfig(alpha=0.0), SCALE)
    other.load_state_dict(state, NAMES)
    other.set_classes(NAMES, w.T)
    f = w.views(FOUR_EACH)[:, 0]
    assert torch.equal(other.logits(f), residuals.logits(f))


# --- the metric


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_metric_allows_less_where_crops_differ(dtype):
    w = world()
    views = w.views(FOUR_EACH).to(dtype)
    root = learned(views, FOUR_EACH, w.T.to(dtype)).root
    torch.testing.assert_close(root, root.mT)
    assert torch.linalg.eigvalsh(root.double())[0] > 0
    assert (views @ root).square().sum(dim=-1).mean().item() == pytest.approx(1, rel=1e-5)
    assert root.diagonal()[-3:].max() < 0.7 * root.diagonal()[:-3].min()  # the last three are where crops differ


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("V", [0, 1, 2, 3, 5, 7])
def test_crops_that_are_all_equal_say_nothing(V, dtype):
    w = world()
    views = w.views(FOUR_EACH, 0).expand(-1, 1 + V, -1).to(dtype).contiguous()
    one_each = learned(views[:3], FOUR_EACH[:3], w.T.to(dtype))
    assert torch.equal(one_each.root, torch.eye(WIDTH, dtype=dtype))


@pytest.mark.parametrize("name", ["metric", "generative"])
def test_the_choice_never_sees_an_image_that_is_held_out(monkeypatch, name):
    """Neither through the metric nor the generative classifier: what predicts a part does not change with it."""
    w = world()
    views, labels = w.views(FOUR_EACH), torch.tensor(FOUR_EACH)
    _, held = held_out_parts(labels, 4)[0]
    spoilt = views.clone()
    spoilt[held] = F.normalize(
        spoilt[held] + 3 * torch.randn(spoilt[held].shape, generator=w.generator).to(views), dim=-1
    )
    original, found = getattr(ClassStatistics, name), []
    for shown in (views, spoilt):
        seen = []
        monkeypatch.setattr(ClassStatistics, name, lambda *given, seen=seen: seen.append(original(*given)) or seen[-1])
        text_alone(w.T).learn(shown, labels)
        found.append(seen)
    first, second = found
    assert len(first) == 5  # four parts, and the whole
    torch.testing.assert_close(first[0], second[0])
    assert not torch.allclose(first[-1], second[-1], rtol=1e-2)


def test_one_view_of_each_class_has_no_metric():
    w = world()
    assert torch.equal(learned(w.views([0, 1, 2], 0), [0, 1, 2], w.T).root, torch.eye(WIDTH, dtype=torch.float64))


# --- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prior_std": 0.0}, "prior_std must be positive"),
        ({"prior_std": math.nan}, "prior_std must be positive"),
        ({"gain_std": -1.0}, "gain_std must be positive"),
        ({"generative": -1.0}, "generative must be finite"),
        ({"generative": 1e300}, "generative 1e\\+300 cannot be computed with"),
        ({"gain_std": math.inf}, "gain_std must be positive"),
        ({"crops": -1}, "crops must be a whole number"),
        ({"crops": 2.5}, "crops must be a whole number"),
        ({"crop_scale": (0.0, 1.0)}, "crop_scale"),
        ({"crop_scale": (0.9, 0.3)}, "crop_scale"),
        ({"crop_scale": (0.5, 1.1)}, "crop_scale"),
        ({"crop_scale": (0.5,)}, "crop_scale"),
        ({"centre_weight": 0.0}, "centre_weight"),
        ({"centre_weight": 1.5}, "centre_weight"),
        ({"folds": 1}, "folds must be at least 2"),
        ({"folds": 2.0}, "folds must be a whole number"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ConfigError, match=message):
        ClassResidualsConfig(**options)


def test_the_regulation_of_outlying_images():
    """A mislabelled image has less influence with alpha."""
    w = world()
    labels = [0, 1, 2] * 6
    views = w.views(labels)
    labels[0] = 1
    test = w.views([0] * 20)
    config = ClassResidualsConfig(prior_std=0.3)
    losses = [loss(learned(views, labels, w.T, config, alpha), test, [0] * 20) for alpha in (0.0, 1.0)]
    assert losses[1] < losses[0]


# --- through Kalman


@pytest.fixture(scope="module")
def task(images):
    """Three of each for training, two for testing."""
    return FewShotTask(
        images.subset(i for i in range(15) if i % 5 < 3), test=images.subset(i for i in range(15) if i % 5 >= 3)
    )


FEW_CROPS = ClassResidualsConfig(crops=2)


def fitted(backbone, task, config=FEW_CROPS):
    method = ClassResiduals(backbone, config)
    assert method.fit(task) == []
    return method


@pytest.fixture
def decoded_files(monkeypatch):
    """The files that are decoded."""
    from kalmanclip.data import images as module

    files, decode = [], module.decode_file
    monkeypatch.setattr(module, "decode_file", lambda path, *rest: files.append(path) or decode(path, *rest))
    return files


@pytest.fixture(scope="module")
def method(tiny, task):
    return fitted(tiny, task)


def test_the_default_learns_class_residuals(tiny, task):
    method = ClassResiduals(tiny)
    method.set_classes(task.class_names, task.templates)
    labels = torch.tensor(task.train.labels)
    before = F.cross_entropy(method.logits(task.train.sources), labels)
    assert not method.fitted
    method.fit(task)
    assert method.fitted
    assert F.cross_entropy(method.logits(task.train.sources), labels) < 0.7 * before
    zero_shot = method.predict(task.train.sources, zero_shot=True).zero_shot
    assert F.cross_entropy(zero_shot, labels) == pytest.approx(before.item(), rel=1e-5)


def test_the_classifier_of_the_default_is_its_logits(tiny, task, method):
    f = image_features(DualEncoder(tiny), task.test.sources)
    expected = tiny.logit_scale * f @ method.class_weights().mT
    torch.testing.assert_close(method.logits(task.test.sources), expected, rtol=1e-3, atol=1e-3)


def test_the_belief_about_logits(tiny, task, method):
    (belief,) = method.linearized_batches(task.test.sources, scaled=False)
    assert belief.mean.shape == belief.std.shape == (6, 3)
    torch.testing.assert_close(belief.mean, method.logits(task.test.sources))
    assert belief.std.isfinite().all()
    assert (belief.std > 0).all()
    assert method.predict([]).std.shape == (0, 3)
    with pytest.raises(ConfigError, match="fit first"):
        ClassResiduals(tiny).linearized_batches(task.test.sources)


def test_a_new_class_is_learned_and_the_old_ones_are_told_apart_as_before(tiny, images):
    names, templates = images.class_names, ("a photo of a {}.",)
    old = LabelledImages(images.sources[:10], images.labels[:10], names[:2])
    new = LabelledImages(images.sources[10:14], images.labels[10:14], names)
    method = fitted(tiny, FewShotTask(old, templates=templates))
    D = method.residuals.belief.mean
    method.set_classes(names, templates)
    before = F.cross_entropy(method.logits(new.sources), torch.tensor(new.labels))
    assert (method.residuals.belief.mean[2] == 0).all()
    assert torch.equal(method.residuals.belief.mean[:2], D)
    method.update(new)
    assert F.cross_entropy(method.logits(new.sources), torch.tensor(new.labels)) < 0.5 * before
    moved = (method.residuals.belief.mean - torch.cat([D, torch.zeros_like(D[:1])])).norm(dim=1)
    assert moved[:2].max() < moved[2]
    assert moved[:2].max() < D.norm(dim=1).min()
    logits = method.logits(old.sources)[:, :2]
    assert (logits.argmax(dim=1) == torch.tensor(old.labels)).sum() >= 9


@pytest.mark.parametrize(("views", "times"), [(0, 1), (3, 2)])
def test_a_picture_is_decoded_for_the_centre_crop_and_once_for_all_random_ones(tiny, task, decoded_files, views, times):
    fitted(tiny, task, ClassResidualsConfig(crops=views))
    assert sorted(decoded_files) == sorted(task.train.sources * times)


def test_with_a_cache_the_same_to_the_last_bit(tiny, task, method, tmp_path, decoded_files):
    before = method.predict(task.test.sources)
    for known in (False, True):
        del decoded_files[:]
        other = fitted(dataclasses.replace(tiny, cache=FeatureCache(tmp_path)), task)
        after = other.predict(task.test.sources)
        assert torch.equal(after.mean, before.mean)
        assert torch.equal(after.std, before.std)
        assert bool(decoded_files) != known


def test_seeds(tiny, task):
    task = FewShotTask(task.train.subset([0, 3, 6]))
    one = ClassResidualsConfig(crops=1)
    a, b, c = (fitted(tiny, task, dataclasses.replace(one, seed=seed)).class_weights() for seed in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    centre = ClassResidualsConfig(crops=0)
    a, b = (fitted(tiny, task, dataclasses.replace(centre, seed=seed)).class_weights() for seed in (0, 1))
    assert torch.equal(a, b)  # nothing is random then


def test_a_failed_fit_is_no_fit(tiny, task, monkeypatch):
    method = ClassResiduals(tiny, FEW_CROPS)

    def broken(*args, **options):
        raise NumericalError("broken")

    monkeypatch.setattr("kalmanclip.methods.residuals.softmax_update", broken)
    with pytest.raises(NumericalError, match="broken"):
        method.fit(task)
    assert not method.fitted


def test_the_options_reach_the_residuals(tiny, task):
    config = ClassResidualsConfig(crops=1, prior_std=0.05, alpha=0.7)
    method = fitted(tiny, task, config)
    assert method.residuals.prior_std == pytest.approx(0.05)
    assert (method.residuals.config.alpha, method.residuals.scale) == (0.7, tiny.logit_scale)


def test_progress_counts_every_view(tiny, task):
    told = []
    ClassResiduals(tiny, FEW_CROPS).fit(task, lambda *step: told.append(step))
    reading = [step[1:] for step in told if step[0] == "reading images"]
    assert reading[-1] == (27, 27)
    assert [done for done, _ in reading] == sorted(done for done, _ in reading)
    assert "learning the classes" in {step[0] for step in told}


# --- real images


def test_four_shots_of_satellite_photos(tiny, shared_data):
    """Measured on training images outside the list of shots; the test images are for the final comparison."""
    folder = shared_data / "eurosat"
    images = read_folder(folder / "train")
    shots = read_shot_lists(folder, images).find(16, 1)
    assert shots.name == "shot16_seed1.txt"
    outside = images.subset(sorted(set(range(len(images))) - set(shots.positions))[::3])  # a third of them will do
    task = FewShotTask(images.subset(shots.first(images, 4)), templates=("a centered satellite photo of {}.",))
    labels = torch.tensor(outside.labels)
    method = ClassResiduals(tiny)
    method.fit(task)
    assert len(task.train) == 40
    prediction = method.predict(outside.sources, how="mean", zero_shot=True)
    tuned, zero_shot = prediction.mean, prediction.zero_shot
    gained = (tuned.argmax(dim=1) == labels).double().mean() - (zero_shot.argmax(dim=1) == labels).double().mean()
    assert gained > 0.15
    assert F.cross_entropy(tuned, labels) < 1.3

"""Learning on: what is kept of images, streams of classes and of single images, with and against the joint fit."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from kalmanclip.errors import ConfigError
from kalmanclip.methods import ClassResidualsConfig
from kalmanclip.methods.residuals import TYPICAL_STD, Evidence, Fold, FoldResiduals, ResidualBelief, Scales
from kalmanclip.methods.statistics import ClassStatistics
from kalmanclip.prediction import update_scale

from .test_class_residuals import SCALE, WIDTH, learned, world

CLOSE = {"rtol": 1e-9, "atol": 1e-11}
NAMES = [f"class {c}" for c in range(6)]
FIXED = ClassResidualsConfig(prior_std=0.2, alpha=0.0)


def labels_of(C, each):
    return torch.arange(C).repeat_interleave(each)


def accuracy(residuals, here, each=40):
    labels = labels_of(len(residuals.names), each)
    found = residuals.logits(here.views(labels, V=0)[:, 0]).argmax(dim=1)
    return (found == labels).double().mean().item()


def assert_same(a, b):
    for name, tensor in a.state_dict().items():
        torch.testing.assert_close(tensor, b.state_dict()[name], msg=lambda m, name=name: f"{name}: {m}", **CLOSE)


@given(seed=st.integers(0, 2**31), cut=st.integers(1, 11), V=st.sampled_from([0, 1, 4]))
@settings(max_examples=25, deadline=None)
def test_recollections_of_parts_add_up_to_that_of_the_whole(seed, cut, V):
    here = world(seed)
    labels = torch.randint(3, (12,), generator=here.generator)
    views = here.views(labels, V=V)
    whole = ClassStatistics.of(views, labels, 3)
    assert_same(
        ClassStatistics.of(views[:cut], labels[:cut], 3) + ClassStatistics.of(views[cut:], labels[cut:], 3), whole
    )


def test_the_sums_are_those_of_their_definition():
    here, labels = world(1), torch.tensor([0, 2, 2, 0, 2])
    views = here.views(labels, V=3)
    made = ClassStatistics.of(views, labels, 3)
    assert made.count.tolist() == [2, 0, 3]
    within = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
    for label in (0, 2):
        own = views[labels == label]
        torch.testing.assert_close(made.means[label], own.mean(dim=(0, 1)), **CLOSE)
        for image in own:
            for view in image:
                within += torch.outer(view - own.mean(dim=(0, 1)), view - own.mean(dim=(0, 1))) / 4
    torch.testing.assert_close(made.within, within, **CLOSE)


def test_the_metric_is_a_power_of_the_covariance_within_classes():
    """M = root root^T is (V + 0.03 v_max I)^(-3/4) but for a factor, V the covariance of views around their class."""
    here, labels = world(4), labels_of(3, 5)
    views = here.views(labels, V=4).numpy()
    V = np.mean([np.cov(views[labels == c].reshape(-1, WIDTH).T, bias=True) for c in range(3)], axis=0)
    values, vectors = np.linalg.eigh(V)
    assert values[-1] > 10 * values[0]  # else every exponent gives the identity
    expected = vectors @ np.diag((values + 0.03 * values[-1]) ** -0.75) @ vectors.T
    expected /= np.einsum("nvd,de,nve->nv", views, expected, views).mean()  # f^T M f is one on average
    root = ClassStatistics.of(torch.from_numpy(views), labels, 3).metric().numpy()
    np.testing.assert_allclose(root, root.T, rtol=0, atol=1e-12)
    np.testing.assert_allclose(root @ root.T, expected, rtol=1e-9, atol=1e-12)


def test_pseudo_images_lie_where_the_images_lay():
    here = world(2)
    labels = labels_of(3, 40)
    views = here.views(labels, V=2, noise=0.1)
    made = ClassStatistics.of(views, labels, 3)
    f, recalled, weights = made.pseudo_images()
    torch.testing.assert_close(torch.zeros(3).double().index_add_(0, recalled, weights), made.count, **CLOSE)
    torch.testing.assert_close(f.norm(dim=1), torch.ones(len(f)).double(), **CLOSE)
    for label in range(3):
        apart = f[recalled == label].mean(dim=0) - made.means[label]
        assert apart.norm() < 0.1
    total = sum(float(f[recalled == c].var(dim=0, correction=0).sum()) for c in range(3)) / 3
    assert total == pytest.approx(float(made.within.trace() / made.count.sum()), rel=0.25)


def test_pseudo_images_of_many_classes_spread_as_all_images_do():
    """16 of each, eight pairs, are too few to spread in twelve directions; those of all classes are not."""
    here = world(2)
    labels = labels_of(3, 40)
    made = ClassStatistics.of(here.views(labels, V=2, noise=0.1), labels, 3)
    many = 600
    same = dataclasses.replace(
        made, count=torch.ones(many).double(), total=made.means[:1].repeat(many, 1), within=made.within * many / 120
    )
    f = same.pseudo_images()[0]
    assert len(f) == 16 * many
    V = made.within / 120
    found = torch.from_numpy(np.cov(f.numpy().T, bias=True))
    along = torch.from_numpy(np.cov(F.normalize(made.means[0] + _gaussian(V, 20000), dim=1).numpy().T, bias=True))
    assert (found - along).norm() < 0.1 * along.norm()


def _gaussian(V, count):
    values, vectors = np.linalg.eigh(V.numpy())
    noise = np.random.default_rng(0).standard_normal((count, len(V)))
    return torch.from_numpy(noise * np.sqrt(values.clip(0)) @ vectors.T)


def test_very_many_classes_have_fewer_pseudo_images():
    made = ClassStatistics.empty(2000, torch.zeros(4))
    full = dataclasses.replace(made, count=torch.ones(2000), total=torch.ones(2000, 4))
    assert len(full.pseudo_images()[0]) == 2000 * 16
    assert len(made.pseudo_images()[0]) == 0


def test_without_new_images_the_mode_stays():
    """The slope makes the mean of the belief the mode of what is kept."""
    here = world(3)
    labels = labels_of(3, 8)
    residuals = learned(here.views(labels), labels, here.T, FIXED)
    before, gain = residuals.belief.mean.clone(), float(residuals.belief.gain)
    residuals.relearn([residuals.statistics], residuals.belief.strength)
    torch.testing.assert_close(residuals.belief.mean, before, rtol=0, atol=0.02 * float(before.norm(dim=1).mean()))
    assert float(residuals.belief.gain) == pytest.approx(gain, abs=0.02)


def streamed(here, groups, each, config=FIXED):
    """Classes arrive group by group; only the images of the group are there."""
    residuals, seen = ResidualBelief(config, SCALE), []
    for group in groups:
        seen = seen + group
        residuals.set_classes([NAMES[c] for c in seen], here.T[seen])
        labels = torch.arange(len(seen) - len(group), len(seen)).repeat_interleave(each)
        residuals.learn(here.views(torch.tensor(seen)[labels]), labels)
    return residuals


@pytest.mark.parametrize("seed", range(3))
def test_a_class_can_be_added_without_the_old_images(seed):
    """Old classes stay known, new ones become known, and all in all little is lost against the joint fit."""
    here = world(seed, C=6, distance=2.0)
    labels = labels_of(6, 8)
    together = accuracy(learned(here.views(labels), labels, here.T, FIXED, names=NAMES), here)
    one_by_one = streamed(here, [[0, 1], [2], [3], [4], [5]], each=8)
    assert one_by_one.names == NAMES
    assert accuracy(one_by_one, here) > together - 0.07


def test_new_classes_do_not_swallow_the_old_ones():
    here = world(4, C=6, distance=2.0)
    residuals = streamed(here, [[0, 1, 2], [3, 4, 5]], each=8)
    labels = labels_of(3, 60)
    old = residuals.logits(here.views(labels, V=0)[:, 0]).argmax(dim=1)
    assert (old > 2).double().mean() < 0.15


@pytest.mark.parametrize("seed", range(2))
def test_single_images_in_random_order_approach_the_joint_fit(seed):
    here = world(seed, C=4, distance=2.0)
    labels = labels_of(4, 8)
    views = here.views(labels)
    joint = learned(views, labels, here.T, FIXED, names=NAMES[:4])
    residuals = ResidualBelief(FIXED, SCALE)
    residuals.set_classes(NAMES[:4], here.T)
    for i in torch.randperm(len(labels), generator=here.generator).tolist():
        residuals.learn(views[i : i + 1], labels[i : i + 1])
        assert torch.isfinite(residuals.weights()).all()
    assert residuals.statistics.count.tolist() == [8, 8, 8, 8]
    assert accuracy(residuals, here, 100) > accuracy(joint, here, 100) - 0.05
    f = here.views(labels_of(4, 50), V=0)[:, 0]
    agree = (residuals.logits(f).argmax(dim=1) == joint.logits(f).argmax(dim=1)).double().mean()
    assert agree > 0.85


@given(order=st.permutations(list(range(8))), V=st.sampled_from([0, 5]))
@settings(max_examples=8, deadline=None)
def test_a_stream_of_single_images_never_fails_and_its_sums_do_not_depend_on_the_order(order, V):
    here = world(5, C=4)
    labels = labels_of(4, 2)
    views = here.views(labels, V=V)
    residuals = ResidualBelief(ClassResidualsConfig(crops=V, alpha=0.0), SCALE)
    known: list[int] = []
    for i in order:
        label = int(labels[i])
        known = known if label in known else [*known, label]
        residuals.set_classes([NAMES[c] for c in known], here.T[known])
        residuals.learn(views[i : i + 1], torch.tensor([known.index(label)]))
        assert torch.isfinite(residuals.logits(views[:, 0])).all()
        assert torch.isfinite(residuals.variance(views[:, 0])).all()
    whole = ClassStatistics.of(views, labels, 4).select(known)
    for name in ("count", "total", "within"):
        torch.testing.assert_close(getattr(residuals.statistics, name), getattr(whole, name), **CLOSE)


def test_a_class_that_is_dropped_is_forgotten():
    here = world(6)
    labels = labels_of(3, 4)
    residuals = learned(here.views(labels), labels, here.T, FIXED, names=NAMES[:3])
    residuals.set_classes([NAMES[2], "new", NAMES[0]], here.T)
    assert residuals.statistics.count.tolist() == [4, 0, 4]
    residuals.learn(here.views(torch.tensor([1, 1])), torch.tensor([1, 1]))
    assert residuals.statistics.count.tolist() == [4, 2, 4]


def test_fewer_classes_spread_as_before():
    here = world(3)
    labels = labels_of(3, 8)
    whole = ClassStatistics.of(here.views(labels, V=3), labels, 3)
    some = whole.select([2, None, 1])
    assert some.count.tolist() == [8, 0, 8]
    torch.testing.assert_close(some.within / 16, whole.within / 24, **CLOSE)


def test_what_is_kept_survives_the_state():
    here = world(7)
    labels = labels_of(3, 4)
    residuals = learned(here.views(labels), labels, here.T, FIXED, names=NAMES[:3])
    again = ResidualBelief(FIXED, SCALE)
    again.load_state_dict({name: t.clone() for name, t in residuals.state_dict().items()}, residuals.names)
    again.set_classes(residuals.names, here.T)
    more = here.views(torch.tensor([0, 1]))
    for one in (residuals, again):
        one.learn(more, torch.tensor([0, 1]))
    torch.testing.assert_close(again.belief.mean, residuals.belief.mean, rtol=0, atol=0)


# --- the prior, chosen again


OPEN = ClassResidualsConfig(alpha=0.0)


def test_held_out_images_of_a_stream_are_predicted_from_what_is_kept_and_the_others():
    """As by a stream that never saw them: with slopes, with the metric and the generative classifier of all others."""
    here = world(9, C=4, distance=2.0)
    old, labels = labels_of(4, 6), labels_of(4, 4)
    views, new = here.views(old, V=2), here.views(labels, V=2)
    given = ClassResidualsConfig(crops=2, prior_std=0.1, generative=3.0, alpha=0.0)
    residuals = learned(views, old, here.T, given, names=NAMES[:4])
    held = torch.arange(16) % 4 == 0
    fold = Fold(new[~held], labels[~held], new[held], labels[held], here.T, (Evidence.pseudo(residuals.statistics),))
    part = FoldResiduals(residuals, fold)
    part.generative = 3.0
    found = part.logits(0.1).mean
    residuals.learn(new[~held], labels[~held])
    said, expected = (logits.log_softmax(dim=1) for logits in (found, residuals.logits(new[held][:, 0])))
    torch.testing.assert_close(said, expected, atol=0.1, rtol=0)  # of log-probabilities down to -8


def shuffled(here, labels):
    return labels[torch.randperm(len(labels), generator=here.generator)]


@pytest.mark.parametrize("seed", range(3))
def test_a_stream_takes_another_prior_where_later_images_want_one(seed):
    """Labels that mean nothing want a narrow prior; later images, the most, a wide one, and so does a joint fit."""
    here = world(seed, C=6, distance=2.0)
    noise, labels = labels_of(2, 8), labels_of(6, 12)
    old, new = here.views(noise), here.views(labels)
    noise = shuffled(here, noise)
    residuals = learned(old, noise, here.T[:2], OPEN, names=NAMES[:2])
    first = residuals.prior_std
    residuals.set_classes(NAMES, here.T)
    residuals.learn(new, labels)
    joint = learned(torch.cat([old, new]), torch.cat([noise, labels]), here.T, OPEN, names=NAMES).prior_std
    assert joint > 1.9 * first
    assert joint / 1.5 < residuals.prior_std < joint * 1.5


def test_a_choice_begins_with_what_is_known_by_then(monkeypatch):
    priors = []

    def spied(score, around, factor, prior, reach):
        priors.append(prior)
        return update_scale(score, around, factor, prior, reach)

    monkeypatch.setattr("kalmanclip.methods.residuals.update_scale", spied)
    here = world(2, C=3, distance=3.0)
    labels = labels_of(3, 8)
    residuals = learned(here.views(labels), labels, here.T, OPEN)
    first = residuals.scales
    residuals.learn(here.views(labels), labels)
    assert priors == [*Scales(), *first]
    assert residuals.scales.std.precision > first.std.precision > Scales().std.precision


def test_single_images_leave_the_choice_as_it_is():
    """One new image of a class is not held out."""
    here = world(2, C=3, distance=3.0)
    labels = labels_of(3, 8)
    residuals = learned(here.views(labels), labels, here.T, OPEN)
    before = residuals.prior_std, residuals.generative, residuals.scales, residuals.covariance_scale
    residuals.learn(here.views(torch.arange(3)), torch.arange(3))
    after = residuals.prior_std, residuals.generative, residuals.scales, residuals.covariance_scale
    assert after == (pytest.approx(before[0]), *before[1:])


def test_a_prior_that_is_given_stays():
    here = world(2, C=3, distance=3.0)
    labels = labels_of(3, 8)
    given = ClassResidualsConfig(prior_std=0.05, generative=7.0, alpha=0.0)
    residuals = learned(here.views(labels), labels, here.T, given)
    residuals.learn(here.views(labels), labels)
    assert (residuals.prior_std, residuals.generative) == (pytest.approx(0.05), 7.0)
    assert residuals.scales == Scales()
    residuals.config = dataclasses.replace(given, generative=None)
    residuals.relearn([residuals.statistics], 0.1**-2)  # as of sites that were given different ones
    residuals.learn(here.views(labels), labels)
    assert residuals.prior_std == pytest.approx(0.1)
    assert residuals.scales.generative != Scales().generative


def test_the_choice_is_stored_and_adapters_of_older_versions_choose_from_where_they_are():
    here = world(2, C=3, distance=3.0)
    labels = labels_of(3, 8)
    residuals = learned(here.views(labels), labels, here.T, OPEN)
    state = residuals.state_dict()
    again = ResidualBelief(OPEN, SCALE)
    again.load_state_dict(state, residuals.names)
    assert again.scales == residuals.scales != Scales()
    older = ResidualBelief(OPEN, SCALE)
    older.load_state_dict({name: t for name, t in state.items() if name != "scales"}, residuals.names)
    assert older.scales.std.precision == older.scales.generative.precision == 0.25
    assert TYPICAL_STD * 2 ** (older.scales.std.mean / 2) == pytest.approx(residuals.prior_std)
    assert 50 * 2 ** (older.scales.generative.mean / 2) == pytest.approx(residuals.generative)


@pytest.mark.parametrize("broken", [torch.zeros(2), torch.zeros(2, 2), torch.full((2, 2), torch.nan)])
def test_a_choice_that_cannot_be_is_refused(broken):
    here = world(2)
    state = learned(here.views(labels_of(3, 4)), labels_of(3, 4), here.T, OPEN).state_dict()
    with pytest.raises(ConfigError, match=r"scales|chosen by held-out"):
        ResidualBelief(OPEN, SCALE).load_state_dict(state | {"scales": broken}, NAMES[:3])

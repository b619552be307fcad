"""Learning on: what is kept of images, streams of classes and of single images, with and against the joint fit."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kalmanclip.methods import ClassResidualsConfig
from kalmanclip.methods.residuals import ResidualBelief
from kalmanclip.methods.statistics import ClassStatistics

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

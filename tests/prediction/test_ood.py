"""The out-of-distribution score, and the threshold above which an image is flagged."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.prediction.test_mahalanobis import naive as naive_distance

from kalmanclip.errors import ConfigError
from kalmanclip.prediction.ood import CONFIDENCE, FAR_WEIGHT, SHRINKAGE, TEXT_WEIGHT, OODDetector


def unit(*shape, generator):
    return F.normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)


def known(counts, d=12, seed=0, spread=1.0):
    """Images around class centres, so many of each class, in a random order; float64."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=g)]
    centres = 2 * unit(len(counts), d, generator=g) + unit(1, d, generator=g)
    noise = torch.randn(len(labels), d, generator=g, dtype=torch.float64)
    features = F.normalize(centres[labels] + spread * noise / math.sqrt(d), dim=-1)
    return OODDetector.of(features, labels, unit(len(counts), d, generator=g), [f"{i}.jpg" for i in range(len(labels))])


def naive_unfamiliarity(f, features, labels, texts):
    """The definition, image by image and class by class."""
    found = []
    present = sorted(set(labels.tolist()))
    means = {c: features[labels == c].mean(dim=0) for c in present}
    g = torch.stack(list(means.values())).mean(dim=0)
    for one in f:
        towards = []
        for c in range(len(texts)):
            total = features[labels == c].sum(dim=0) + SHRINKAGE * g
            towards.append(float(one @ total / total.norm()))
        text = [float(one @ t) for t in texts]
        margin = max(text) - sum(text) / len(text)
        found.append(-(max(towards) + float(one @ g / g.norm()) + TEXT_WEIGHT * margin))
    return torch.tensor(found, dtype=torch.float64)


def naive_held_out(what, k, *more):
    """Of each image, by a model made without it."""
    found = []
    for i in range(len(k.features)):
        others = torch.arange(len(k.features)) != i
        found.append(what(k.features[i : i + 1], k.features[others], k.labels[others], *more))
    return torch.cat(found)


def comparable(k):
    """Whether there are two classes, and two images of each on average."""
    classes = len(set(k.labels.tolist()))
    return classes > 1 and len(k.features) >= 2 * classes


def naive_score(near, far, k):
    """The definition; what is standardised is standardised by the images, held out."""
    held_far = naive_held_out(naive_unfamiliarity, k, k.texts)
    if not comparable(k):
        return far
    held_near = naive_held_out(naive_distance, k)
    z, u = ((x - held.mean()) / held.std() for x, held in ((near, held_near), (far, held_far)))
    return (1 + z.exp()).log() + FAR_WEIGHT * (1 + u.exp()).log()


COUNTS = [[3, 3, 3], [1, 1, 1, 1], [5, 1, 2], [5, 1, 1], [4, 0, 2], [6], [2, 1, 1]]


@pytest.mark.parametrize("counts", COUNTS)
def test_the_score_is_its_definition(counts):
    k = known(counts)
    f = unit(9, 12, generator=torch.Generator().manual_seed(5))
    far = naive_unfamiliarity(f, k.features, k.labels, k.texts)
    torch.testing.assert_close(k.unfamiliarity(f), far)
    near = naive_distance(f, k.features, k.labels) if comparable(k) else None
    torch.testing.assert_close(k.score(f), naive_score(near, far, k))


@pytest.mark.parametrize("counts", COUNTS)
def test_held_out_scores_are_those_of_a_model_without_the_image(counts):
    k = known(counts)
    far = naive_held_out(naive_unfamiliarity, k, k.texts)
    near = naive_held_out(naive_distance, k) if comparable(k) else None
    torch.testing.assert_close(k.held_out, naive_score(near, far, k))


def test_neither_part_makes_up_for_the_other(monkeypatch):
    """A picture far from all, but far out on the side of one class, is strange all the same."""
    k = known([3, 3, 3])
    near, far = (list(part) for part in zip(*((-20.0, 3.0), (0.0, 0.0), (3.0, -20.0)), strict=True))
    monkeypatch.setattr("kalmanclip.prediction.ood._standardized", lambda values, reference: values)
    pictures = type(k._held_out)(torch.tensor(near), torch.tensor(far))
    far_stranger, usual, near_stranger = k._combined(pictures).tolist()
    assert far_stranger > usual + 3
    assert near_stranger > usual + 0.9


def test_other_images_have_a_larger_score():
    k = known([8] * 5, d=32)
    g = torch.Generator().manual_seed(9)
    outside = k.score(unit(200, 32, generator=g))
    assert k.score(k.features).max() < outside.median()
    assert k.held_out.median() < outside.quantile(0.1)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.lists(st.integers(1, 4), min_size=2, max_size=5))
def test_the_order_of_images_and_classes_does_not_matter(seed, counts):
    k = known(counts, seed=seed)
    rng = np.random.default_rng(seed)
    images = torch.from_numpy(rng.permutation(len(k.labels)))
    classes = rng.permutation(len(counts))
    place = torch.from_numpy(np.argsort(classes))
    sources = [k.names[i] for i in images]
    other = OODDetector.of(k.features[images], place[k.labels[images]], k.texts[classes], sources)
    f = unit(4, 12, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(other.score(f), k.score(f))
    torch.testing.assert_close(other.held_out, k.held_out[images])
    chosen = k.select(classes.tolist(), k.texts[classes])
    torch.testing.assert_close(chosen.score(f), k.score(f))


def test_images_can_be_added_and_classes_left_out():
    k = known([3, 2, 4])
    half = OODDetector.of(k.features[:4], k.labels[:4], k.texts, k.names[:4])
    f = unit(4, 12, generator=torch.Generator().manual_seed(1))
    both = half.with_more(k.features[4:], k.labels[4:], k.names[4:])
    torch.testing.assert_close(both.score(f), k.score(f))
    assert both.names == k.names
    again = half.with_more(k.features[2:], k.labels[2:], k.names[2:])  # two of them are there already
    torch.testing.assert_close(again.held_out, k.held_out)
    assert again.names == k.names
    fewer = k.select([2, None, 0], k.texts[[2, 1, 0]])
    assert sorted(fewer.labels.tolist()) == [0, 0, 0, 0, 2, 2, 2]
    assert fewer.names == tuple(s for s, c in zip(k.names, k.labels.tolist(), strict=True) if c != 1)
    assert fewer.threshold(0.2).counted


def test_false_alarms_are_as_many_as_asked_for():
    """Drawn again and again, new images of the same classes lie above the threshold as often as promised."""
    for counts, rate in (([20] * 5, 0.05), ([2] * 10, 0.1), ([1] * 12, 0.05)):
        alarms = []
        for seed in range(60):
            everything = known([c + 20 for c in counts], seed=seed, spread=0.8)
            seen: dict[int, int] = {}
            learned = torch.zeros(len(everything.labels), dtype=torch.bool)
            for i, c in enumerate(everything.labels.tolist()):
                learned[i] = seen.get(c, 0) < counts[c]
                seen[c] = seen.get(c, 0) + 1
            names = [""] * int(learned.sum())
            k = OODDetector.of(everything.features[learned], everything.labels[learned], everything.texts, names)
            threshold = k.threshold(rate)
            assert threshold.counted == (rate * (len(names) + 1) >= 1)
            alarms.append(float((k.score(everything.features[~learned]) > threshold.value).double().mean()))
        error = np.std(alarms) / math.sqrt(len(alarms))
        assert np.mean(alarms) < rate + 3 * error
        if min(counts) > 1:  # a single image of a class cannot say how another one would score: careful
            assert np.mean(alarms) > 0.3 * rate


@pytest.mark.parametrize(("rate", "rank"), [(0.05, 1), (0.1, 2), (0.149, 2), (0.5, 10)])
def test_thresholds_by_hand(rate, rank):
    """Of 19 images, a new one lies above the k-th largest with chance k / 20."""
    k = known([10, 9])
    found = k.threshold(rate)
    assert found[:2] == (k.held_out.sort(descending=True).values[rank - 1].item(), True)
    assert not found.calibrated
    # of 19 uniform numbers, the rank-th smallest is below the ends of the interval with these chances
    tails = (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2
    chances = [scipy.stats.binom(19, end).sf(rank - 1) for end in found.interval]
    assert chances == pytest.approx(tails)
    # too few to count: the prediction interval of a Gaussian of unknown mean and variance (Student's t)
    few = known([3, 3], seed=1)
    scores = few.held_out.numpy()
    quantile = scipy.stats.t(df=5, loc=scores.mean(), scale=scores.std(ddof=1) * math.sqrt(7 / 6)).ppf(0.98)
    assert few.threshold(0.02) == (pytest.approx(quantile), False, None, False)


def test_images_held_out_altogether_make_the_threshold():
    k = known([3, 3])
    scores = torch.arange(19.0, dtype=torch.float64)
    with_them = dataclasses.replace(k, calibration=scores)
    assert with_them.threshold(0.1)[:2] == (17.0, True)
    assert with_them.threshold(0.1).calibrated
    assert with_them.threshold(0.01) == k.threshold(0.01)  # too few for this rate
    more = with_them.with_more(k.features[:1], 1 - k.labels[:1], ["new"])
    assert (more.calibration, len(more.names)) == (None, 7)
    assert with_them.select([1, 0], k.texts).calibration is None


def test_the_share_of_false_alarms_lies_in_the_interval_as_often_as_promised():
    """Of images held out altogether, drawn again and again."""
    everything = known([400] * 4, spread=0.8)
    learned = torch.arange(len(everything.labels)) < 60
    k = OODDetector.of(everything.features[learned], everything.labels[learned], everything.texts, [""] * 60)
    scores = k.score(everything.features[~learned])
    inside, shares = [], []
    for seed in range(200):
        order = torch.randperm(len(scores), generator=torch.Generator().manual_seed(seed))
        held, new = scores[order[:59]], scores[order[59:]]
        found = dataclasses.replace(k, calibration=held).threshold(0.05)
        shares.append(float((new > found.value).double().mean()))
        inside.append(found.interval[0] <= shares[-1] <= found.interval[1])
    assert abs(np.mean(inside) - CONFIDENCE) < 0.07
    assert abs(np.mean(shares) - 0.05) < 0.01


def test_a_stricter_rate_has_a_higher_threshold():
    k = known([10] * 4)
    values = [k.threshold(rate).value for rate in (0.001, 0.01, 0.05, 0.2, 0.5)]
    assert values == sorted(values, reverse=True)


def test_the_nearest_are_the_most_similar():
    k = known([3, 3])
    found = k.nearest(k.features, 2)
    assert found.position[:, 0].tolist() == list(range(6))
    similarity = k.features @ k.features.mT
    torch.testing.assert_close(found.similarity, similarity.sort(dim=1, descending=True).values[:, :2])
    assert k.nearest(k.features, 50).position.shape == (6, 6)


@pytest.mark.parametrize("rate", [0, 1, -0.1, math.nan])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(ConfigError, match="rate of false alarms"):
        known([3, 3]).threshold(rate)


def test_too_few_images_are_refused():
    with pytest.raises(ConfigError, match="at least 3"):
        known([1, 1]).threshold(0.05)
    with pytest.raises(ConfigError, match="belong together"):
        OODDetector.of(torch.zeros(2, 4), torch.zeros(3), torch.zeros(2, 4), ["", ""])

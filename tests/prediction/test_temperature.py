import math

import pytest
import torch

from kalmanclip.prediction import (
    TYPICAL_SCALE,
    LogitGaussian,
    ScaleBelief,
    expected_softmax,
    fit_covariance_scale,
    fuse_scales,
    log_likelihood,
    update_scale,
)


def foreseen(images: int, t: float, size: float = 400.0):
    """Images whose labels come from logits of which the belief is ``1 / t`` times too wide."""
    g = torch.Generator().manual_seed(0)
    logits = LogitGaussian(2 * torch.randn(images, 5, generator=g), torch.full((images, 5), size))
    true = logits.mean + math.sqrt(t * size) * torch.randn(images, 5, generator=g)
    return logits, torch.multinomial(true.softmax(dim=1), 1, generator=g).squeeze(1)


@pytest.mark.parametrize("t", [TYPICAL_SCALE / 16, TYPICAL_SCALE, TYPICAL_SCALE * 8])
def test_many_images_decide(t):
    logits, labels = foreseen(4000, t)
    found = fit_covariance_scale(lambda t: log_likelihood(logits.scaled(t), labels))
    assert t / 2.1 <= found <= t * 2.1


def test_few_images_change_little():
    logits, labels = foreseen(3, 1.0)
    assert (
        TYPICAL_SCALE <= fit_covariance_scale(lambda t: log_likelihood(logits.scaled(t), labels)) <= 4 * TYPICAL_SCALE
    )
    assert fit_covariance_scale(lambda t: 0.0) == TYPICAL_SCALE
    assert fit_covariance_scale(lambda t: 0.0, around=0.5) == 0.5


@pytest.mark.parametrize(("nats", "steps"), [(0.4, 0), (0.6, 1), (2.2, 2), (-1.2, -1), (-3.4, -3), (100.0, 7)])
def test_doublings_are_surprising_by_hand(nats, steps):
    """So many nats per doubling against a standard normal over doublings: ``nats k - k^2 / 2`` is largest at k."""
    assert fit_covariance_scale(lambda t: nats * math.log2(t / 0.5), around=0.5) == pytest.approx(0.5 * 2.0**steps)


def test_the_search_ends():
    assert fit_covariance_scale(lambda t: 1000 * math.log(t)) == pytest.approx(TYPICAL_SCALE * 2**7)
    assert fit_covariance_scale(lambda t: -1000 * math.log(t)) == pytest.approx(TYPICAL_SCALE / 2**7)


PRIOR = ScaleBelief(0.0, 0.25)


def seen(mean, precision):
    """The log-likelihood of an observation of the step, so precise; step zero is 3, and steps are doublings."""
    return lambda value: 7.0 - precision * (math.log2(value / 3) - mean) ** 2 / 2


def updated(score, prior, reach=20):
    return update_scale(score, 3.0, 2.0, prior, reach)


def test_a_parabola_gives_the_product_of_gaussians():
    value, found = updated(seen(5.3, 0.75), ScaleBelief(1.3, 0.25))
    assert found == pytest.approx((0.75 * 5.3 + 0.25 * 1.3, 1.0))
    assert value == pytest.approx(3 * 2.0**4)  # the step nearest to 4.3


def test_observations_one_after_the_other_are_their_sum_and_so_is_their_fusion():
    one, other = seen(5.3, 0.75), seen(-2.0, 2.0)
    _, first = updated(one, PRIOR)
    value, both = updated(other, first)
    expected_value, expected = updated(lambda v: one(v) + other(v), PRIOR)
    assert value == expected_value
    assert both == pytest.approx(expected)
    assert fuse_scales([first, updated(other, PRIOR)[1]], PRIOR) == pytest.approx(expected)
    assert fuse_scales([first], PRIOR) == pytest.approx(first)


def test_what_says_nothing_changes_nothing():
    before = ScaleBelief(2.0, 3.0)
    assert updated(lambda v: 1.0, before) == (12.0, pytest.approx(before))


def test_at_the_end_of_the_search_nothing_is_known_of_the_width():
    value, found = updated(lambda v: 1000 * math.log(v), PRIOR, reach=4)
    assert (value, found) == (48.0, ScaleBelief(4, 0.25))
    value, found = updated(seen(-30.0, 5.0), ScaleBelief(9.0, 0.25), reach=4)  # it begins within its reach
    assert (value, found.mean) == (3 / 16, -4)


def test_a_score_without_a_maximum_takes_no_knowledge_away():
    """Steeper and steeper uphill: the parabola through three points would be less precise than the prior."""
    _, found = updated(lambda v: 0.1 * math.log2(v) ** 2, ScaleBelief(0.0, 0.25), reach=6)
    assert found.precision == 0.25


def test_the_score_is_that_of_the_averaged_probabilities():
    logits, labels = foreseen(20, 0.1)
    p = expected_softmax(logits).probabilities
    expected = sum(math.log(p[i, label]) for i, label in enumerate(labels.tolist()))
    assert log_likelihood(logits, labels) == pytest.approx(expected, rel=1e-5)


def test_an_impossible_label_is_not_infinite():
    logits = LogitGaussian(torch.tensor([[1000.0, 0.0]]), torch.zeros(1, 2))
    assert math.isfinite(log_likelihood(logits, torch.tensor([1])))

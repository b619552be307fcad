import math

import pytest
import torch

from kalmanclip.prediction import TYPICAL_SCALE, LogitGaussian, expected_softmax, fit_covariance_scale, log_likelihood


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


def test_the_score_is_that_of_the_averaged_probabilities():
    logits, labels = foreseen(20, 0.1)
    p = expected_softmax(logits).probabilities
    expected = sum(math.log(p[i, label]) for i, label in enumerate(labels.tolist()))
    assert log_likelihood(logits, labels) == pytest.approx(expected, rel=1e-5)


def test_an_impossible_label_is_not_infinite():
    logits = LogitGaussian(torch.tensor([[1000.0, 0.0]]), torch.zeros(1, 2))
    assert math.isfinite(log_likelihood(logits, torch.tensor([1])))

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kalmanclip.prediction import LogitGaussian, Prediction, averaged, expected_softmax


def test_all_agree_that_it_is_open():
    parts = averaged(torch.zeros(10, 1, 4)).decompose()
    torch.testing.assert_close(parts.aleatoric, torch.tensor([math.log(4)]))
    torch.testing.assert_close(parts.epistemic, torch.zeros(1))


def test_all_are_sure_and_disagree():
    logits = 100 * torch.eye(4).unsqueeze(1)  # four classifiers, one image, each for another class
    parts = averaged(logits).decompose()
    torch.testing.assert_close(parts.aleatoric, torch.zeros(1), atol=1e-5, rtol=0)
    torch.testing.assert_close(parts.epistemic, torch.tensor([math.log(4)]))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.floats(0.0, 50.0))
def test_parts_are_not_negative_and_add_up_to_the_entropy(seed, size):
    g = torch.Generator().manual_seed(seed)
    logits = LogitGaussian(3 * torch.randn(6, 5, generator=g), size * torch.rand(6, 5, generator=g))
    average = expected_softmax(logits)
    parts = average.decompose()
    assert (parts.aleatoric >= 0).all()
    assert (parts.epistemic >= 0).all()
    torch.testing.assert_close(parts.aleatoric + parts.epistemic, torch.special.entr(average.probabilities).sum(dim=1))


def test_a_wider_belief_is_more_epistemic():
    g = torch.Generator().manual_seed(0)
    logits = LogitGaussian(3 * torch.randn(6, 5, generator=g), torch.ones(6, 5))
    narrow, wide = (expected_softmax(logits.scaled(t)).decompose().epistemic for t in (0.1, 1.0))
    assert (wide > narrow).all()


def test_a_prediction_of_several_batches():
    logits = [LogitGaussian(torch.randn(n, 3), torch.rand(n, 3)) for n in (2, 1)]
    names = ["circle", "square", "triangle"]
    batches = [Prediction.of(names, expected_softmax(b), b.mean, b.std) for b in logits]
    whole = Prediction.joined(names, batches)
    assert len(whole) == 3
    assert whole.class_names == ("circle", "square", "triangle")
    assert torch.equal(whole.mean, torch.cat([b.mean for b in logits]))
    assert list(whole.labels) == [names[i] for i in whole.probabilities.argmax(dim=1)]
    assert torch.equal(whole.confidence, whole.probabilities.max(dim=1).values)
    torch.testing.assert_close(whole.total, torch.special.entr(whole.probabilities).sum(dim=1))
    nothing = Prediction.joined(names, [])
    assert len(nothing) == len(nothing.labels) == 0
    assert nothing.probabilities.shape == nothing.std.shape == (0, 3)


def test_a_prediction_tells_its_parts_apart():
    """Four sure classifiers that disagree: nothing is aleatoric. Four undecided ones: everything is."""
    names = ["ash", "birch", "cedar", "oak"]
    logits = torch.cat([100 * torch.eye(4).unsqueeze(1), torch.zeros(4, 1, 4)], dim=1)  # (draws, images, classes)
    said = Prediction.of(names, averaged(logits), logits.mean(dim=0), logits.std(dim=0))
    torch.testing.assert_close(said.aleatoric, torch.tensor([0.0, math.log(4)]), atol=1e-5, rtol=0)
    torch.testing.assert_close(said.epistemic, torch.tensor([math.log(4), 0.0]), atol=1e-5, rtol=0)
    assert torch.equal(said.mean, logits.mean(dim=0))
    assert torch.equal(said.std, logits.std(dim=0))

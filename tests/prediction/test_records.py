"""A prediction as plain values."""

import json
import math

import pytest
import torch

from kalmanclip.prediction import LogitGaussian, Prediction, expected_softmax, records


@pytest.fixture
def prediction():
    """A clear picture of a dog, and one of nothing known."""
    mean = torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 0.0]])
    gaussian = LogitGaussian(mean, torch.full((2, 3), 4.0))
    made = Prediction.of(("cat", "dog", "fox"), expected_softmax(gaussian), mean, gaussian.std)
    columns = {"is_ood": torch.tensor([False, True]), "ood_score": torch.tensor([-2.0, 0.5])}
    return Prediction(**(vars(made) | columns | {"sets": [["dog", "fox"], ["cat"]]}))


def test_at_the_mean_it_is_the_softmax(prediction):
    known, unknown = records(["a.jpg", "b.jpg"], prediction)
    total = sum(map(math.exp, (0, 3, 1)))
    top = [{"class": "dog", "probability": round(math.exp(3) / total, 6)}]
    top.append({"class": "fox", "probability": round(math.exp(1) / total, 6)})
    expected = {"image": "a.jpg", **top[0], "is_ood": False, "ood_score": -2.0, "set": ["dog", "fox"], "top": top}
    assert known == expected
    assert list(known) == list(expected)  # also the order of the columns of a table
    assert (unknown["class"], unknown["probability"], unknown["set"]) == ("none of these", None, [])
    assert unknown["top"][0]["class"] == "cat"  # the closest
    json.dumps([known, unknown], allow_nan=False)


def test_averaged_over_the_belief_it_says_what_is_left_open(prediction):
    known, _ = records(["a.jpg", "b.jpg"], prediction, top=3, uncertainty=True)
    assert known["probability"] == pytest.approx(float(prediction.probabilities[0, 1]), abs=1e-6)
    assert known["probability"] < float(prediction.at_mean[0, 1]) - 0.01
    assert known["lead"] == pytest.approx((3 - 1) / math.sqrt(4 + 4), abs=1e-6)
    assert known["logit_std"] == 2.0
    entropy = -sum(p["probability"] * math.log(p["probability"]) for p in known["top"])
    assert known["epistemic"] + known["aleatoric"] == pytest.approx(entropy, abs=1e-5)

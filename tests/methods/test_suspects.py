"""Suspect labels: every image is predicted by others, and what is suspect teaches no more."""

import dataclasses

import pytest
import torch
from tests.methods.test_class_residuals import SCALE, world

from kalmanclip.methods.residuals import ClassResidualsConfig, ResidualBelief
from kalmanclip.methods.suspects import every_part, predict_held_out
from kalmanclip.prediction import SUSPECT
from kalmanclip.prediction.label_noise import LabelNoise, sharpened

C, V = 4, 3


def prior(place, **options):
    residuals = ResidualBelief(ClassResidualsConfig(crops=V, alpha=0.0, **{"generative": 2.0, **options}), SCALE)
    residuals.set_classes([f"class {c}" for c in range(C)], place.T)
    return residuals


def predicted_by(residuals, crops, labels, f, std):
    """By learning as everybody does, then averaging over the crops by hand."""
    other = ResidualBelief(dataclasses.replace(residuals.config, prior_std=std), SCALE)
    other.set_classes(residuals.names, residuals.T)
    other.learn(crops, labels, hold_out=False)
    weights = residuals.config.weights
    return sum(w * other.logits(f[:, v]).softmax(dim=1) for v, w in enumerate(weights))


def planted(shots=6, wrong=(1, 9, 20)):
    place = world(C=C)
    true = torch.arange(C).repeat_interleave(shots)
    crops = place.views(true, V)
    labels = true.clone()
    for i in wrong:
        labels[i] = (labels[i] + 1) % C
    return place, crops, true, labels


@pytest.mark.parametrize(("labels", "folds"), [([0, 1, 1, 0, 2, 1, 0, 1], 4), ([0, 1], 4), ([0] * 5 + [1] * 3, 2)])
def test_every_image_is_in_one_part_and_classes_are_spread(labels, folds):
    parts = every_part(torch.tensor(labels), folds)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(labels)))
    for c in set(labels):
        counts = [sum(labels[i] == c for i in part.tolist()) for part in parts]
        assert max(counts) - min(counts) <= 1


def test_an_image_is_predicted_by_the_others_alone():
    place, crops, _, labels = planted()
    residuals = prior(place, folds=len(labels), prior_std=0.1)
    (found,) = predict_held_out(residuals, crops, labels, rounds=1)
    others = ~torch.eye(len(labels), dtype=torch.bool)
    alone = [predicted_by(residuals, crops[kept], labels[kept], crops[~kept], 0.1) for kept in others]
    expected, noise = sharpened(torch.cat(alone), labels)
    torch.testing.assert_close(found.probabilities, expected, atol=5e-3, rtol=0)
    torch.testing.assert_close(found.noise.wrong, noise.wrong, atol=1e-2, rtol=0)
    assert residuals.belief is None


def test_as_many_as_are_expected_to_be_wrong_teach_no_more():
    """Neither the residuals nor their metric; but it is predicted like all others."""
    place, crops, _, labels = planted()
    residuals = prior(place, folds=2, prior_std=0.1)
    first, second, *_ = predict_held_out(residuals, crops, labels)
    out = sorted(range(len(labels)), key=lambda i: -first.noise.wrong[i])[: int(first.noise.wrong.sum())]
    assert 1 < len(out) < 6
    trusted = torch.ones_like(labels, dtype=torch.bool)
    trusted[out] = False
    expected = torch.empty_like(second.probabilities)
    for part in every_part(labels, 2):
        others = trusted.clone()
        others[part] = False
        expected[part] = predicted_by(residuals, crops[others], labels[others], crops[part], 0.1)
    torch.testing.assert_close(second.probabilities, sharpened(expected, labels)[0], atol=5e-3, rtol=0)


def test_planted_errors_are_found_and_nothing_else():
    place, crops, true, labels = planted(shots=8)
    found = predict_held_out(prior(place), crops, labels)[-1]
    assert torch.equal(found.noise.wrong > SUSPECT, labels != true)
    assert 0.03 < found.noise.rate < 0.25
    assert (predict_held_out(prior(place), crops, true)[-1].noise.wrong < SUSPECT).all()


def test_the_prior_is_the_one_under_which_noisy_labels_are_most_probable():
    place, crops, _, labels = planted(shots=8)
    (chosen,) = predict_held_out(prior(place), crops, labels, rounds=1)
    for factor in (0.5, 2.0):  # two steps of the search away
        std = chosen.prior_std * factor
        (other,) = predict_held_out(prior(place, prior_std=std), crops, labels, rounds=1)
        assert other.noise.log_evidence < chosen.noise.log_evidence + 2  # the prior over the prior may weigh so much


def test_how_much_of_the_generative_classifier_is_chosen_so_too():
    place, crops, _, labels = planted(shots=8)
    (chosen,) = predict_held_out(prior(place, prior_std=0.1, generative=None), crops, labels, rounds=1)
    assert chosen.generative > 0
    for factor in (0.25, 4.0):
        value = factor * chosen.generative
        (other,) = predict_held_out(prior(place, prior_std=0.1, generative=value), crops, labels, rounds=1)
        assert other.generative == value
        assert other.noise.log_evidence < chosen.noise.log_evidence + 8  # so much the prior over it may weigh


def test_one_image_of_a_class_is_judged_by_the_texts_and_the_other_classes():
    place, crops, true, _ = planted(shots=1, wrong=())
    told = []
    found = predict_held_out(prior(place), crops, true, lambda done, total: told.append((done, total)))
    assert torch.isfinite(found[-1].noise.wrong).all()
    assert told[0] == (0, 3)
    assert told[-1] == (3, 3)


def test_suspects_teach_where_nothing_else_is_left(monkeypatch):
    """Two images, one of which is out."""
    place, crops, true, _ = planted(shots=1, wrong=())
    monkeypatch.setattr("kalmanclip.methods.suspects.sharpened", lambda p, y: (p, LabelNoise(torch.ones(2), 1.0, 0.0)))
    first, second, *_ = predict_held_out(prior(place, prior_std=0.1), crops[:2], true[:2])
    torch.testing.assert_close(first.probabilities, second.probabilities)

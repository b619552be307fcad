"""The filter inside the image tower moves it where the labels of the training images are more probable."""

import dataclasses

import pytest
import torch

from kalmanclip.data import FewShotTask, read_folder
from kalmanclip.encoders import LowRankConfig
from kalmanclip.methods import ClassResidualsConfig, JointConfig, joint, make_classifier


@pytest.fixture(scope="module")
def task(shapes):
    return FewShotTask(read_folder(shapes))


def deviances(tiny, task, prior_std):
    """The norm of the deviance residuals of all images, step by step."""
    low_rank = LowRankConfig(placement="towers", towers=("image",), rank=2, last_blocks=1, learn_a=False)
    config = JointConfig(low_rank, prior_std, steps=2, batch_size=15, residuals=ClassResidualsConfig(crops=0, folds=2))
    method = make_classifier(tiny, dataclasses.replace(config, step_size=0.5))
    method.fit(task)
    return [step.innovation for step in method.history]


def test_labels_become_more_probable(tiny, task):
    """In the same crops, so that what differs is what was learned; the first step has learned nothing."""
    learned, still = deviances(tiny, task, 1.0), deviances(tiny, task, 1e-4)
    assert learned[0] == pytest.approx(still[0], rel=1e-3)
    assert all(after < 0.95 * before for after, before in zip(learned[2:], still[2:], strict=True))


def test_the_others_follow_the_tower(tiny, task, monkeypatch):
    """Every image that a step has seen is remembered as it was seen."""
    seen, remembered = [], []
    original = joint.LeaveOneOut.deviance
    monkeypatch.setattr(
        joint.LeaveOneOut, "deviance", lambda self, f, at: seen.append((f.detach(), at)) or original(self, f, at)
    )
    monkeypatch.setattr(joint.LeaveOneOut, "remember", lambda self, f, at: remembered.append((f.detach(), at)))
    deviances(tiny, task, 1.0)
    assert len(remembered) == len(seen) == 10
    for (f, at), (own, own_at) in zip(seen, remembered, strict=True):
        assert torch.equal(at, own_at)
        torch.testing.assert_close(f, own)

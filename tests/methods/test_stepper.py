"""Steps on batches: the right texts, whatever the device, and on a GPU one graph for all full batches."""

import pytest
import torch

from kalmanclip.encoders import DualEncoder, LowRankConfig, load_backbone
from kalmanclip.filtering import KalmanFilter, NoiseConfig, ObservationNoise, Step, make_belief
from kalmanclip.methods import stepper
from kalmanclip.methods.stepper import Stepper
from kalmanclip.observation import make_likelihood

NAMES = ["cat", "dog", "a red house", "the sea", "rain", "a car"]


def setup(observation, device="cpu", capture=True, placement="towers"):
    """A stepper over the last block of both towers, and eight images."""
    encoder = DualEncoder(load_backbone("tiny", device), LowRankConfig(placement, rank=2, last_blocks=1))
    belief = make_belief("diagonal", encoder.theta, 1e-3, update="precision")
    kalman = KalmanFilter(belief, ObservationNoise(NoiseConfig(structure="exchangeable")))
    texts = encoder.text.prefix(encoder.tokenize(NAMES))
    size = encoder.backbone.image_size
    pixels = torch.randn(8, 3, size, size, generator=torch.Generator().manual_seed(0)).to(device)
    return Stepper(encoder, kalman, make_likelihood(observation), texts, 1, capture), encoder.image.prefix(pixels)


LABELS = torch.tensor([0, 1, 2, 2, 3, 4, 5, 5])


@pytest.mark.parametrize("observation", ["contrastive", "symmetric"])
def test_a_step_learns_its_batch(observation):
    step, images = setup(observation)
    records = [step(images, LABELS) for _ in range(5)]
    assert not any(record.skipped for record in records)
    assert records[-1].innovation < records[0].innovation
    assert step.kalman.steps == 5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("observation", ["cosine", "contrastive", "symmetric", "classes", "pairwise", "bounded"])
def test_captured_steps_are_the_plain_ones(observation):
    """Full batches with repeated and distinct classes, and a short one in between: equal to 1e-5."""
    ends = []
    for capture in (True, False):
        step, images = setup(observation, "cuda", capture)
        for rows in ([0, 1, 2, 3], [4, 5, 6, 7], [0, 2, 4, 6], [1, 3], [3, 2, 1, 0], [7, 6, 1, 4]):
            assert not step(tuple(t[rows] for t in images), LABELS[rows]).skipped
        assert bool(step._captured) == (capture and observation != "pairwise")
        ends.append((step.encoder.theta.clone(), step.kalman.belief.s.clone()))
    for captured, plain in zip(*ends, strict=True):
        torch.testing.assert_close(captured, plain, rtol=1e-5, atol=1e-5 * float(plain.abs().max()))


def test_a_captured_step_forgets_the_share_of_its_batch(monkeypatch):
    made = []

    class Captured:
        current = True

        def __init__(self, kalman, observe, inputs, share):
            self.share = share
            made.append(share)

        def __call__(self, *inputs):
            return Step()

        @staticmethod
        def possible(kalman):
            return True

    monkeypatch.setattr(stepper, "CapturedStep", Captured)
    step, images = setup("bounded", placement="head")
    for share in (0.5, 0.5, 0.5, 0.25):  # the first is a plain one
        step(images, LABELS, share)
    assert made == [0.5, 0.25]

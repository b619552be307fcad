"""Steps of descent: plain ones against a loop written out; captured ones, on a GPU, against plain ones."""

import pytest
import torch
import torch.nn.functional as F

from kalmanclip.methods.baselines.descent import WARM_UP, Descent, make_adamw

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="captured steps need a CUDA device")
BATCHES = [(torch.randn(8, 5, generator=torch.Generator().manual_seed(k)), torch.arange(8) % 3) for k in range(9)]


def trained(device, step_of):
    """Weights after nine batches, of which one is shorter, and the losses before each step."""
    W = torch.linspace(-1, 1, 15, device=device).view(3, 5).clone().requires_grad_()
    step, losses = step_of(W), []
    for k, (x, y) in enumerate(BATCHES):
        cut = 3 if k == 6 else 8
        losses.append(float(step(0.1 / (k + 1), x[:cut].to(device), y[:cut].to(device))))
    return W.detach().cpu(), losses


def loss_of(W):
    return lambda x, y: F.cross_entropy(x @ W.mT, y)


def plain_adamw(W):
    optimiser = torch.optim.AdamW([W], lr=1.0, weight_decay=0.1)

    def step(rate, x, y):
        optimiser.param_groups[0]["lr"] = rate
        value = loss_of(W)(x, y)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        return value

    return step


def by_descent(W):
    return Descent(make_adamw([W], 1.0, weight_decay=0.1), loss_of(W)).step


def test_steps_are_those_of_adamw_written_out():
    (W, losses), (expected, expected_losses) = (trained("cpu", made) for made in (by_descent, plain_adamw))
    assert torch.equal(W, expected)
    assert losses == expected_losses


class Replay:
    """In place of a graph: takes the step that was recorded, on the tensors that it was recorded for."""

    def __init__(self, descent):
        self.descent, self.times = descent, 0

    def replay(self):
        self.times += 1
        self.descent._value = self.descent._plain(self.descent._inputs)


def recording(descent, works):
    """Let a descent on a processor record and replay as one on a GPU does."""

    def capture(inputs):
        recorded.append([t.shape for t in inputs])
        descent._inputs = [t.clone() for t in inputs]
        descent._graph = Replay(descent) if works else None
        return works

    recorded = []
    descent._captures, descent._capture = True, capture
    return recorded


@pytest.mark.parametrize("works", [True, False])
def test_steps_are_recorded_once_and_only_usual_batches_replayed(works):
    made = []

    def step_of(W):
        made.append(Descent(make_adamw([W], 1.0, weight_decay=0.1), loss_of(W)))
        made.append(recording(made[0], works))
        return made[0].step

    (W, losses), (expected, expected_losses) = trained("cpu", step_of), trained("cpu", plain_adamw)
    descent, recorded = made
    assert torch.equal(W, expected)
    assert losses == expected_losses
    assert recorded == [[t.shape for t in BATCHES[0]]]
    if works:
        assert descent._graph.times == len(BATCHES) - WARM_UP - 1  # but for the shorter one


@needs_gpu
def test_captured_steps_are_plain_ones():
    assert len(BATCHES) > 2 * WARM_UP
    descents = []

    def kept(W):
        descents.append(Descent(make_adamw([W], 1.0, weight_decay=0.1), loss_of(W)))
        return descents[0].step

    (W, losses), (expected, expected_losses) = trained("cuda", kept), trained("cuda", plain_adamw)
    assert descents[0]._graph is not None
    torch.testing.assert_close(W, expected, rtol=1e-5, atol=1e-6)
    assert losses == pytest.approx(expected_losses, rel=1e-5)


@needs_gpu
def test_every_replay_draws_random_numbers_of_its_own():
    W = torch.ones(4, device="cuda", requires_grad=True)
    generator = torch.Generator("cuda").manual_seed(0)
    descent = Descent(
        make_adamw([W], 0.0, weight_decay=0.0),
        lambda x: (W * x * torch.rand(4, generator=generator, device="cuda")).sum(),
        [generator],
    )
    losses = [float(descent.step(0.0, torch.ones(4, device="cuda"))) for _ in range(2 * WARM_UP + 4)]
    assert descent._graph is not None
    assert len(set(losses)) == len(losses)


@needs_gpu
def test_what_cannot_be_captured_goes_on_step_by_step():
    def loss_of_waiting(W):
        return lambda x, y: loss_of(W)(x, y) * (1.0 if float(x.sum()) > -1e9 else 2.0)  # waits for the device

    with pytest.warns(RuntimeWarning, match="without captured steps"):
        W, _ = trained("cuda", lambda W: Descent(make_adamw([W], 1.0, 0.1), loss_of_waiting(W)).step)
    expected, _ = trained("cuda", plain_adamw)
    torch.testing.assert_close(W, expected, rtol=1e-5, atol=1e-6)

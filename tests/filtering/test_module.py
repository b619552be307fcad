"""The filter on a plain torch module: its Jacobian by finite differences, its parameters there and back."""

import pytest
import torch
from torch import nn

from kalmanclip.errors import ConfigError
from kalmanclip.filtering import KalmanFilter, flat_parameters, load_flat, make_belief, observe_module


@pytest.fixture
def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 2)).double()


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(4, k, generator=generator, dtype=torch.float64) for k in (3, 2))


def test_jacobian_by_finite_differences(module, batch):
    x, y = batch
    mu = flat_parameters(module)
    observe = observe_module(module, x, y)
    seen = observe(mu)
    assert seen.H.shape == (8, len(mu))
    torch.testing.assert_close(seen.y_hat, module(x).detach().flatten())
    torch.testing.assert_close(seen.y, y.flatten())
    h = 1e-5
    for i in range(len(mu)):
        step = torch.zeros_like(mu)
        step[i] = h
        difference = (observe(mu + step).y_hat - observe(mu - step).y_hat) / (2 * h)
        torch.testing.assert_close(seen.H[:, i], difference, rtol=1e-6, atol=1e-8)


def test_parameters_there_and_back(module, batch):
    x, _ = batch
    before = module(x)
    mu = flat_parameters(module)
    load_flat(module, torch.zeros_like(mu))
    assert flat_parameters(module).abs().sum() == 0
    load_flat(module, mu)
    assert torch.equal(module(x), before)


def test_observing_does_not_change_the_module(module, batch):
    x, y = batch
    before = flat_parameters(module)
    observe_module(module, x, y)(before + 1)
    assert torch.equal(flat_parameters(module), before)
    assert all(p.grad is None for p in module.parameters())


def test_frozen_parameters_are_left_out(module, batch):
    x, y = batch
    module[0].requires_grad_(False)
    mu = flat_parameters(module)
    assert len(mu) == sum(p.numel() for p in module.parameters()) - 20
    assert observe_module(module, x, y)(mu).H.shape == (8, len(mu))
    weight = module[0].weight.clone()
    load_flat(module, mu + 1)
    assert torch.equal(module[0].weight, weight)


def test_training_a_module(module, batch):
    x, y = batch
    belief = make_belief("dense", flat_parameters(module), 1.0)
    kalman = KalmanFilter(belief)
    before = (module(x) - y).square().mean()
    for _ in range(20):
        kalman.step(observe_module(module, x, y, R=0.01 * torch.eye(8)))
    load_flat(module, belief.mean)
    assert (module(x) - y).square().mean() < 0.01 * before


def test_mistakes_are_explained(module, batch):
    x, y = batch
    mu = flat_parameters(module)
    with pytest.raises(ConfigError, match=r"targets of shape \(4,\)"):
        observe_module(module, x, y[:, 0])(mu)
    with pytest.raises(ConfigError, match="parameters"):
        load_flat(module, mu[:-1])
    with pytest.raises(ConfigError, match="parameters"):
        observe_module(module, x, y)(mu[:-1])
    with pytest.raises(ConfigError, match="require gradients"):
        flat_parameters(module.requires_grad_(False))

"""A fixed A: the principal directions of what a map is given, and derivatives for B alone."""

import copy
import dataclasses

import pytest
import torch
from torch.func import functional_call, jacrev

from kalmanclip.encoders import DualEncoder, LowRankConfig, supports_low_rank
from kalmanclip.encoders.dual import principal_directions
from kalmanclip.encoders.jacobian import image_rows
from kalmanclip.encoders.low_rank import named_views

CONFIG = LowRankConfig(
    placement="towers", towers=("image",), targets=("q", "v", "out", "mlp"), last_blocks=1, rank=2, learn_a=False
)


def data(n=300, d=12):
    generator = torch.Generator().manual_seed(0)
    spread = torch.logspace(0, -2, d, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64)).Q
    return torch.randn(n, d, generator=generator, dtype=torch.float64) * spread @ turn + 0.3


@pytest.mark.parametrize("r", [1, 3])
def test_directions_are_eighs(r):
    x = data()
    values, vectors = torch.linalg.eigh(x.mT @ x / len(x))
    expected = (vectors[:, -r:] / values[-r:].sqrt()).mT.flip(0)
    found = principal_directions(x, r)
    signs = (found * expected).sum(dim=1).sign()
    torch.testing.assert_close(found, signs.unsqueeze(1) * expected, rtol=1e-5, atol=1e-8)
    seen = found @ x.mT
    torch.testing.assert_close(seen @ seen.mT / len(x), torch.eye(r, dtype=torch.float64))  # whitened


def test_there_are_no_more_directions_than_rows():
    found = principal_directions(data(2), 4)
    assert found.shape == (4, 12)
    assert (found[:2].norm(dim=1) > 0).all()
    assert (found[2:] == 0).all()
    one = principal_directions(torch.ones(9, 12, dtype=torch.float64), 2)  # all alike: the second is never seen
    assert one.isfinite().all()


@pytest.fixture(scope="module")
def double(tiny):
    return dataclasses.replace(tiny, model=copy.deepcopy(tiny.model).double())


@pytest.fixture
def images(double):
    size = double.image_size
    return torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(2)).double()


def test_every_map_is_given_its_own_directions(double, images):
    encoder = DualEncoder(double, CONFIG)
    activations = encoder.image.prefix(images)
    seen = {}
    for layer in encoder.image.low_rank_layers():
        layer.watch = lambda x, layer=layer: seen.__setitem__(layer, x.flatten(0, -2))
    before = encoder.encode_images(activations)
    for layer in seen:
        layer.watch = None
    encoder.start_principal(activations)
    torch.testing.assert_close(encoder.encode_images(activations), before)  # B is zero
    assert len(seen) == 4
    for layer, x in seen.items():
        assert layer.watch is None
        for A in layer.A.split(2):  # q and v have one input
            y = A @ x.mT
            torch.testing.assert_close(y @ y.mT / x.shape[0], torch.eye(2, dtype=torch.float64), rtol=1e-6, atol=1e-8)
    # all of it lies in one vector, which is what is saved
    layers = encoder.image.low_rank_layers()
    torch.testing.assert_close(torch.cat([layer.A.flatten() for layer in layers]), encoder.fixed)


def test_the_rows_of_a_fixed_a_are_jacrevs(double, images):
    encoder = DualEncoder(double, CONFIG, seed=1)
    activations = encoder.image.prefix(images)
    encoder.start_principal(activations)
    assert encoder.n == encoder.n_image == sum(p.numel() for p in encoder.image.parameters())
    encoder.theta.copy_(0.05 * torch.randn(encoder.n, generator=torch.Generator().manual_seed(3)))
    w = torch.randn(3, double.width, generator=torch.Generator().manual_seed(4)).double()

    def outputs(f):
        return (f * w).sum(dim=1).square(), 2 * (f * w).sum(dim=1, keepdim=True) * w

    y, H, seen = image_rows(encoder, activations, outputs)

    def reference(theta):
        return outputs(functional_call(encoder.image, named_views(encoder.image, theta), activations))[0]

    torch.testing.assert_close(y, reference(encoder.theta).detach())
    torch.testing.assert_close(H, jacrev(reference)(encoder.theta), rtol=1e-7, atol=1e-10)
    torch.testing.assert_close(seen, encoder.encode_images(activations).detach())
    assert H.abs().sum(dim=0).gt(0).all()


def test_the_merged_model_has_the_fixed_a(double, images):
    encoder = DualEncoder(double, CONFIG, seed=1)
    activations = encoder.image.prefix(images)
    encoder.start_principal(activations)
    encoder.theta.copy_(0.05 * torch.randn(encoder.n, generator=torch.Generator().manual_seed(3)))
    plain = torch.nn.functional.normalize(encoder.merged().encode_image(images), dim=-1)
    torch.testing.assert_close(plain, encoder.encode_images(activations))


def test_which_models_can_carry_them(tiny):
    assert supports_low_rank(tiny, CONFIG)
    assert not supports_low_rank(tiny, dataclasses.replace(CONFIG, rank=10_000))
    assert not supports_low_rank(tiny, dataclasses.replace(CONFIG, last_blocks=99))

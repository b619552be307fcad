"""Linear maps of frozen weights: the same to rounding by whichever library, and derivatives where they are wanted."""

import pytest
import torch
import torch.nn.functional as F

from kalmanclip.encoders.linear import frozen_linear


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5,), (1, 1), (3, 7)])
def test_equals_the_product_in_double_precision(shape, bias):
    torch.manual_seed(0)
    b = torch.randn(33) if bias else None
    x, weight = torch.randn(*shape, 96)[..., ::2], torch.randn(48, 33).mT  # parts of other tensors, with gaps
    expected = F.linear(x.double(), weight.double(), None if b is None else b.double())
    with torch.no_grad():
        found = frozen_linear(x, weight, b)
    assert found.dtype == torch.float32
    assert torch.allclose(found.double(), expected, atol=1e-4)


def test_derivatives_pass_where_they_are_recorded():
    x, weight = torch.randn(2, 4, requires_grad=True), torch.randn(3, 4)
    frozen_linear(x, weight, None).sum().backward()
    assert torch.allclose(x.grad, weight.sum(dim=0).expand(2, 4))

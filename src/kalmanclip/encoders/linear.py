"""Linear maps of frozen weights, by the faster of the two libraries that torch has on a CPU.

`torch.nn.functional.linear` of float32 goes to MKL, which leaves half of an AMD processor with AVX-512 idle; oneDNN, to
which compiled models go, does not. Results differ by rounding. Derivatives do not pass: only for what is frozen.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor


def frozen_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Map (..., n) to (..., m); as `torch.nn.functional.linear`, but without derivatives where it may go to oneDNN."""
    plain = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32 and not torch.is_grad_enabled()
    if not (plain and _by_onednn()) or torch.compiler.is_compiling():  # an exported graph has plain operators
        return F.linear(x, weight, bias)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


@cache
def _by_onednn() -> bool:
    """Return whether this processor and this torch can.

    The operator is the one that torch's compiler uses, and private: it is tried once, on little.
    """
    if not (torch.backends.cpu.get_cpu_capability().startswith("AVX512") and torch.backends.mkldnn.is_available()):
        return False
    x, weight, bias = torch.eye(3), torch.arange(6.0).view(2, 3), torch.ones(2)
    try:
        found = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.allclose(found, F.linear(x, weight, bias))

"""What a tower is: a frozen prefix, an adapted suffix, and embeddings of unit length.

Activations travel as tuples of tensors, samples first, so that a batch is picked by indexing every tensor alike.
Towers may compute in lower precision; the embeddings that leave them are in float32 at least (`unit`).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kalmanclip.encoders.low_rank import Correction, LowRank, RowSink

Activations = tuple[Tensor, ...]


def unit(x: Tensor) -> Tensor:
    """Scale rows to unit length, in float32 at least: similarities and what is learned from them need the digits."""
    return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)


class Tower(nn.Module):
    """One tower: `prefix` (frozen, without gradients) then `forward` (adapted) to unit-length embeddings.

    Attributes:
        sink: where the low-rank layers of this tower write their derivatives.
        product: what `prefix` computes, for caches: of one model, prefixes of the same name give the same.
    """

    product: str

    def __init__(self) -> None:
        super().__init__()
        self.sink = RowSink()

    def prefix(self, inputs: Tensor) -> Activations:
        """Compute the frozen part: (N, 3, h, w) images or (N, L) tokens to activations."""
        raise NotImplementedError

    def forward(self, *activations: Tensor) -> Tensor:
        """Compute the adapted part: activations to embeddings (N, d) of unit length."""
        raise NotImplementedError

    def corrections(self) -> list[Correction]:
        """Return what was learned as changes of the frozen weights."""
        raise NotImplementedError

    @torch.no_grad()
    def merge_(self) -> None:
        """Add the corrections to the frozen weights, in place."""
        for weight, A, B in self.corrections():
            weight += B @ A

    def low_rank_layers(self) -> Iterator[LowRank]:
        """Return all low-rank layers in the order of `theta`."""
        return (m for m in self.modules() if isinstance(m, LowRank))

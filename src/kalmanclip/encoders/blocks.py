"""Residual attention blocks of open_clip, run by their weights, with or without low-rank corrections.

Without corrections the result is the block's own. It is reached in fewer steps: `torch.nn.MultiheadAttention` moves the
samples behind the tokens and back, which a processor has to wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from open_clip.transformer import ResidualAttentionBlock
from torch import Tensor, nn

from kalmanclip.encoders.low_rank import LowRank, LowRankConfig, RowSink

Read = Callable[[Tensor], Tensor]


def run(blocks: Sequence[nn.Module], x: Tensor, mask: Tensor | None, read: Read | None) -> Tensor:
    """One block after the other; the last computes only the tokens that are read, which is most of what it costs.

    Args:
        blocks: `AdaptedBlock`s, at least one.
        x: (N, tokens, width).
        mask: of the attention, (tokens, tokens).
        read: as in `AdaptedBlock.forward`; None where all tokens are wanted.
    """
    for block in blocks[:-1]:
        x = block(x, mask)
    if mask is not None and read is not None:
        mask = read(mask.expand(len(x), -1, -1)).unsqueeze(1)  # the rows of those who ask, for all heads
    last: Tensor = blocks[-1](x, mask, read)
    return last


def plain_blocks(blocks: nn.ModuleList) -> bool:
    """Whether `AdaptedBlock` can run all of them."""
    return all(type(block) is ResidualAttentionBlock for block in blocks)


class AdaptedBlock(nn.Module):
    """A frozen residual attention block of open_clip plus low-rank corrections of its projections.

    Args:
        block: never modified, but by `merge_`.
        config: which corrections; None: none, and the block computes what it always did.
        sink: where they write their derivatives.
    """

    def __init__(
        self, block: ResidualAttentionBlock, config: LowRankConfig | None = None, sink: RowSink | None = None
    ) -> None:
        super().__init__()
        self._block = (block,)
        self.parts: tuple[int, ...] = ()
        self.qkv = self.out = self.fc = self.proj = None
        if config is None or sink is None:
            return
        width, mlp = block.attn.embed_dim, block.mlp.c_fc.out_features
        self.parts = tuple(i for i, name in enumerate("qkv") if name in config.targets)
        self.qkv = LowRank(width, width, config, sink, groups=len(self.parts)) if self.parts else None
        self.out = LowRank(width, width, config, sink) if "out" in config.targets else None
        self.fc = LowRank(width, mlp, config, sink) if "mlp" in config.targets else None
        self.proj = LowRank(mlp, width, config, sink) if "mlp" in config.targets else None

    def forward(self, x: Tensor, mask: Tensor | None = None, read: Read | None = None) -> Tensor:
        """(N, tokens, width) to the same shape, or with ``read`` to those tokens alone.

        Args:
            x: tokens.
            mask: of the attention, for the tokens that ask, to be added to it.
            read: picks the tokens that are wanted, (N, tokens, ...) to (N, fewer, ...). All are asked, only these ask.
        """
        block = self._block[0]
        y = self._attention(block.ln_1(x), mask, read)
        x = (x if read is None else read(x)) + block.ls_1(y)
        return x + block.ls_2(self._mlp(block.ln_2(x)))

    def _attention(self, x: Tensor, mask: Tensor | None, read: Read | None) -> Tensor:
        attn = self._block[0].attn
        qkv = F.linear(x, attn.in_proj_weight, attn.in_proj_bias)
        if self.qkv is not None:
            delta = self.qkv(x)
            if len(self.parts) == 3:
                qkv = qkv + delta
            else:
                pieces = list(qkv.chunk(3, -1))
                for part, piece in zip(self.parts, delta.chunk(len(self.parts), -1), strict=True):
                    pieces[part] = pieces[part] + piece
                qkv = torch.cat(pieces, -1)
        q, k, v = qkv.unflatten(-1, (3, attn.num_heads, -1)).unbind(2)
        q = q if read is None else read(q)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return project(attn.out_proj, self.out, y.transpose(1, 2).flatten(2))

    def _mlp(self, x: Tensor) -> Tensor:
        mlp = self._block[0].mlp
        return project(mlp.c_proj, self.proj, mlp.gelu(project(mlp.c_fc, self.fc, x)))

    def merge_(self) -> None:
        """Adds the corrections to the block's weights, in place."""
        block = self._block[0]
        width = block.attn.embed_dim
        with torch.no_grad():
            for k, part in enumerate(self.parts):
                assert self.qkv is not None
                block.attn.in_proj_weight[part * width : (part + 1) * width] += self.qkv.delta(k)
            for linear, layer in (
                (block.attn.out_proj, self.out),
                (block.mlp.c_fc, self.fc),
                (block.mlp.c_proj, self.proj),
            ):
                if layer is not None:
                    linear.weight += layer.delta()


def project(linear: nn.Linear, layer: LowRank | None, x: Tensor) -> Tensor:
    """A frozen linear map of ``x``, with its low-rank correction if there is one."""
    y = F.linear(x, linear.weight, linear.bias)
    return y if layer is None else y + layer(x)

"""Low-rank corrections to frozen linear maps, and how they write the rows of a Jacobian.

A frozen map ``y = W x`` becomes ``y = W x + s B A x`` with ``A`` of shape (r, d_in) and ``B`` of shape (d_out, r). Only
``A`` and ``B`` are parameters: they are the ``theta`` of the paper. ``B`` starts at zero, so that the untouched model
is the starting point.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kalmanclip.config import QUIET
from kalmanclip.errors import ConfigError

TARGETS = ("q", "k", "v", "out", "mlp")
"""Projections of a transformer block that can carry low-rank parameters ('mlp' means both of its layers)."""


@dataclass(frozen=True)
class LowRankConfig:
    """Where the low-rank parameters sit and how large they are.

    Attributes:
        placement: 'head' (on the embeddings, the towers stay frozen and are computed once per image) or 'towers'
            (inside the transformer blocks; for a ModifiedResNet in its attention pool).
        towers: which towers get parameters: 'image', 'text' or both.
        targets: for 'towers': which projections, out of 'q', 'k', 'v', 'out', 'mlp'.
        last_blocks: for 'towers': only the last so many blocks of each tower (None: all). The blocks before them are
            frozen and computed once per image.
        rank: r, the rank of every correction.
        scale: s, the factor in ``s B A``.
        learn_a: whether ``A`` is a parameter, too. If not, the outputs of a layer are linear in the parameters, and
            no step can be thrown off by ``B`` and ``A`` moving at once.
    """

    placement: str = "head"
    towers: tuple[str, ...] = ("image", "text")
    targets: tuple[str, ...] = ("q", "k", "v")
    last_blocks: int | None = None
    rank: int = 16
    scale: float = 1.0
    learn_a: bool = field(default=True, metadata=QUIET)

    def __post_init__(self) -> None:
        if self.placement not in ("head", "towers"):
            raise ConfigError(f"placement must be 'head' or 'towers', not {self.placement!r}.")
        _check_choice("towers", self.towers, ("image", "text"))
        _check_choice("targets", self.targets, TARGETS)
        if not isinstance(self.rank, int) or self.rank < 1:
            raise ConfigError(f"rank must be a whole number, at least 1; not {self.rank}.")
        if not math.isfinite(self.scale) or self.scale == 0:
            raise ConfigError(f"scale must be finite and not 0, or nothing can be learned; not {self.scale}.")
        if self.last_blocks is not None and self.last_blocks < 1:
            raise ConfigError(f"last_blocks must be at least 1 (or None for all blocks), not {self.last_blocks}.")


def _check_choice(name: str, values: tuple[str, ...], allowed: tuple[str, ...]) -> None:
    wrong = [v for v in values if v not in allowed]
    if wrong or not values or len(set(values)) < len(values):
        raise ConfigError(f"{name} must be a non-empty selection of {allowed}, each once; got {tuple(values)}.")


def named_views(module: nn.Module, theta: Tensor) -> dict[str, Tensor]:
    """Return a flat vector as the parameters of a module by name, for `torch.func.functional_call`."""
    named = dict(module.named_parameters())
    parts = theta.split([p.numel() for p in named.values()])
    return {name: part.view(p.shape) for (name, p), part in zip(named.items(), parts, strict=True)}


class RowSink:
    """Where a backward pass leaves its derivatives.

    ``target`` is a view of the Jacobian: (N, n), where row *i* receives the derivative that flows through sample *i* of
    the batch, or (n,), for the sum over the samples. While it is None the layers are ordinary autograd citizens.
    """

    def __init__(self) -> None:
        self.target: Tensor | None = None
        self.recording = False


class Correction(NamedTuple):
    """A learned change of a frozen weight: merged, it is ``weight + B A``.

    Attributes:
        weight: (d_out, d_in), the model's own tensor or a view of it.
        A: (r, d_in).
        B: (d_out, r), with the scale in it.
    """

    weight: Tensor
    A: Tensor
    B: Tensor


class LowRank(nn.Module):
    """``g`` low-rank maps that share their input: ``x -> [s B_1 A_1 x, ..., s B_g A_g x]``.

    Groups exist for q, k and v, which share one input, so that one product serves all three.

    Args:
        d_in: size of the input.
        d_out: size of each group's output.
        config: rank and scale.
        sink: shared by all layers of a tower.
        groups: g.

    Attributes:
        dropout: what the input of each group goes through, called once for each; None for nothing. The frozen path
            sees the input as it is. Not for recorded derivatives, which are those of the model without dropout.
        watch: is shown the input; None for nobody.
    """

    A: Tensor
    dropout: Callable[[Tensor], Tensor] | None = None
    watch: Callable[[Tensor], None] | None = None

    def __init__(self, d_in: int, d_out: int, config: LowRankConfig, sink: RowSink, groups: int = 1) -> None:
        super().__init__()
        if config.rank > min(d_in, d_out):
            raise ConfigError(
                f"rank {config.rank} is larger than the {min(d_in, d_out)} dimensions of the map it corrects: "
                "a low rank is the point. Choose a smaller one."
            )
        A = torch.zeros(groups * config.rank, d_in)
        if config.learn_a:
            self.A = nn.Parameter(A)
        else:
            self.register_buffer("A", A)
        self.B = nn.Parameter(torch.zeros(groups, d_out, config.rank))  # after A, as in theta
        self.scale = config.scale
        self.sink = sink
        self.start = 0  # where this layer's parameters begin in theta; set when theta is laid out

    @property
    def own(self) -> tuple[str, ...]:
        """The names of its parameters, in the order of `theta`."""
        return ("A", "B") if isinstance(self.A, nn.Parameter) else ("B",)

    def reset(self, generator: torch.Generator) -> None:
        """Draw ``A`` from N(0, 1/d_in) and set ``B`` to zero: the correction vanishes, its derivative does not."""
        with torch.no_grad():
            self.A.copy_(torch.randn(self.A.shape, generator=generator) / self.A.shape[1] ** 0.5)
            self.B.zero_()

    def correction(self, weight: Tensor, parts: tuple[int, ...] = (0,), of: int = 1) -> Correction:
        """Return what is added to a frozen weight whose rows fall into equal parts.

        Args:
            weight: (of * d_out, d_in).
            parts: which part each group corrects.
            of: into how many parts the rows fall.
        """
        (g, d_out, r), scaled = self.B.shape, self.scale * self.B.detach()
        B = scaled.new_zeros(of, d_out, g, r)
        for group, part in enumerate(parts):
            B[part, :, group] = scaled[group]
        return Correction(weight, self.A.detach(), B.reshape(of * d_out, g * r))

    def forward(self, x: Tensor) -> Tensor:
        """Map x of shape (N, tokens, d_in) or (N, d_in) to (N, [tokens,] groups * d_out)."""
        if self.watch is not None:
            self.watch(x)
        if self.sink.recording:
            return _RecordedLowRank.apply(x, self.A, self.B, self)
        A, wide = self.scaled(self.A.T).to(x.dtype), _block_diagonal(self.B).to(x.dtype)
        if self.dropout is None:
            return x @ A @ wide.T
        h = [self.dropout(x) @ group for group in A.split(self.B.shape[2], dim=1)]
        return torch.cat(h, dim=-1) @ wide.T

    def scaled(self, x: Tensor) -> Tensor:
        """Return ``s x``; most often s is one, and a multiplication is a launch."""
        return x if self.scale == 1 else x * self.scale


def _block_diagonal(B: Tensor) -> Tensor:
    """Return ``B`` (g, d_out, r) as one matrix (g d_out, g r), so that one product serves all groups."""
    return B[0] if len(B) == 1 else torch.block_diag(*B)


class _RecordedLowRank(torch.autograd.Function):
    """The same map, whose backward pass writes per-sample derivatives into the sink instead of summing them.

    With ``h = s A x`` and ``g`` the derivative with respect to the output, sample i contributes
    ``sum_t g_it h_it^T`` to ``B`` and ``sum_t (s B^T g_it) x_it^T`` to ``A``: two small batched products, the same work
    that ordinary backpropagation does, only not summed over the batch.

    The products are computed in the tower's precision, that of ``x``; ``A``, ``B`` and the sink may have more.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, A: Tensor, B: Tensor, layer: LowRank) -> Tensor:
        h = x @ layer.scaled(A.T).to(x.dtype)
        wide = _block_diagonal(B).to(x.dtype)
        ctx.save_for_backward(x, h, A, wide)
        ctx.layer = layer
        return h @ wide.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None]:
        x, h, A, wide = ctx.saved_tensors
        layer: LowRank = ctx.layer
        gB = grad @ layer.scaled(wide)  # (N, [t,] g r)
        if layer.sink.target is not None:
            _write_products(layer, x, h, grad, gB)
        return (gB @ A.to(gB.dtype) if ctx.needs_input_grad[0] else None), None, None, None


def _write_products(layer: LowRank, x: Tensor, h: Tensor, g: Tensor, gB: Tensor) -> None:
    """Write d/dA, where that is a parameter, then d/dB into the layer's slice of its sink's target."""
    target, start, groups = layer.sink.target, layer.start, len(layer.B)
    assert target is not None
    if x.dim() == 2:
        x, h, g, gB = x.unsqueeze(1), h.unsqueeze(1), g.unsqueeze(1), gB.unsqueeze(1)
    if target.dim() == 1:  # summed over the samples: they are just more tokens of one sample
        x, h, g, gB = (v.flatten(0, 1).unsqueeze(0) for v in (x, h, g, gB))
        target = target.unsqueeze(0)
    count, (d_out, r) = len(x), (v.shape[-1] // groups for v in (g, h))
    if "A" in layer.own:
        size = gB.shape[-1] * x.shape[-1]
        _bmm(gB.mT, x, target[:, start : start + size].view(count, gB.shape[-1], x.shape[-1]))
        start += size
    part_b = target[:, start : start + groups * d_out * r].view(count, groups, d_out, r)
    # Each group's h against every group's g, in one product of which a group's own part is kept: there are few rows,
    # and one launch costs more than they do. Few rows and many columns are several times faster than the transpose.
    products = torch.bmm(h.mT, g).view(count, groups, r, groups, d_out)
    part_b.copy_(products.diagonal(dim1=1, dim2=3).permute(0, 3, 2, 1))


def _bmm(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Compute ``out = a b`` in any precisions. Products in bfloat16 are summed in float32, and rounded once."""
    if out.dtype == a.dtype:
        torch.bmm(a, b, out=out)
    else:
        out.copy_(torch.bmm(a, b))

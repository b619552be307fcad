"""Low-rank corrections of whichever linear maps a model has, without touching the model.

A `Site` is a frozen weight that carries corrections. Sites are found by the names that timm, transformers and open_clip
give to the projections of a block (`find_sites`). While `Corrected` is active, every product with such a weight gets
its low-rank correction added, whichever module asks for it: the model's own forward pass runs as it is, and other
threads see nothing of it. So an `AttachedTower` needs not know how a model pools, masks or encodes positions.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from kalmanclip.encoders.low_rank import Correction, LowRank, LowRankConfig
from kalmanclip.encoders.tower import Activations, Tower, unit
from kalmanclip.errors import ModelError

_LEAVES = {
    **dict.fromkeys(("q", "q_proj", "query"), ("q",)),
    **dict.fromkeys(("k", "k_proj", "key"), ("k",)),
    **dict.fromkeys(("v", "v_proj", "value"), ("v",)),
    "qkv": ("q", "k", "v"),
    "kv": ("k", "v"),
    **dict.fromkeys(("proj", "out_proj", "o"), ("out",)),
    **dict.fromkeys(("fc1", "fc2", "fc1_g", "fc1_x", "c_fc", "c_proj", "wi", "wi_0", "wi_1", "wo"), ("mlp",)),
}
"""What a linear map does in its block, by its own name; several: one after the other in the rows of its weight."""

_ENDINGS = {"attention.output.dense": ("out",), "intermediate.dense": ("mlp",), "output.dense": ("mlp",)}
"""The same for names that say nothing alone, as in BERT; the first ending that fits."""


@dataclass(frozen=True, eq=False)
class Site:
    """A frozen linear map, or equal parts of its rows, that carries a low-rank correction.

    Attributes:
        path: of the module in the model that the weight belongs to.
        weight: (d_out, d_in).
        parts: which parts of the rows, out of `of`.
        of: into how many equal parts the rows fall.
    """

    path: str
    weight: Tensor
    parts: tuple[int, ...] = (0,)
    of: int = 1

    @property
    def size(self) -> int:
        """The rows of a part."""
        return len(self.weight) // self.of

    def add(self, y: Tensor, delta: Tensor) -> Tensor:
        """Add corrections (..., parts * size) to outputs (..., d_out)."""
        if len(self.parts) == self.of:
            return y + delta
        pieces = list(y.split(self.size, -1))
        for part, piece in zip(self.parts, delta.split(self.size, -1), strict=True):
            pieces[part] = pieces[part] + piece
        return torch.cat(pieces, -1)


def find_sites(module: nn.Module, path: str, targets: Iterable[str]) -> Iterator[Site]:
    """Yield the linear maps of a module that ``targets`` ask for, in the order of its modules.

    Args:
        module: a block, or an attention pool.
        path: where it is in the model.
        targets: out of `kalmanclip.encoders.low_rank.TARGETS`.
    """
    wanted = set(targets)
    inside = ""  # of an attention module that is dealt with as a whole
    for name, part in module.named_modules():
        place = ".".join(filter(None, (path, name)))
        if (inside and place.startswith(inside)) or ".rel_pos" in place:  # positions have no samples
            continue
        if isinstance(part, nn.MultiheadAttention):
            inside = f"{place}."
            yield from _attention_sites(part, place, wanted)
        elif isinstance(weight := getattr(part, "in_proj_weight", None), nn.Parameter):
            yield from _site(place, weight, ("q", "k", "v"), wanted)
        elif isinstance(part, nn.Linear):
            yield from _site(place, part.weight, _roles(place), wanted)


def _attention_sites(attn: nn.MultiheadAttention, path: str, wanted: set[str]) -> Iterator[Site]:
    """Yield those of torch's attention; queries may come from elsewhere than keys and values: one site for each."""
    if attn.in_proj_weight is None:
        for name in "qkv":
            yield from _site(path, getattr(attn, f"{name}_proj_weight"), (name,), wanted)
    else:
        for names in (("q",), ("k", "v")):
            parts = tuple("qkv".index(name) for name in names if name in wanted)
            if parts:
                yield Site(path, attn.in_proj_weight, parts, of=3)
    yield from _site(f"{path}.out_proj", attn.out_proj.weight, ("out",), wanted)


def _site(path: str, weight: Tensor, roles: Sequence[str], wanted: set[str]) -> Iterator[Site]:
    parts = tuple(i for i, role in enumerate(roles) if role in wanted)
    if parts:
        yield Site(path, weight, parts, of=len(roles))


def _roles(path: str) -> Sequence[str]:
    if path in ("proj", "head.proj"):  # to the embedding: part of no block
        return ()
    for ending, roles in _ENDINGS.items():
        if path.endswith(f".{ending}"):
            return roles
    return _LEAVES.get(path.rpartition(".")[2], ())


class Corrected(TorchFunctionMode):
    """While it is active, products with the weights of sites come with their corrections.

    Args:
        sites: with the layer of each.
        samples: N, of the batch that goes through the model. All inputs have the samples first (windows of an image
            one after the other count as its tokens), but for those of torch's attention, which come with tokens first.
    """

    def __init__(self, sites: Sequence[tuple[Site, LowRank]], samples: int) -> None:
        super().__init__()
        self._samples = samples
        self._sites: dict[int, list[tuple[Site, LowRank]]] = {}
        for site, layer in sites:
            self._sites.setdefault(id(site.weight), []).append((site, layer))
        self._used: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer a call of one of torch's functions."""
        kwargs = kwargs or {}
        if func is F.linear:
            return self._linear(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            given = _SIGNATURE.bind(*args, **kwargs).arguments
            if any(id(given.get(name)) in self._sites for name in _WEIGHTS):
                return self._attention(given), None
        return func(*args, **kwargs)

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        y = F.linear(input, weight, bias)
        for site, layer in self._layers(weight):
            y = site.add(y, self._delta(layer, input))
        return y

    def _layers(self, weight: Tensor) -> list[tuple[Site, LowRank]]:
        found = self._sites.get(id(weight), [])
        if found and id(weight) in self._used:
            raise ModelError(
                f"The weights of {found[0][0].path} are used twice in one pass: low-rank parameters there are not "
                "supported. Use placement='head', or the preset 'residuals', which work for every model."
            )
        self._used.add(id(weight))
        return found

    def _delta(self, layer: LowRank, x: Tensor) -> Tensor:
        if len(x) % self._samples:
            raise ModelError(
                f"A layer sees {len(x)} rows of {self._samples} samples: low-rank parameters there are not supported. "
                "Use placement='head', or the preset 'residuals', which work for every model."
            )
        flat = x.reshape(self._samples, -1, x.shape[-1])
        delta: Tensor = layer(flat)
        return delta.reshape(*x.shape[:-1], -1)

    def _attention(self, given: dict[str, Any]) -> Tensor:
        """Return what torch's attention does, tokens first, with the corrections of its projections."""
        inputs = [given[name].transpose(0, 1) for name in ("query", "key", "value")]
        fused, bias = given["in_proj_weight"], given["in_proj_bias"]
        biases = [None] * 3 if bias is None else bias.chunk(3)
        if fused is None:
            weights = [given[f"{name}_proj_weight"] for name in "qkv"]
            outputs = [self._linear(x, W, b) for x, W, b in zip(inputs, weights, biases, strict=True)]
        else:
            outputs = [F.linear(x, W, b) for x, W, b in zip(inputs, fused.chunk(3), biases, strict=True)]
            for site, layer in self._layers(fused):
                delta = self._delta(layer, inputs[site.parts[0]])  # keys and values have one input
                for part, piece in zip(site.parts, delta.split(site.size, -1), strict=True):
                    outputs[part] = outputs[part] + piece
        heads = (given["num_heads"], -1)
        q, k, v = (y.unflatten(-1, heads).transpose(1, 2) for y in outputs)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=_mask(given, q, k))
        y = self._linear(y.transpose(1, 2).flatten(2), given["out_proj_weight"], given["out_proj_bias"])
        return y.transpose(0, 1)


_SIGNATURE = inspect.signature(F.multi_head_attention_forward)
_WEIGHTS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj_weight")


def _mask(given: dict[str, Any], q: Tensor, k: Tensor) -> Tensor | None:
    """Return the masks of torch's attention as one to be added, that broadcasts to (N, heads, L, S)."""
    masks = []
    if (mask := given.get("attn_mask")) is not None:  # (L, S) or (N * heads, L, S)
        masks.append(mask.unflatten(0, (-1, q.shape[1])) if mask.dim() == 3 else mask)
    if (mask := given.get("key_padding_mask")) is not None:  # (N, S)
        masks.append(mask.view(-1, 1, 1, k.shape[2]))
    added = [
        torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else mask
        for mask in masks
    ]
    return sum(added[1:], start=added[0]).to(q.dtype) if added else None


_BLOCK = re.compile(r".*?\b(?:blocks|block|layers|layer|resblocks)\.\d+\b")
"""The path of the block that a module belongs to. An attention pool belongs to none, and is adapted in any case."""


class AttachedTower(Tower):
    """A tower of any make with low-rank parameters in its last blocks and in its attention pool.

    Its frozen part is not run apart from the rest: what is kept of an image are its pixels, and each step runs the
    whole tower forward. Derivatives stop at the first adapted block.

    Args:
        encode: inputs to embeddings, by way of the modules of ``root``.
        root: where linear maps are looked for; its weights are changed by `merge_` alone.
        config: which of them are corrected. A tower without attention (ConvNeXt) is adapted in its MLPs.
    """

    product = "input"

    def __init__(self, encode: Callable[[Tensor], Tensor], root: nn.Module, config: LowRankConfig) -> None:
        super().__init__()
        self._encode = encode
        sites = list(find_sites(root, "", config.targets)) or list(find_sites(root, "", ("mlp",)))
        if not sites:
            raise ModelError(
                f"Low-rank parameters inside a tower of type {type(root).__name__} are not supported: no linear maps "
                f"of the kinds {', '.join(config.targets)} were found. Use placement='head', or the preset "
                "'residuals', which work for every model."
            )
        found = {site.path: _BLOCK.match(site.path) for site in sites}
        block_of = {path: match.group() if match else None for path, match in found.items()}
        blocks = list(dict.fromkeys(block for block in block_of.values() if block is not None))
        if config.last_blocks is not None:
            if config.last_blocks > max(len(blocks), 1):
                raise ModelError(f"last_blocks={config.last_blocks}, but the tower has only {len(blocks)} blocks.")
            adapted = {None, *blocks[-config.last_blocks :]}
            sites = [site for site in sites if block_of[site.path] in adapted]
        self._sites = sites  # in a plain list: the weights are not ours
        self.layers = nn.ModuleList(
            LowRank(site.weight.shape[1], site.size, config, self.sink, groups=len(site.parts)) for site in sites
        )

    def _pairs(self) -> list[tuple[Site, LowRank]]:
        return list(zip(self._sites, self.low_rank_layers(), strict=True))

    def prefix(self, inputs: Tensor) -> Activations:
        """Keep the inputs as they are."""
        return (inputs,)

    def forward(self, *activations: Tensor) -> Tensor:
        """Run the whole tower on images (N, 3, h, w) or tokens (N, L), to unit-length embeddings (N, d)."""
        (inputs,) = activations
        with Corrected(self._pairs(), len(inputs)):
            f = self._encode(inputs)
        return unit(f)

    def corrections(self) -> list[Correction]:
        """Return those of all sites."""
        return [layer.correction(site.weight, site.parts, site.of) for site, layer in self._pairs()]

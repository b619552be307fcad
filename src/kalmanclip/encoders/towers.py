"""The two towers of a CLIP, each cut into a frozen *prefix* and an adapted *suffix*.

The prefix has no parameters of ours, so it is computed once per image (or prompt) and can be kept; the suffix is
computed at every step. The open_clip modules themselves are never changed: the suffix runs their weights and adds the
low-rank corrections, so one model in memory serves both the zero-shot and the tuned classifier. Blocks are run by their
weights even without corrections: `torch.nn.MultiheadAttention` moves the samples behind the tokens and back.

The vision transformers, ResNets and text transformers of open_clip are run here, block by block; towers of any other
make run their own forward pass (`kalmanclip.encoders.attach`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from open_clip import CLIP, CustomTextCLIP
from open_clip.modified_resnet import ModifiedResNet
from open_clip.timm_model import TimmModel
from open_clip.transformer import QuickGELU, ResidualAttentionBlock, TextTransformer, VisionTransformer
from torch import Tensor, nn

from kalmanclip.encoders.attach import AttachedTower
from kalmanclip.encoders.linear import frozen_linear
from kalmanclip.encoders.low_rank import Correction, LowRank, LowRankConfig, RowSink
from kalmanclip.encoders.tower import Activations, Tower, unit
from kalmanclip.errors import ModelError

Read = Callable[[Tensor], Tensor]
"""Picks the tokens that are read, (N, tokens, ...) to (N, fewer, ...)."""

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Computes a linear map of ``x`` by weight and bias."""

EMBEDDING = "embedding"
"""The product (see `Tower`) of a whole frozen tower: embeddings of unit length."""


def run(blocks: Sequence[nn.Module], x: Tensor, mask: Tensor | None, read: Read | None) -> Tensor:
    """Run one block after the other; the last computes only the tokens that are read, which is most of what it costs.

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
    """Return whether `AdaptedBlock` can run all of them."""
    return all(type(block) is ResidualAttentionBlock for block in blocks)


class AdaptedBlock(nn.Module):
    """A frozen residual attention block of open_clip plus low-rank corrections of its projections.

    Args:
        block: never modified here.
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
        self._linear: Product = frozen_linear if config is None or sink is None else F.linear
        if config is None or sink is None:
            return
        width, mlp = block.attn.embed_dim, block.mlp.c_fc.out_features
        self.parts = tuple(i for i, name in enumerate("qkv") if name in config.targets)
        self.qkv = LowRank(width, width, config, sink, groups=len(self.parts)) if self.parts else None
        self.out = LowRank(width, width, config, sink) if "out" in config.targets else None
        self.fc = LowRank(width, mlp, config, sink) if "mlp" in config.targets else None
        self.proj = LowRank(mlp, width, config, sink) if "mlp" in config.targets else None

    def forward(self, x: Tensor, mask: Tensor | None = None, read: Read | None = None) -> Tensor:
        """Map (N, tokens, width) to the same shape, or with ``read`` to those tokens alone.

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
        qkv = self._linear(x, attn.in_proj_weight, attn.in_proj_bias)
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
        return project(attn.out_proj, self.out, y.transpose(1, 2).flatten(2), self._linear)

    def _mlp(self, x: Tensor) -> Tensor:
        mlp = self._block[0].mlp
        y = project(mlp.c_fc, self.fc, x, self._linear)
        if self._linear is frozen_linear and type(mlp.gelu) is QuickGELU and not torch.is_grad_enabled():
            y.mul_(torch.sigmoid(1.702 * y))  # the same bits in less memory
        else:
            y = mlp.gelu(y)
        return project(mlp.c_proj, self.proj, y, self._linear)

    def corrections(self) -> list[Correction]:
        """Return the corrections of the block's weights."""
        attn, mlp = self._block[0].attn, self._block[0].mlp
        pairs = ((attn.out_proj, self.out), (mlp.c_fc, self.fc), (mlp.c_proj, self.proj))
        found = [layer.correction(linear.weight) for linear, layer in pairs if layer is not None]
        return found if self.qkv is None else [self.qkv.correction(attn.in_proj_weight, self.parts, of=3), *found]


def project(linear: nn.Linear, layer: LowRank | None, x: Tensor, product: Product = F.linear) -> Tensor:
    """Map ``x`` by a frozen linear map, with its low-rank correction if there is one."""
    y = product(x, linear.weight, linear.bias)
    return y if layer is None else y + layer(x)


class HeadTower(Tower):
    """Low-rank parameters on the embedding: ``normalise(f + s B A f)`` with ``f`` the frozen embedding.

    Works for every model that open_clip can build; the towers run once per image.
    """

    def __init__(
        self, encode: Callable[[Tensor], Tensor], owner: nn.Module, width: int, config: LowRankConfig | None
    ) -> None:
        super().__init__()
        self._encode = encode
        self._owner = (owner,)  # in a tuple: not a submodule, its weights are not ours
        self.product = EMBEDDING
        self.head = LowRank(width, width, config, self.sink) if config else None

    @torch.no_grad()
    def prefix(self, inputs: Tensor) -> Activations:
        """Run the whole frozen tower, to unit-length features (N, d)."""
        return (unit(self._encode(inputs)),)

    def forward(self, *activations: Tensor) -> Tensor:
        """Turn unit-length features (N, d) into adapted unit-length embeddings."""
        (f,) = activations
        # also without parameters: then parameters of zero change no digit
        return unit(f if self.head is None else f + self.head(f))

    def corrections(self) -> list[Correction]:
        """Return that of the tower's last projection: ``(I + s B A) W`` is ``W + s B (A W)``."""
        if self.head is None:
            return []
        weight, _ = last_projection(self._owner[0])
        _, A, B = self.head.correction(weight)
        return [Correction(weight, A @ weight.to(A.dtype), B)]

    @torch.no_grad()
    def merge_(self) -> None:
        """Fold ``I + s B A`` into the tower's last projection and its bias."""
        if self.head is not None:
            _, bias = last_projection(self._owner[0])
            if bias is not None:
                _, A, B = self.head.correction(bias)
                bias += B @ (A @ bias)
        super().merge_()


_PROJECTIONS = ("proj", "text_projection")
_TIMM_PROJECTIONS = ("head.proj", "head.mlp.fc2", "trunk.head.fc", "trunk.head")  # the first that is there is the last


def last_projection(owner: Any) -> tuple[Tensor, Tensor | None]:
    """Return views of a tower's final map: weight (d, width), so that ``y = weight x + bias``, and bias or None."""
    if isinstance(owner, nn.Linear):
        return owner.weight, owner.bias
    if isinstance(owner, ModifiedResNet):
        return owner.attnpool.c_proj.weight, owner.attnpool.c_proj.bias
    for name in _TIMM_PROJECTIONS if isinstance(owner, TimmModel) else _PROJECTIONS:
        projection = _attribute(owner, name)
        if isinstance(projection, nn.Sequential) and len(projection):  # an MLP of open_clip's
            projection = projection[-1]
        if isinstance(projection, nn.Linear):
            return projection.weight, projection.bias
        if isinstance(projection, Tensor):
            return projection.mT, None
    raise ModelError(
        f"Merging is not supported for a tower of type {type(owner).__name__}: its last projection was not recognised. "
        "Keep the adapter beside the backbone instead (`save` and `load`)."
    )


def _attribute(owner: Any, path: str) -> Any:
    for name in path.split("."):
        owner = getattr(owner, name, None)
    return owner


def _cut(blocks: nn.ModuleList, config: LowRankConfig) -> int:
    """Return the index of the first adapted block."""
    if config.last_blocks is not None and config.last_blocks > len(blocks):
        raise ModelError(f"last_blocks={config.last_blocks}, but the tower has only {len(blocks)} blocks.")
    return 0 if config.last_blocks is None else len(blocks) - config.last_blocks


class TransformerTower(Tower):
    """What the image and text transformers share: frozen blocks, adapted blocks, merging."""

    def __init__(self, blocks: nn.ModuleList, config: LowRankConfig) -> None:
        super().__init__()
        cut = _cut(blocks, config)
        self._frozen_blocks = [AdaptedBlock(b) for b in blocks[:cut]]  # in a plain list: not ours to learn
        self.product = f"tokens after {cut} blocks"
        self.blocks = nn.ModuleList(AdaptedBlock(b, config, self.sink) for b in blocks[cut:])

    def corrections(self) -> list[Correction]:
        """Return those of all blocks."""
        return [correction for block in self.blocks for correction in cast(AdaptedBlock, block).corrections()]


class ImageTransformerTower(TransformerTower):
    """A vision transformer with low-rank parameters in its last blocks."""

    def __init__(self, visual: VisionTransformer, config: LowRankConfig) -> None:
        super().__init__(visual.transformer.resblocks, config)
        self._visual = (visual,)

    @torch.no_grad()
    def prefix(self, inputs: Tensor) -> Activations:
        """Run patches, positions and the frozen blocks: (N, tokens, width)."""
        x = self._visual[0]._embeds(inputs)
        for block in self._frozen_blocks:
            x = block(x)
        return (x,)

    def forward(self, *activations: Tensor) -> Tensor:
        """Turn (N, tokens, width) into unit-length embeddings (N, d)."""
        (x,) = activations
        visual = self._visual[0]
        return unit(_finish(visual, run(list(self.blocks), x, None, _class_token(visual))))


def _class_token(visual: VisionTransformer) -> Read | None:
    """Return what picks the token that the embedding is read from, where it is a single one."""
    return (lambda x: x[:, :1]) if visual.pool_type == "tok" and visual.attn_pool is None else None


def _finish(visual: VisionTransformer, x: Tensor) -> Tensor:
    """Pool and project: (N, tokens, width) to (N, d)."""
    pooled, _ = visual._pool(x)
    return pooled if visual.proj is None else pooled @ visual.proj


class ImageEncoder:
    """The image half of an open_clip model: what its `encode_image` computes, sooner where that can be."""

    def __init__(self, model: Any) -> None:
        self.model = model
        visual = model.visual
        plain = type(model) in (CLIP, CustomTextCLIP) and type(visual) is VisionTransformer
        plain = plain and plain_blocks(visual.transformer.resblocks)
        self._blocks = [AdaptedBlock(block) for block in visual.transformer.resblocks] if plain else None

    def __call__(self, images: Tensor) -> Tensor:
        """Return frozen embeddings (N, d), not normalised, of preprocessed images (N, 3, h, w)."""
        if self._blocks is None:
            return self.model.encode_image(images)
        visual = self.model.visual
        return _finish(visual, run(self._blocks, visual._embeds(images), None, _class_token(visual)))


class ResNetTower(Tower):
    """A ModifiedResNet with low-rank parameters in its attention pool; the convolutions are frozen."""

    def __init__(self, visual: ModifiedResNet, config: LowRankConfig) -> None:
        super().__init__()
        self._visual = (visual,)
        self.product = "tokens of the attention pool"
        width, d = visual.attnpool.c_proj.in_features, visual.attnpool.c_proj.out_features
        names = [n for n in ("q", "k", "v") if n in config.targets] + (["c"] if "out" in config.targets else [])
        if not names:
            raise ModelError("A ModifiedResNet has no MLP blocks: choose targets out of 'q', 'k', 'v', 'out'.")
        self._layers = {n: LowRank(width, d if n == "c" else width, config, self.sink) for n in names}
        self.pool = nn.ModuleDict(self._layers)

    @torch.no_grad()
    def prefix(self, inputs: Tensor) -> Activations:
        """Run convolutions, then the pool's tokens (mean first) with positions: (N, h w + 1, width)."""
        visual = self._visual[0]
        x = visual.stem(inputs)
        x = visual.layer4(visual.layer3(visual.layer2(visual.layer1(x))))
        x = x.flatten(2).mT
        x = torch.cat([x.mean(dim=1, keepdim=True), x], dim=1)
        return (x + visual.attnpool.positional_embedding,)

    def forward(self, *activations: Tensor) -> Tensor:
        """Turn (N, h w + 1, width) into unit-length embeddings (N, d); only the first token asks, all answer."""
        (x,) = activations
        pool = self._visual[0].attnpool
        heads = (pool.num_heads, -1)
        q = self._adapt("q", pool.q_proj, x[:, :1]).unflatten(-1, heads).transpose(1, 2)
        k = self._adapt("k", pool.k_proj, x).unflatten(-1, heads).transpose(1, 2)
        v = self._adapt("v", pool.v_proj, x).unflatten(-1, heads).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return unit(self._adapt("c", pool.c_proj, y)[:, 0])

    def _adapt(self, name: str, linear: nn.Linear, x: Tensor) -> Tensor:
        return project(linear, self._layers.get(name), x)

    def corrections(self) -> list[Correction]:
        """Return those of the attention pool's weights."""
        pool = self._visual[0].attnpool
        return [layer.correction(getattr(pool, f"{name}_proj").weight) for name, layer in self._layers.items()]


def reading(position: Tensor) -> Read:
    """Return what picks one token of each text, at the positions (N,)."""
    return lambda x: x[torch.arange(len(x), device=x.device), position].unsqueeze(1)


class TextEncoder:
    """The text half of an open_clip model, whichever of its two layouts it has.

    `CLIP` keeps the text modules on the model itself, `CustomTextCLIP` in `model.text`. Texts are cut after the last
    end-of-text token of the batch where attention is causal: what comes after it cannot influence the embedding, and
    prompts are short (about 10 of 77 tokens).
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        custom = getattr(model, "text", None)
        self.owner: Any = model if custom is None else custom
        field = "text_{}" if custom is None else "{}"
        self.pool_type = getattr(self.owner, field.format("pool_type"), None)
        self.eos_id: Any = getattr(self.owner, field.format("eos_id"), None)
        # 'plain': a stack of standard blocks that this class can run itself; all else goes through the model
        self.plain = (
            (custom is None or isinstance(custom, TextTransformer))
            and self.pool_type in ("first", "last", "argmax", "eos")
            and getattr(self.owner, "cls_emb", None) is None
            and not getattr(self.owner, "use_pad_mask", False)
        )
        self.causal = self.plain and getattr(self.owner, "attn_mask", None) is not None

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return frozen embeddings (N, d), not normalised, of tokens (N, L)."""
        if not (self.plain and self.causal):
            return self.model.encode_text(tokens)
        x, position = self.embed(tokens)
        for block in self.blocks:
            x = block(x, attn_mask=self.mask(x))
        return self.finish(reading(position)(x))

    @property
    def blocks(self) -> nn.ModuleList:
        """The transformer's blocks."""
        return self.owner.transformer.resblocks

    def mask(self, x: Tensor) -> Tensor | None:
        """Return the causal mask for the length of ``x``, in its dtype."""
        if not self.causal:
            return None
        return self.owner.attn_mask[: x.shape[1], : x.shape[1]].to(x.dtype)

    def embed(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return token and position embeddings (N, L', width), and where each text is read off (N,)."""
        if self.pool_type == "argmax":
            position = tokens.argmax(dim=-1)
        elif self.pool_type == "eos":
            position = tokens.eq(self.eos_id).int().argmax(dim=-1)
        else:
            position = torch.full_like(tokens[:, 0], 0 if self.pool_type == "first" else tokens.shape[1] - 1)
        if self.causal:
            tokens = tokens[:, : int(position.max()) + 1]
        x = self.owner.token_embedding(tokens) + self.owner.positional_embedding[: tokens.shape[1]]
        return x, position

    def finish(self, x: Tensor) -> Tensor:
        """Apply final norm and projection: the tokens that are read (N, 1, width) to (N, d)."""
        pooled, projection = self.owner.ln_final(x[:, 0]), self.owner.text_projection
        if projection is None:
            return pooled
        return projection(pooled) if isinstance(projection, nn.Linear) else pooled @ projection


class TextTransformerTower(TransformerTower):
    """A text transformer with low-rank parameters in its last blocks."""

    def __init__(self, text: TextEncoder, config: LowRankConfig) -> None:
        super().__init__(text.blocks, config)
        self._text = text

    @torch.no_grad()
    def prefix(self, inputs: Tensor) -> Activations:
        """Run tokens (N, L) to (N, L', width) after the frozen blocks, and the reading positions (N,)."""
        x, position = self._text.embed(inputs)
        mask = self._text.mask(x)
        for block in self._frozen_blocks:
            x = block(x, mask)
        return x, position

    def forward(self, *activations: Tensor) -> Tensor:
        """Turn (N, L', width) and positions (N,) into unit-length embeddings (N, d)."""
        x, position = activations
        x = run(list(self.blocks), x, self._text.mask(x), reading(position))
        return unit(self._text.finish(x))


def build_image_tower(model: Any, width: int, config: LowRankConfig | None) -> Tower:
    """Build the image tower of an open_clip model with the low-rank parameters that ``config`` asks for."""
    visual, own = model.visual, config if config and "image" in config.towers else None
    if own is None or own.placement == "head":
        return HeadTower(ImageEncoder(model), _ending(model, "image") or visual, width, own)
    if isinstance(visual, VisionTransformer) and plain_blocks(visual.transformer.resblocks):
        return ImageTransformerTower(visual, own)
    if isinstance(visual, ModifiedResNet):
        return ResNetTower(visual, own)
    return AttachedTower(model.encode_image, visual, own)


def build_text_tower(model: Any, width: int, config: LowRankConfig | None) -> Tower:
    """Build the text tower of an open_clip model with the low-rank parameters that ``config`` asks for."""
    text, own = TextEncoder(model), config if config and "text" in config.towers else None
    if own is None or own.placement == "head":
        return HeadTower(text, _ending(model, "text") or text.owner, width, own)
    if text.plain and plain_blocks(text.blocks):
        return TextTransformerTower(text, own)
    return AttachedTower(model.encode_text, _text_modules(model), own)


def _ending(model: Any, tower: str) -> nn.Linear | None:
    """Return a tower's last projection, where the model names it; a plain open_clip model does not."""
    return getattr(model, "projections", {}).get(tower)


def _text_modules(model: Any) -> Any:
    """Return the module with the text tower's blocks, and with none of the image tower's."""
    custom = getattr(model, "text", None)
    return model.transformer if custom is None else custom

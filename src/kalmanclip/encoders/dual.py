"""A frozen CLIP with low-rank parameters in both towers: the ``h_image`` and ``h_text`` of the paper."""

from __future__ import annotations

import copy
import functools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kalmanclip.encoders.backbone import Backbone
from kalmanclip.encoders.low_rank import LowRankConfig, named_views
from kalmanclip.encoders.towers import Activations, build_image_tower, build_text_tower
from kalmanclip.errors import ConfigError, ModelError


class DualEncoder(nn.Module):
    """Both towers with their low-rank parameters in one flat vector.

    Every low-rank matrix is a view of `theta`, so whoever changes `theta` in place (the filter) or the matrices in
    place (an optimiser) changes the model, and nothing is copied.

    Args:
        backbone: the frozen CLIP; never modified.
        config: where the low-rank parameters sit; None: there are none, and the activations of an image are its
            frozen embedding.
        seed: of the random ``A``.

    Attributes:
        theta: all parameters, (n,): the image tower's, then the text tower's.
        fixed: every ``A`` that is no parameter, laid end to end.
    """

    theta: Tensor
    fixed: Tensor

    def __init__(self, backbone: Backbone, config: LowRankConfig | None = None, seed: int = 0) -> None:
        super().__init__()
        self.backbone = backbone
        self.config = config
        self.image = build_image_tower(backbone.model, backbone.width, config)
        self.text = build_text_tower(backbone.model, backbone.width, config)
        # at least float32, whatever the towers compute in: the filter needs it
        self._lay_out(backbone.device, torch.promote_types(backbone.dtype, torch.float32))
        generator = torch.Generator().manual_seed(seed)
        for layer in self.layers():
            layer.reset(generator)

    def layers(self) -> list[Any]:
        """Return the low-rank layers, in the order of `theta`."""
        return [*self.image.low_rank_layers(), *self.text.low_rank_layers()]

    def _lay_out(self, device: torch.device, dtype: torch.dtype) -> None:
        """Give every matrix its slice of one flat vector: within a tower, layer by layer, ``A`` then ``B``."""
        self.groups = [sum(getattr(layer, name).numel() for name in layer.own) for layer in self.layers()]
        self.theta = torch.zeros(sum(self.groups), device=device, dtype=dtype)
        self.n_image = sum(p.numel() for p in self.image.parameters())
        fixed = [layer for layer in self.layers() if "A" not in layer.own]
        self.fixed = torch.zeros(sum(layer.A.numel() for layer in fixed), device=device, dtype=dtype)
        for layer, part in zip(fixed, self.fixed.split([layer.A.numel() for layer in fixed]), strict=True):
            layer.A = part.view(layer.A.shape)
        begin = 0
        for tower in (self.image, self.text):
            tower_begin = begin
            for layer in tower.low_rank_layers():
                layer.start = begin - tower_begin  # relative: each tower writes into its own part of H
                for name in layer.own:
                    shape = getattr(layer, name).shape
                    view = self.theta[begin : begin + shape.numel()].view(shape)
                    setattr(layer, name, nn.Parameter(view))
                    begin += shape.numel()

    @torch.no_grad()
    def start_principal(self, images: Activations) -> None:
        """Set every ``A`` of the image tower to the leading principal directions of what its map is given.

        They are whitened: what ``A`` makes of a token has second moments of one, so that all rows of ``B`` count alike.

        Args:
            images: activations of some images.
        """
        seen: dict[int, Tensor] = {}
        layers = list(self.image.low_rank_layers())
        for number, layer in enumerate(layers):
            layer.watch = functools.partial(_keep_tokens, seen, number)
        try:
            self.encode_images(images)
        finally:
            for layer in layers:
                layer.watch = None
        for number, x in seen.items():
            A, groups = layers[number].A, len(layers[number].B)
            A.copy_(principal_directions(x.to(A), len(A) // groups).repeat(groups, 1))

    @property
    def n(self) -> int:
        """The number of parameters."""
        return self.theta.numel()

    @property
    def n_text(self) -> int:
        """How many of them belong to the text tower."""
        return self.n - self.n_image

    def named_views(self, theta: Tensor) -> dict[str, Tensor]:
        """Return ``theta`` as a dictionary of parameters by name, for `torch.func.functional_call`."""
        return named_views(self, theta)

    def encode_images(self, activations: Activations) -> Tensor:
        """Turn activations of B images into unit-length embeddings ``I`` (B, d)."""
        return self.image(*activations)

    def encode_texts(self, activations: Activations, templates: int = 1) -> Tensor:
        """Turn activations of C * templates prompts into unit-length class embeddings ``T`` (C, d).

        Several prompts per class are averaged on the sphere: normalise, mean, normalise.
        """
        return averaged_prompts(self.text(*activations), templates)

    def forward(self, images: Activations, texts: Activations, templates: int = 1) -> Tensor:
        """Return the cosine-similarity matrix ``S_C`` (B, C)."""
        return self.encode_images(images) @ self.encode_texts(texts, templates).mT

    def tokenize(self, texts: list[str]) -> Tensor:
        """Turn texts into tokens (N, L) on the model's device."""
        return self.backbone.tokenizer(texts).to(self.backbone.device)

    def merged(self) -> nn.Module:
        """Return a plain open_clip model with the corrections folded into its weights; the backbone stays as it is.

        In float32 at least: beside a weight in bfloat16 a small correction would be rounded away.
        """
        plain = copy.deepcopy(self.backbone.model).to(self.theta.dtype)
        twin = DualEncoder(
            Backbone(self.backbone.name, plain, self.backbone.preprocess, self.backbone.tokenizer), self.config
        )
        with torch.no_grad():
            twin.theta.copy_(self.theta)
            twin.fixed.copy_(self.fixed)
        twin.image.merge_()
        twin.text.merge_()
        return plain


def supports_low_rank(backbone: Backbone, config: LowRankConfig) -> bool:
    """Return whether low-rank parameters can sit there in this model's image tower."""
    try:
        build_image_tower(backbone.model, backbone.width, config)
    except (ConfigError, ModelError):
        return False
    return True


_TOKENS = 2048  # that principal directions are made of


def _keep_tokens(seen: dict[int, Tensor], number: int, x: Tensor) -> None:
    """Keep some of the tokens (N, [tokens,] d) that are given to a layer, spread evenly over them."""
    rows = x.detach().flatten(0, -2)
    seen[number] = rows[:: math.ceil(len(rows) / _TOKENS)]


def principal_directions(x: Tensor, r: int) -> Tensor:
    """Return the r leading eigenvectors of the second moments of x (n, d), over the root of their eigenvalues: (r, d).

    By subspace iteration: d is large, and r small. Where x has fewer rows than r, there are no more directions: the
    last are zero.
    """
    generator = torch.Generator().manual_seed(0)
    Q = torch.randn(x.shape[1], min(r + 8, *x.shape), generator=generator, dtype=x.dtype).to(x.device)
    for _ in range(8):
        Q = torch.linalg.qr(x.mT @ (x @ Q)).Q
    y = x @ Q
    values, vectors = torch.linalg.eigh(y.mT @ y / len(x))  # in ascending order
    roots = values[-r:].clamp_min(torch.finfo(x.dtype).eps * values[-1]).sqrt()
    found = (Q @ vectors[:, -r:] / roots).mT.flip(0)
    return F.pad(found, (0, 0, 0, r - len(found)))


def averaged_prompts(t: Tensor, templates: int) -> Tensor:
    """Turn embeddings of prompts (C * templates, d) into those of classes (C, d), averaged on the sphere."""
    return t if templates == 1 else F.normalize(t.unflatten(0, (-1, templates)).mean(dim=1), dim=-1)

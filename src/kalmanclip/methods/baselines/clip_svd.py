"""CLIP-SVD: the singular values of the weight matrices in every block of both towers, trained by AdamW."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from open_clip.transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.utils import parametrize

from kalmanclip.data import FewShotTask
from kalmanclip.encoders import Backbone, DualEncoder
from kalmanclip.encoders.dual import averaged_prompts
from kalmanclip.encoders.features import Progress, fresh_crops, silent, text_weights
from kalmanclip.encoders.towers import ImageEncoder, TextEncoder, plain_blocks, unit
from kalmanclip.errors import ModelError
from kalmanclip.methods.base import Needs
from kalmanclip.methods.baselines.base import OpenVocabulary
from kalmanclip.methods.baselines.training import IterationConfig, train


@dataclass(frozen=True)
class CLIPSVDConfig(IterationConfig):
    """Options of the training of CLIP-SVD (`IterationConfig`): published with AdamW 5e-4."""

    iterations: int = 200


class SingularValues(nn.Module):
    """A weight ``W + U diag(s - s0) V^T``: that of ``U diag(s) V^T``, and exactly ``W`` where ``s`` is untouched.

    Args:
        weight: ``W``, or several of the same shape, one above the other.
        parts: how many.
    """

    def __init__(self, weight: Tensor, parts: int) -> None:
        super().__init__()
        self.parts = parts
        W = weight.detach().to(torch.promote_types(weight.dtype, torch.float32)).unflatten(0, (parts, -1))
        self.U, s, self.V = (part.contiguous() for part in torch.linalg.svd(W, full_matrices=False))
        self.s0, self.s = s, nn.Parameter(s.clone())

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight with its singular values changed."""
        change = (self.U * (self.s - self.s0).unsqueeze(-2)) @ self.V
        return weight + change.flatten(0, 1).to(weight.dtype)


def expose_singular_values(model: Any) -> list[SingularValues]:
    """Make q, k, v, the output and both MLP matrices of every block depend on their singular values, in place.

    Raises:
        ModelError: the model has not two towers of standard transformer blocks.
    """
    exposed = []
    for attention_or_mlp, name, parts in _matrices(model):
        values = SingularValues(getattr(attention_or_mlp, name), parts)
        parametrize.register_parametrization(attention_or_mlp, name, values)
        exposed.append(values)
    return exposed


def fix_singular_values(model: Any) -> None:
    """Make them plain weights again, with the values that they have."""
    for module, name, _ in _matrices(model):
        parametrize.remove_parametrizations(module, name, leave_parametrized=True)


def _matrices(model: Any) -> Iterator[tuple[nn.Module, str, int]]:
    """Yield every weight whose singular values are trained: its module, its name, how many matrices it holds."""
    text = TextEncoder(model)
    stacks = [model.visual.transformer.resblocks] if isinstance(model.visual, VisionTransformer) else []
    stacks += [text.blocks] if text.plain else []
    if len(stacks) < 2 or not all(plain_blocks(stack) for stack in stacks):
        raise ModelError(
            f"CLIP-SVD needs two towers of standard transformer blocks, not {type(model.visual).__name__} and "
            f"{type(text.owner).__name__}. Choose a ViT, or another method."
        )
    for stack in stacks:
        for block in stack:
            yield block.attn, "in_proj_weight", 3
            yield block.attn.out_proj, "weight", 1
            yield block.mlp.c_fc, "weight", 1
            yield block.mlp.c_proj, "weight", 1


class CLIPSVD(OpenVocabulary):
    """Logits ``f T^T / tau`` of towers whose singular values were trained by cross-entropy over all class prompts.

    The backbone itself is never modified: `encoder` is that of a copy.
    """

    Config = CLIPSVDConfig
    config: CLIPSVDConfig
    needs: ClassVar[Needs] = "towers"

    def fit(self, task: FewShotTask, progress: Progress = silent) -> None:
        """Train on ``task.train``; the last step's singular values stand, nothing is chosen."""
        y, c = self.labels(task), self.config
        model = copy.deepcopy(self.backbone.model)
        exposed = expose_singular_values(model)
        similarities = Similarities(self.backbone, model, task)
        images = fresh_crops(self.backbone, task.train.sources, c.crop_scale if c.augment else None, task.seed)

        def inputs(i: Tensor, epoch: int) -> tuple[Tensor, ...]:
            return y[i], images(i, epoch)

        def loss(labels: Tensor, shown: Tensor) -> Tensor:
            return F.cross_entropy(self.scale * similarities(shown), labels)

        parameters, steps = [values.s for values in exposed], c.steps(max(task.train.counts()))
        train(parameters, c.recipe(lr=5e-4), len(y), steps, loss, task.seed, progress, inputs=inputs)
        fix_singular_values(model.requires_grad_(False))
        # no cache: nobody else has these weights
        tuned = dataclasses.replace(self.backbone, model=model, cache=None, loaded_hash=None)
        self.encoder, self.T = DualEncoder(tuned), text_weights(tuned, task.class_names, task.templates)


class Similarities:
    """Cosines of images and classes, with derivatives for whatever the model's weights depend on.

    Args:
        backbone: whose tokenizer.
        model: the open_clip model.
        task: whose classes and templates.
    """

    def __init__(self, backbone: Backbone, model: Any, task: FewShotTask) -> None:
        self.image, self.text = ImageEncoder(model), TextEncoder(model)
        self.templates = len(task.templates)
        self.tokens = backbone.tokenizer([p for group in task.prompts for p in group]).to(backbone.device)

    def __call__(self, images: Tensor) -> Tensor:
        """Return, of preprocessed images (B, 3, h, w), similarities (B, C)."""
        T = averaged_prompts(unit(self.text(self.tokens)), self.templates)
        return unit(self.image(images)) @ T.mT

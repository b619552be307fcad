"""Low-rank parameters in the layout of peft, for the model that they were learned on.

What every low-rank layer changes is a frozen weight, by a product ``B A``: a LoRA. peft wraps modules, by their paths:
`torch.nn.Linear` and `torch.nn.MultiheadAttention`. It has no place for a projection that is a bare parameter, as
open_clip's own towers end with, nor for a module whose weight is used without calling it. Of an attention it wraps the
output projection as well, but (version 0.21) adds that correction twice: what corrects it is not written.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from kalmanclip.encoders.dual import DualEncoder
from kalmanclip.encoders.low_rank import Correction
from kalmanclip.errors import ModelError

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"


def peft_adapter(encoder: DualEncoder, base: str) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """Return the configuration and the tensors of a LoRA; None where peft has no place for what was learned.

    Args:
        encoder: with at least one low-rank parameter.
        base: the name of the model that they belong to.
    """
    try:
        corrections = [*encoder.image.corrections(), *encoder.text.corrections()]
    except ModelError:  # a tower ends with no linear map
        return None
    model = getattr(encoder.backbone.model, "hf", encoder.backbone.model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    wrapped: dict[str, list[Correction]] = {}
    for correction in corrections:
        path, _, kind = names.get(id(correction.weight), "").rpartition(".")
        if isinstance(model.get_submodule(path.rpartition(".")[0]), nn.MultiheadAttention):
            return None
        if kind != "weight" and not isinstance(model.get_submodule(path), nn.MultiheadAttention):
            return None
        wrapped.setdefault(path, []).append(correction)
    if not wrapped.keys() <= _called(encoder, model):
        return None
    ranks, tensors = {}, {}
    for path, found in wrapped.items():
        prefix, module = f"base_model.model.{path}", model.get_submodule(path)
        factors = {"": (torch.cat([c.A for c in found]), torch.cat([c.B for c in found], dim=1))}
        ranks[path] = len(factors[""][0])
        if isinstance(module, nn.MultiheadAttention):
            like = module.out_proj.weight
            factors[".base_layer.out_proj"] = (
                like.new_zeros(ranks[path], len(like)),
                like.new_zeros(len(like), ranks[path]),
            )
        for part, (A, B) in factors.items():
            tensors[f"{prefix}{part}.lora_A.weight"] = A.float().cpu().contiguous()
            tensors[f"{prefix}{part}.lora_B.weight"] = B.float().cpu().contiguous()
    return _config(ranks, base), tensors


@torch.no_grad()
def _called(encoder: DualEncoder, model: nn.Module) -> set[str]:
    """Return the paths of the modules that are called when an image and a text are encoded."""
    called: set[str] = set()
    hooks = [
        module.register_forward_pre_hook(lambda *_, path=path: called.add(path))
        for path, module in model.named_modules()
    ]
    backbone = encoder.backbone
    try:
        image = backbone.preprocess(Image.new("RGB", (64, 64))).unsqueeze(0)
        backbone.model.encode_image(image.to(backbone.device, backbone.dtype))
        backbone.model.encode_text(encoder.tokenize(["x"]))
    finally:
        for hook in hooks:
            hook.remove()
    return called


def _config(ranks: dict[str, int], base: str) -> dict[str, Any]:
    """Return what peft reads; it takes names for regular expressions, and for the ends of longer names."""
    r = min(ranks.values())
    others = {f"^{re.escape(path)}": rank for path, rank in ranks.items() if rank != r}
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": base,
        "target_modules": "|".join(map(re.escape, ranks)),
        "r": r,
        "lora_alpha": r,  # peft multiplies by lora_alpha / r: by one, since the scale is in B
        "rank_pattern": others,
        "alpha_pattern": others,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "modules_to_save": None,
    }

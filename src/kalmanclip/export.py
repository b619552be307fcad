"""Merged models as folders that open_clip reads by itself, without kalmanclip."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import open_clip
from safetensors.torch import save_file
from torch import Tensor

from kalmanclip.encoders.backbone import architecture_of
from kalmanclip.errors import AdapterError
from kalmanclip.files import atomic_path, write_json_atomic

WEIGHTS = "open_clip_model.safetensors"
CLASSIFIER = "classifier.safetensors"


def export_model(
    folder: Path,
    model: Any,
    backbone: str,
    class_names: Sequence[str],
    templates: Sequence[str],
    classifier: Tensor,
) -> Path:
    """Writes weights, configuration, class prompts and the classifier.

    Read back with ``open_clip.create_model_and_transforms("local-dir:FOLDER")``.

    Args:
        folder: created if need be.
        model: a plain open_clip model.
        backbone: the name it was built from.
        class_names: kept in ``classes.json`` with the templates, so that the classifier can be rebuilt.
        templates: prompt templates.
        classifier: (C, d), the class embeddings that image features are compared with.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise AdapterError(f"Cannot create {folder}: {problem.strerror}. Choose a place you may write to.") from problem
    model_cfg = open_clip.get_model_config(architecture_of(backbone))
    if _uses_quick_gelu(model):
        model_cfg["quick_gelu"] = True
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    with atomic_path(folder / WEIGHTS, AdapterError) as temporary:
        save_file(state, temporary)
    with atomic_path(folder / CLASSIFIER, AdapterError) as temporary:
        save_file({"weight": classifier.detach().cpu().contiguous()}, temporary)
    preprocess = json.loads(json.dumps(getattr(model.visual, "preprocess_cfg", {})))
    write_json_atomic(
        folder / "open_clip_config.json", {"model_cfg": model_cfg, "preprocess_cfg": preprocess}, AdapterError
    )
    write_json_atomic(
        folder / "classes.json", {"class_names": list(class_names), "templates": list(templates)}, AdapterError
    )
    return folder


def _uses_quick_gelu(model: Any) -> bool:
    return any(type(m).__name__ == "QuickGELU" for m in model.modules())

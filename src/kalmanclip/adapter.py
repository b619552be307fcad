"""Adapter folders: a belief on disk, bound to its backbone.

A folder holds ``adapter.json`` (what everything means) and one ``belief-<hash>.safetensors`` (mean, covariance, noise).
The tensors are written first, under a name that carries their hash; then ``adapter.json``, which points to them,
replaces the old one in one step; then the old tensors go. Whenever the machine stops, the folder holds a complete
adapter: the old one or the new one. Nothing in it can execute on load.

`export_model` writes another kind of folder, a merged model that open_clip reads by itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import open_clip
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import kalmanclip
from kalmanclip.config import from_dict, to_dict
from kalmanclip.encoders import Backbone
from kalmanclip.encoders.backbone import architecture_of
from kalmanclip.errors import AdapterError, ConfigError, DataError
from kalmanclip.files import atomic_path, read_json, sha256_of, write_json_atomic
from kalmanclip.filtering import Ranks
from kalmanclip.methods import METHODS, Classifier, make_classifier, method_name
from kalmanclip.methods.classifier import State

FORMAT = "kalmanclip-adapter"
VERSION = 3
DESCRIPTION = "adapter.json"


def save_adapter(folder: str | Path, method: Classifier, notes: dict[str, Any] | None = None) -> Path:
    """Write a fitted method to ``folder`` (created if need be) and return it; an adapter already there is replaced.

    Args:
        folder: where to.
        method: fitted at least once.
        notes: whatever else should be remembered (JSON values), e.g. how far an interrupted fit has come.
    """
    if not method.fitted:
        raise AdapterError("There is nothing to save: fit first.")
    folder = _created(folder)
    state = method.state_dict()
    file, digest = _write_tensors(folder, {name: tensor.cpu() for name, tensor in state.tensors.items()})
    description = {
        "format": FORMAT,
        "version": VERSION,
        "kalmanclip": kalmanclip.__version__,
        "backbone": {"name": method.backbone.name, "hash": method.backbone.hash},
        "class_names": method.class_names,
        "templates": list(method.templates),
        "method": method_name(method.config),
        "config": to_dict(method.config),
        "state": state.values,
        "tensors": {"file": file, "sha256": digest},
        "notes": notes or {},
    }
    write_json_atomic(folder / DESCRIPTION, description, AdapterError)
    for old in folder.glob("belief-*.safetensors"):
        if old.name != file:
            old.unlink(missing_ok=True)
    return folder


def _created(folder: str | Path) -> Path:
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise AdapterError(f"Cannot create {folder}: {problem.strerror}. Choose a place you may write to.") from problem
    return folder


def _write_tensors(folder: Path, tensors: dict[str, Tensor]) -> tuple[str, str]:
    """Write the tensors under a name made of their hash; return the name and the hash."""
    draft = folder / "belief.safetensors"
    with atomic_path(draft, AdapterError) as temporary:
        save_file(tensors, temporary)
    digest = sha256_of(draft, AdapterError)
    name = f"belief-{digest[:16]}.safetensors"
    draft.replace(folder / name)
    return name, digest


def read_description(folder: str | Path) -> dict[str, Any]:
    """Return what ``adapter.json`` says, checked for format and version but not against the tensors."""
    folder = Path(folder)
    path = folder / DESCRIPTION
    if not path.is_file():
        raise AdapterError(
            f"{folder} is not an adapter folder: it has no {DESCRIPTION}. "
            "Give the folder that `kalmanclip fit` wrote (its option -o)."
        )
    description = read_json(path, AdapterError)
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise AdapterError(f"{path} does not describe a kalmanclip adapter.")
    if description.get("version") != VERSION:
        raise AdapterError(
            f"{path} has format version {description.get('version')!r}; this kalmanclip reads version {VERSION}. "
            "Install the kalmanclip version named in the file, or fit again."
        )
    missing = sorted(
        {"backbone", "class_names", "templates", "method", "config", "state", "tensors"} - set(description)
    )
    if missing:
        raise AdapterError(f"{path} is damaged: {', '.join(missing)} missing. Fit again, or restore a copy.")
    return description


def load_adapter(
    folder: str | Path, backbone: Backbone, ranks: Ranks | None = None
) -> tuple[Classifier, dict[str, Any]]:
    """Read an adapter back onto its backbone; ``ranks`` are those that are to go on with it.

    Returns:
        The fitted method and the whole description.

    Raises:
        AdapterError: missing, damaged, of another version, or made for another backbone.
    """
    folder = Path(folder)
    description = read_description(folder)
    wanted = description["backbone"]
    if wanted.get("hash") != backbone.hash:
        raise AdapterError(
            f"The adapter {folder} was made for backbone {wanted.get('name')!r} with weights "
            f"{str(wanted.get('hash'))[:12]}..., but {backbone.name!r} has weights {backbone.hash[:12]}.... "
            f"Load it with model={wanted.get('name')!r}, or fit again on this backbone."
        )
    tensors = read_tensors(folder, description["tensors"])
    # a copy: as read, tensors lie wherever the file has them, and products round by where their factors begin
    tensors = {name: tensor.to(backbone.device, copy=True) for name, tensor in tensors.items()}
    method = make_classifier(backbone, read_config(description), ranks)
    try:
        state = State(tensors, description["state"])
        method.load_state_dict(state, description["class_names"], description["templates"])
    except (ConfigError, DataError, KeyError) as problem:
        raise AdapterError(f"The adapter {folder} is damaged: {problem}.") from problem
    return method, description


def read_config(description: dict[str, Any]) -> Any:
    """Return the options that an adapter's description holds, as its method takes them."""
    name = description["method"]
    if name not in METHODS:
        raise AdapterError(f"The adapter was fitted by an unknown method, {name!r}. Fit again.")
    return from_dict(METHODS[name].Config, description["config"], AdapterError)


def read_tensors(folder: Path, entry: dict[str, str]) -> dict[str, Tensor]:
    """Return the tensors that a description's entry ``tensors`` points to, checked against its hash."""
    path = folder / Path(entry["file"]).name  # the name alone: a description cannot point outside its folder
    advice = "Fit again, or restore a copy of the folder."
    if not path.is_file():
        raise AdapterError(f"The adapter {folder} is damaged: {path.name} is missing. {advice}")
    if sha256_of(path, AdapterError) != entry["sha256"]:
        raise AdapterError(f"The adapter {folder} is damaged: {path.name} is not what was saved. {advice}")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as problem:
        raise AdapterError(f"The adapter {folder} is damaged: {path.name}: {problem}. {advice}") from problem


def export_model(folder: str | Path, method: Classifier) -> Path:
    """Write a plain open_clip model with the learned parameters merged into it, and the classifier.

    Read back with ``open_clip.create_model_and_transforms("local-dir:FOLDER")``. The prompts and class names are in
    ``classes.json``, so that the classifier can be rebuilt.
    """
    model: Any = method.merged()
    folder = _created(folder)
    model_cfg = open_clip.get_model_config(architecture_of(method.backbone.name))
    if any(type(m).__name__ == "QuickGELU" for m in model.modules()):
        model_cfg["quick_gelu"] = True
    for name, tensors in (("open_clip_model", model.state_dict()), ("classifier", {"weight": method.class_weights()})):
        with atomic_path(folder / f"{name}.safetensors", AdapterError) as temporary:
            save_file({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}, temporary)
    preprocess = getattr(model.visual, "preprocess_cfg", {})
    for name, value in (
        ("open_clip_config", {"model_cfg": model_cfg, "preprocess_cfg": preprocess}),
        ("classes", {"class_names": list(method.class_names), "templates": list(method.templates)}),
    ):
        write_json_atomic(folder / f"{name}.json", value, AdapterError)
    return folder

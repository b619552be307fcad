"""Adapter folders: a belief on disk, bound to its backbone.

A folder holds ``adapter.json`` (what everything means) and one ``belief-<hash>.safetensors`` (mean, covariance, noise).
``adapter.json`` points to its tensors by their hash, and replaces the old one in one step, when they are there; then
the old tensors go. Whenever the machine stops, the folder holds a complete adapter: the old one or the new one. Writers
take turns; a reader whose tensors have gone meanwhile reads again. Nothing in it can execute on load.

`export_model` writes another kind of folder, a merged model that open_clip reads by itself.
"""

from __future__ import annotations

import errno
import math
import os
import re
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import kalmanclip
from kalmanclip.config import check_type, from_dict, to_dict
from kalmanclip.data import validate_templates
from kalmanclip.encoders import Backbone
from kalmanclip.encoders.backbone import architecture_of, copy_licences
from kalmanclip.encoders.wrap import IN_MEMORY, TransformersCLIP
from kalmanclip.errors import AdapterError, ConfigError, KalmanClipError
from kalmanclip.files import check_path, read_json, sha256_of, update_folder, write_json_atomic
from kalmanclip.filtering import Ranks
from kalmanclip.methods import Classifier, find_method, make_classifier, method_name
from kalmanclip.methods.classifier import State
from kalmanclip.plugins import installed_only
from kalmanclip.prediction.conformal import KINDS

FORMAT = "kalmanclip-adapter"
VERSION = 3
DESCRIPTION = "adapter.json"
_POSITIVE = ("strength", "gain_precision", "covariance_scale")  # tensors that are divided by, or rooted
_ADVICE = "Fit again, or restore a copy of the folder."


class _Backbone(TypedDict):
    name: str
    hash: str


class _Tensors(TypedDict):
    file: str
    sha256: str


class _HeldOut(TypedDict):
    right: int
    images: int


class _State(TypedDict, total=False):
    steps: int
    skipped: int
    prior_variance: float | None
    covariance_scale: float
    conformal: str
    held_out: _HeldOut
    training_images: list[str]
    descriptions: dict


class _Notes(TypedDict, total=False):
    """What `kalmanclip fit` and the estimator note; other names are the user's."""

    labels: list
    epochs: int
    epochs_done: int
    shots: int | None
    learned_from: list[int]
    calibrate: int | None
    precision: str


class _Required(TypedDict):
    format: str
    version: int
    backbone: _Backbone
    class_names: list[str]
    templates: list[str]
    method: str
    config: dict
    state: _State
    tensors: _Tensors


class Description(_Required, total=False):
    """What ``adapter.json`` holds: its schema, which reading and writing check."""

    kalmanclip: str
    notes: _Notes


class Stored(NamedTuple):
    """An adapter as read from its folder, whole and checked, without a backbone."""

    folder: Path
    description: dict[str, Any]
    tensors: dict[str, Tensor]


def save_adapter(folder: str | Path, method: Classifier, notes: dict[str, Any] | None = None) -> Path:
    """Write a fitted method to ``folder`` (created if need be) and return it; an adapter already there is replaced.

    Args:
        folder: where to.
        method: fitted at least once.
        notes: whatever else should be remembered (JSON values), e.g. how far an interrupted fit has come.
    """
    if not method.fitted:
        raise AdapterError("There is nothing to save: fit first.")
    state = method.state_dict()
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
        "tensors": {"file": "", "sha256": ""},
        "notes": notes or {},
    }
    try:
        check_type(description, Description, "the adapter")
    except ConfigError as problem:
        raise AdapterError(f"This adapter could not be read again: {problem}") from problem
    with update_folder(folder, AdapterError, last=DESCRIPTION, obsolete="belief*.safetensors") as draft:
        unnamed = draft / "belief.safetensors"
        write_tensors(unnamed, state.tensors)
        digest = sha256_of(unnamed, AdapterError)
        file = unnamed.rename(draft / f"belief-{digest[:16]}.safetensors")
        write_json_atomic(
            draft / DESCRIPTION, description | {"tensors": {"file": file.name, "sha256": digest}}, AdapterError
        )
    return Path(folder)


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors; trouble with the disk is an `OSError`, which it is not in safetensors."""
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as problem:
        number = re.search(r"os error (\d+)", str(problem))
        code = int(number[1]) if number else errno.EIO
        raise OSError(code, os.strerror(code) if number else str(problem), str(path)) from problem


def read_description(folder: str | Path) -> dict[str, Any]:
    """Return what ``adapter.json`` says, with every type and range checked, but not against the tensors."""
    folder = check_path(folder, AdapterError)
    path = folder / DESCRIPTION
    if not path.is_file():
        raise AdapterError(
            f"{folder} is not an adapter folder: it has no {DESCRIPTION}. "
            "Give the folder that `kalmanclip fit` wrote (its option -o)."
        )
    description: dict[str, Any] = read_json(path, AdapterError)
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise AdapterError(f"{path} does not describe a kalmanclip adapter.")
    if description.get("version") != VERSION:
        raise AdapterError(
            f"{path} has format version {description.get('version')!r}; this kalmanclip reads version {VERSION}. "
            "Install the kalmanclip version named in the file, or fit again."
        )
    try:
        check_type(description, Description, "it")
        _check_ranges(description)
        read_config(description)
    except KalmanClipError as problem:
        raise AdapterError(f"{path} is damaged: {problem} {_ADVICE}") from problem
    return description


def _check_ranges(description: dict[str, Any]) -> None:
    """Raise an error for values that no adapter can have, though their types are right."""
    names, state, notes = description["class_names"], description["state"], description.get("notes", {})
    labels = notes.get("labels")
    plain = labels is None or all(isinstance(label, str | int | float) for label in labels)
    steps, done = state.get("steps", 0), notes.get("epochs_done", 0)
    positive = [state.get(name) for name in ("prior_variance", "covariance_scale")]
    for problem, holds in {
        "it names no classes, or one without letters": bool(names) and all(name.strip() for name in names),
        "the labels are not those of its classes": plain and (labels is None or len(labels) == len(names)),
        "the counts of steps and passes are impossible": 0 <= state.get("skipped", 0) <= steps
        and 0 <= done <= notes.get("epochs", done),
        "more images were right than were held out": _possible(state.get("held_out")),
        "a variance is not positive": all(v is None or (math.isfinite(v) and v > 0) for v in positive),
        f"conformal is none of {', '.join(KINDS)}": state.get("conformal", KINDS[0]) in KINDS,
        "its backbone has no hash": re.fullmatch("[0-9a-f]{64}", description["backbone"]["hash"]) is not None,
    }.items():
        if not holds:
            raise ConfigError(f"{problem}.")
    validate_templates(description["templates"])


def _possible(held: _HeldOut | None) -> bool:
    return held is None or 0 <= held["right"] <= held["images"] > 0


def read_adapter(folder: str | Path) -> Stored:
    """Return a whole adapter, checked as far as that goes without its backbone.

    Somebody may be saving meanwhile: then this is the adapter before or after, never a mixture.

    Raises:
        AdapterError: missing, damaged, or of another version.
    """
    folder = Path(folder)
    description = read_description(folder)
    while True:
        try:
            return Stored(folder, description, _read_tensors(folder, description["tensors"]))
        except AdapterError:
            before, description = description, read_description(folder)
            if description["tensors"] == before["tensors"]:
                raise


def restore(stored: Stored, backbone: Backbone, ranks: Ranks | None = None) -> Classifier:
    """Return the fitted method of an adapter on its backbone; ``ranks`` are those that are to go on with it.

    Raises:
        AdapterError: made for another backbone, or its parts do not fit each other.
    """
    folder, description, tensors = stored
    wanted = description["backbone"]
    if wanted["hash"] != backbone.hash:
        raise AdapterError(
            f"The adapter {folder} was made for backbone {wanted['name']!r} with weights {wanted['hash'][:12]}..., "
            f"but {backbone.name!r} has weights {backbone.hash[:12]}.... "
            f"Load it with model={wanted['name']!r}, or fit again on this backbone."
        )
    # a copy: as read, tensors lie wherever the file has them, and products round by where their factors begin
    tensors = {name: tensor.to(backbone.device, copy=True) for name, tensor in tensors.items()}
    config = read_config(description)
    with installed_only():
        method = make_classifier(backbone, config, ranks)
    try:
        state = State(tensors, description["state"])
        with installed_only():
            method.load_state_dict(state, description["class_names"], description["templates"])
    except (KalmanClipError, ValueError, TypeError, LookupError, ArithmeticError, RuntimeError) as problem:
        raise AdapterError(f"The adapter {folder} is damaged: {problem}. {_ADVICE}") from problem
    return method


def read_config(description: dict[str, Any]) -> Any:
    """Return the options that an adapter's description holds, as its method takes them.

    Plug-ins that it names must be installed, or imported by the user: nothing is imported because a file says so.
    """
    name = description["method"]
    with installed_only():
        try:
            method = find_method(name)
        except ConfigError as problem:
            raise AdapterError(f"The adapter was fitted by an unknown method, {name!r}: {problem}") from problem
        if not issubclass(method, Classifier):
            raise AdapterError(f"The adapter was fitted by an unknown method, {name!r}, which has no belief.")
        return from_dict(method.Config, description["config"], AdapterError)


def _read_tensors(folder: Path, entry: dict[str, str]) -> dict[str, Tensor]:
    """Return the tensors that a description's entry ``tensors`` points to, checked against its hash."""
    path = folder / Path(entry["file"]).name  # the name alone: a description cannot point outside its folder
    if not path.is_file():
        raise AdapterError(f"The adapter {folder} is damaged: {path.name} is missing. {_ADVICE}")
    if sha256_of(path, AdapterError) != entry["sha256"]:
        raise AdapterError(f"The adapter {folder} is damaged: {path.name} is not what was saved. {_ADVICE}")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError, KeyError, ValueError) as problem:
        raise AdapterError(f"The adapter {folder} is damaged: {path.name}: {problem}. {_ADVICE}") from problem
    for name, tensor in tensors.items():
        if wrong := _problem(name.rpartition(".")[2], tensor):
            raise AdapterError(f"The adapter {folder} is damaged: {name} {wrong}. {_ADVICE}")
    return tensors


def _problem(name: str, tensor: Tensor) -> str:
    """Return what is wrong with a tensor of that name, if anything, whatever the method."""
    if not bool(torch.isfinite(tensor).all()):
        return "is not finite"
    if name in ("labels", "fingerprints", "folds") and tensor.dtype != torch.int64:
        return "is not of whole numbers"
    if name in _POSITIVE and not bool((tensor > 0).all()):
        return "is not positive"
    return ""


def export_model(folder: str | Path, method: Classifier) -> Path:
    """Write a plain model with the learned parameters merged into it, and the classifier.

    Read back with ``open_clip.create_model_and_transforms("local-dir:FOLDER")``, or where the backbone is one of
    transformers with ``AutoModel.from_pretrained("FOLDER")``. The prompts and class names are in
    ``classes.json``, so that the classifier can be rebuilt. A licence of the backbone's weights goes along.
    """
    name = method.backbone.name
    if name.startswith(IN_MEMORY):
        raise AdapterError(f"The backbone {name!r} has no configuration to export: use merge() and class_weights().")
    model: Any = method.merged()
    classes = {"class_names": list(method.class_names), "templates": list(method.templates)}
    tensors, values = {"classifier": {"weight": method.class_weights()}}, {"classes": classes}
    saved: list[Any] = []  # what writes files of its own
    if isinstance(model, TransformersCLIP):
        saved, last = [model.hf, model.processor], "config.json"
    else:
        import open_clip  # not above: `kalmanclip.encoders` has to be the first

        model_cfg = open_clip.get_model_config(architecture_of(name))
        if any(type(m).__name__ == "QuickGELU" for m in model.modules()):
            model_cfg["quick_gelu"] = True
        words: Any = getattr(method.backbone.tokenizer, "tokenizer", None)
        if hasattr(words, "save_pretrained"):  # one of transformers: open_clip looks for it in the folder
            saved = [words]
        tensors["open_clip_model"] = model.state_dict()
        config = {"model_cfg": model_cfg, "preprocess_cfg": getattr(model.visual, "preprocess_cfg", {})}
        values["open_clip_config"], last = config, "open_clip_config.json"
    with update_folder(folder, AdapterError, last=last) as draft:
        for part in saved:
            part.save_pretrained(draft)
        copy_licences(name, draft)
        for stem, state in tensors.items():
            write_tensors(draft / f"{stem}.safetensors", state)
        for stem, value in values.items():
            write_json_atomic(draft / f"{stem}.json", value, AdapterError)
    return Path(folder)

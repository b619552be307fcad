"""Adapter folders: a belief on disk, bound to its backbone.

A folder holds ``adapter.json`` (what everything means) and one ``belief-<hash>.safetensors`` (mean, covariance, noise).
The tensors are written first, under a name that carries their hash; then ``adapter.json``, which points to them,
replaces the old one in one step; then the old tensors go. Whenever the machine stops, the folder holds a complete
adapter: the old one or the new one. Nothing in it can execute on load.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import kalmanclip
from kalmanclip.config import from_dict, to_dict
from kalmanclip.encoders import Backbone
from kalmanclip.errors import AdapterError, ConfigError, DataError
from kalmanclip.files import atomic_path, read_json, sha256_of, write_json_atomic
from kalmanclip.filtering import KalmanFilter, ObservationNoise, Ranks, restore_belief
from kalmanclip.methods import Kalman, KalmanConfig
from kalmanclip.prediction.conformal import Calibration
from kalmanclip.prediction.unknown import KnownImages

FORMAT = "kalmanclip-adapter"
VERSION = 2
DESCRIPTION = "adapter.json"


def save_adapter(folder: str | Path, method: Kalman, notes: dict[str, Any] | None = None) -> Path:
    """Writes a fitted method to ``folder`` (created if need be); an adapter already there is replaced.

    Args:
        folder: where to.
        method: fitted at least once.
        notes: whatever else should be remembered (JSON values), e.g. how far an interrupted fit has come.

    Returns:
        The folder.
    """
    folder = Path(folder)
    if not method.fitted:
        raise AdapterError("There is nothing to save: fit first.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise AdapterError(
            f"Cannot create the adapter folder {folder}: {problem.strerror}. Choose a place you may write to."
        ) from problem
    tensors: dict[str, Tensor] = {}
    if method.filter is not None:
        tensors |= {f"belief.{k}": v.cpu() for k, v in method.filter.belief.state_dict().items()}
        tensors |= {f"noise.{k}": v.cpu() for k, v in method.filter.noise.state_dict().items()}
    if method.classes is not None and method.classes.belief is not None:
        tensors |= {f"classes.{k}": v.cpu() for k, v in method.classes.state_dict().items()}
    known, calibration = method.known, method.calibration
    if known is not None:
        tensors |= {"unknown.features": known.features.half().cpu(), "unknown.labels": known.labels.cpu()}
    if calibration is not None:
        tensors["conformal.misfits"] = torch.from_numpy(calibration.misfits)
        tensors["conformal.labels"] = torch.from_numpy(calibration.labels)
    file, digest = _write_tensors(folder, tensors)
    description = {
        "format": FORMAT,
        "version": VERSION,
        "kalmanclip": kalmanclip.__version__,
        "backbone": {"name": method.backbone.name, "hash": method.backbone.hash},
        "class_names": method.class_names,
        "templates": list(method.templates),
        "config": to_dict(method.config),
        "steps": method.filter.steps if method.filter else 0,
        "skipped": method.filter.skipped if method.filter else 0,
        "prior_variance": method.prior_variance,
        "temper": method.temper,
        "known_images": list(known.sources) if known else None,
        "conformal": calibration.kind if calibration else None,
        "tensors": {"file": file, "sha256": digest},
        "notes": notes or {},
    }
    write_json_atomic(folder / DESCRIPTION, description, AdapterError)
    for old in folder.glob("belief-*.safetensors"):
        if old.name != file:
            old.unlink(missing_ok=True)
    return folder


def _write_tensors(folder: Path, tensors: dict[str, Tensor]) -> tuple[str, str]:
    """Writes the tensors under a name made of their hash; returns the name and the hash."""
    draft = folder / "belief.safetensors"
    with atomic_path(draft, AdapterError) as temporary:
        save_file(tensors, temporary)
    digest = sha256_of(draft, AdapterError)
    name = f"belief-{digest[:16]}.safetensors"
    draft.replace(folder / name)
    return name, digest


def read_description(folder: str | Path) -> dict[str, Any]:
    """What ``adapter.json`` says, checked for format and version but not against the tensors."""
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
    missing = sorted({"backbone", "class_names", "templates", "config", "tensors"} - set(description))
    if missing:
        raise AdapterError(f"{path} is damaged: {', '.join(missing)} missing. Fit again, or restore a copy.")
    return description


def load_adapter(folder: str | Path, backbone: Backbone, ranks: Ranks | None = None) -> tuple[Kalman, dict[str, Any]]:
    """Reads an adapter back onto its backbone; ``ranks`` are those that are to go on with it.

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
    method = Kalman(backbone, from_dict(KalmanConfig, description["config"], AdapterError), ranks)
    parts: dict[str, dict[str, Tensor]] = {"belief": {}, "noise": {}, "classes": {}, "unknown": {}, "conformal": {}}
    for name, tensor in tensors.items():
        part, _, key = name.partition(".")
        # a copy: as read, tensors lie wherever the file has them, and products round by where their factors begin
        parts[part][key] = tensor.to(backbone.device, copy=True)
    try:
        if "low_rank" in method.config.parameters:
            _restore_filter(method, parts, description)
        if method.classes is not None and (parts["classes"] or method.filter is None):  # a fit may have stopped between
            method.classes.load_state_dict(parts["classes"], description["class_names"])
        method.set_classes(description["class_names"], description["templates"])
        _restore_uncertainty(method, parts, description)
    except (ConfigError, DataError) as problem:
        raise AdapterError(f"The adapter {folder} is damaged: {problem}.") from problem
    return method, description


def _restore_uncertainty(method: Kalman, parts: dict[str, dict[str, Tensor]], description: dict[str, Any]) -> None:
    """Puts back what tells unknown images and calibrates sets; adapters from before there was that have neither."""
    known, calibration, C = parts["unknown"], parts["conformal"], len(method.class_names)
    for part, tensor in ((known, "features"), (calibration, "misfits")):
        if part and not (tensor in part and "labels" in part and _fit(part[tensor], part["labels"], C)):
            raise ConfigError(f"its {tensor} and their labels are incomplete or do not fit its classes")
    if known and method.classes is not None and method.classes.T is not None:
        texts = method.classes.T
        sources = description.get("known_images") or [""] * len(known["labels"])
        method.known = KnownImages.of(known["features"].to(texts.dtype), known["labels"], texts, sources)
    if calibration:
        misfits, labels = (calibration[name].cpu().numpy() for name in ("misfits", "labels"))
        method.calibration = Calibration(misfits, labels, description.get("conformal") or "lac")


def _fit(rows: Tensor, labels: Tensor, classes: int) -> bool:
    """Whether there is a label for each row, and all labels are among the classes."""
    return labels.ndim == 1 and rows.shape[:1] == labels.shape and bool(((labels >= 0) & (labels < classes)).all())


def _restore_filter(method: Kalman, parts: dict[str, dict[str, Tensor]], description: dict[str, Any]) -> None:
    """Puts the belief over the low-rank parameters, and its filter, back into the method."""
    mean = parts["belief"].get("mean")
    if mean is None or mean.shape != method.encoder.theta.shape:
        raise ConfigError("its mean does not fit its configuration")
    with torch.no_grad():
        method.encoder.theta.copy_(mean)
    parts["belief"]["mean"] = method.encoder.theta  # the belief's mean *is* the model's parameters
    belief = restore_belief(method.config.belief, parts["belief"])
    noise = ObservationNoise.from_state(method.config.noise, parts["noise"])
    method.filter = KalmanFilter(belief, noise, method.config.filter)
    method.filter.steps = description.get("steps", 0)
    method.filter.skipped = description.get("skipped", 0)
    method.prior_variance = description.get("prior_variance")
    method.temper = description.get("temper", method.temper)  # adapters from before predictions were averaged: none


def read_tensors(folder: Path, entry: dict[str, str]) -> dict[str, Tensor]:
    """The tensors that a description's entry ``tensors`` points to, checked against its hash."""
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

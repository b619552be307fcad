"""``kalmanclip info``: what is installed, or what an adapter holds."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import kalmanclip
from kalmanclip.cli.console import calibrated_on, expected_facts, facts, percent, say, size_of, some, waiting
from kalmanclip.config import flatten, to_dict
from kalmanclip.errors import AdapterError, ConfigError

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLES = """
kalmanclip info                   versions, devices, models on this computer
kalmanclip info pets.adapter      backbone, classes, options, belief
"""

PACKAGES = ("torch", "open_clip_torch", "numpy", "pillow", "scikit-learn")


def info(
    adapter: Annotated[
        Path | None, typer.Argument(metavar="[ADAPTER]", help="The folder that `kalmanclip fit` wrote.")
    ] = None,
) -> None:
    """Show what is installed, or what an adapter holds."""
    if adapter is None:
        _installed()
    else:
        _adapter(adapter)


def _installed() -> None:
    with waiting("Looking around"):
        import torch

        from kalmanclip.encoders import cache_folder, load_backbone

        tiny = load_backbone("tiny")
    features = cache_folder()
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    parameters = sum(p.numel() for p in tiny.model.parameters()) / 1e6
    facts(
        [
            ("kalmanclip", kalmanclip.__version__),
            ("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
            *((name, version(name)) for name in PACKAGES),
            ("processor", f"{torch.get_num_threads()} threads"),
            ("GPU", ", ".join(gpus) or "none"),
            ("embedded model", f"tiny, {parameters:.1f} million parameters, {tiny.image_size} pixels"),
            *(("in the cache", f"{name} ({size})") for name, size in _cached()),
            ("cached features", "off" if features is None else f"{features} ({size_of(features)}; may be deleted)"),
        ]
    )


def _cached() -> list[tuple[str, str]]:
    """Return models that need no network any more, as far as open_clip's two caches tell."""
    from huggingface_hub.constants import HF_HUB_CACHE

    hub = sorted(Path(HF_HUB_CACHE).glob("models--*"))
    by_address = sorted((Path.home() / ".cache" / "clip").glob("*.pt"))
    return [(p.name.removeprefix("models--").replace("--", "/"), size_of(p)) for p in (*hub, *by_address)]


def _adapter(adapter: Path) -> None:
    with waiting("Reading"):
        from kalmanclip.adapter import read_adapter, read_config
        from kalmanclip.prediction import ExpectedAccuracy

        _, description, tensors = read_adapter(adapter)  # without the backbone, which may not be here
        belief = [*_low_rank(adapter, description, tensors), *_residuals(tensors)]
    names, backbone, notes = description["class_names"], description["backbone"], description.get("notes", {})
    passes = []
    if "epochs_done" in notes:
        interrupted = notes["epochs_done"] < notes["epochs"]
        more = ": interrupted, go on with fit --resume" if interrupted else ""
        passes = [("passes", f"{notes['epochs_done']} of {notes['epochs']}{more}")]
    known, held = (len(tensors.get(f"{part}.labels", ())) for part in ("ood", "conformal"))
    state = description["state"]
    calibrated = f"calibrated on {calibrated_on(held, 'conformal.folds' in tensors)}"
    expected = ExpectedAccuracy(**state["held_out"]) if "held_out" in state else None
    facts(
        [
            ("backbone", f"{backbone['name']} (weights {backbone['hash'][:12]})"),
            ("classes", f"{len(names)} ({some(names)})"),
            ("prompts", " | ".join(description["templates"])),
            *passes,
            *belief,
            ("unknown images", f"told by {known} training images" if known else "are not marked (fit again)"),
            ("sets of classes", calibrated if held else "not calibrated (fit --calibrate)"),
            *expected_facts(expected),
            ("size", f"{size_of(adapter)}, written by kalmanclip {description.get('kalmanclip', '?')}"),
        ]
    )
    say()
    say("Options", style="bold")
    options = flatten(to_dict(read_config(description)))  # by name, as a file for --config has them
    facts((f"  {name}", value if isinstance(value, str) else json.dumps(value)) for name, value in options.items())


def _low_rank(adapter: Path, description: dict[str, Any], tensors: dict[str, Tensor]) -> list[tuple[str, str]]:
    from kalmanclip.filtering import restore_belief

    if "belief.mean" not in tensors:
        return []
    state = {name.removeprefix("belief."): t for name, t in tensors.items() if name.startswith("belief.")}
    config, numbers = description["config"], description["state"]
    structure = config.get("belief", "diagonal")
    try:
        std = restore_belief(structure, state).marginal_variance().sqrt()
    except ConfigError as problem:
        raise AdapterError(f"The adapter {adapter} is damaged: {problem}.") from problem
    rows = [
        ("steps", f"{numbers['steps']}, of which {numbers['skipped']} skipped"),
        ("belief", f"{structure}, over {std.numel()} low-rank parameters"),
        ("", f"standard deviations from {std.min():.3g} to {std.max():.3g}"),
    ]
    if variance := numbers.get("prior_variance"):
        prior, mean = variance**0.5, float(std.mean())
        share = percent(mean / prior)
        rows.append(("", f"before it saw anything {prior:.3g}, now {mean:.3g} on average: {share} of it"))
    return rows


def _residuals(tensors: dict[str, Tensor]) -> list[tuple[str, str]]:
    if "residuals.mean" not in tensors:
        return []
    C, d = tensors["residuals.mean"].shape
    std, gain = float(tensors["residuals.strength"]) ** -0.5, float(tensors["residuals.gain"])
    return [
        ("belief", f"about residuals of {C} classes in {d} dimensions"),
        ("", f"prior standard deviation of a similarity {std:.2f}, text's share {percent(gain)}"),
    ]

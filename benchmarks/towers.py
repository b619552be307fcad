"""Low-rank parameters inside the towers of a real CLIP: the ground on which the preset `towers` stands.

    python -m benchmarks.towers MODEL ../shared/data/eurosat ../shared/data/pets --json results/towers.json
        [--shots 4] [--seed 1] [--images 360] [--precision bfloat16] [--only towers ...]

Learns one seed's shots and measures on training images that this seed does *not* use: no test image is opened, so the
preset may be chosen by this table. AdamW learns the same parameters from the same number of crops. Rows that the file
has already are not measured again, unless their options have changed.
"""

import argparse
import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.development import development, scores
from kalmanclip.config import to_dict
from kalmanclip.encoders import Backbone, load_backbone
from kalmanclip.files import write_atomic
from kalmanclip.methods import JointConfig, Method, make_classifier, make_method, preset, with_options
from kalmanclip.methods.baselines.clip_lora import CLIPLoRA, CLIPLoRAConfig
from kalmanclip.methods.baselines.training import Recipe
from kalmanclip.methods.residuals import ClassResidualsConfig

KEY = ("configuration", "model", "data", "shots", "seed", "images", "options")

TOWERS = to_dict(preset("towers"))
FILTERS: dict[str, dict[str, Any]] = {
    "towers": {},
    "one variance for all matrices": {"prior_per_matrix": False},
    "centre crops": {"crop_scale": None},
    "regulated": {"filter": {"alpha": 1.0}},
}
"""The preset, and with one thing changed at a time."""

JOINT = {
    "towers, then residuals": JointConfig(preset("towers"), ClassResidualsConfig(folds=2)),
    "head, then residuals": JointConfig(),
}
"""Both kinds of parameters. Two folds: towers are learned anew for each, together at the price of one more fit."""

RATES = (2e-4, 1e-3, 3e-3)
"""Of AdamW. The first is CLIP-LoRA's, for many more steps than here."""


@dataclasses.dataclass(frozen=True)
class AdamWConfig(CLIPLoRAConfig):
    """Options of CLIP-LoRA with a learning rate of one's own."""

    lr: float = 1e-3

    def recipe(self, lr: float) -> Recipe:
        """Return AdamW with the rate of these options instead."""
        return super().recipe(self.lr)


def methods(images: int) -> dict[str, tuple[dict[str, Any], Callable[[Backbone], Method]]]:
    """What is measured: options, and how it is made for so many training images."""
    found: dict[str, tuple[dict[str, Any], Callable[[Backbone], Method]]] = {}
    configs = {name: with_options(preset("towers"), changed) for name, changed in FILTERS.items()} | JOINT
    for name, config in configs.items():
        found[name] = to_dict(config), lambda b, config=config: make_classifier(b, config)  # type: ignore[misc]
    batch, passes = TOWERS["batch_size"], TOWERS["epochs"] * math.ceil(images / TOWERS["batch_size"])
    for lr in RATES:
        adamw = AdamWConfig(most_iterations=passes, batch_size=batch, crop_scale=TOWERS["crop_scale"], lr=lr)
        found[f"AdamW {lr:g}"] = to_dict(adamw), lambda b, adamw=adamw: CLIPLoRA(b, adamw)  # type: ignore[misc]
    found["class residuals"] = {}, lambda b: make_method("class_residuals", b)
    found["zero-shot"] = {}, lambda b: make_method("zero_shot", b)
    return found


def main() -> None:
    """Measure what the file does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--shots", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--images", type=int, default=360, help="how many images to measure on, at most")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--only", nargs="+")
    options = parser.parse_args()
    console = Console()
    rows = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    known = {tuple(row[k] for k in KEY) for row in rows}
    backbone = load_backbone(options.model, "cpu", options.precision)
    for folder in options.data:
        task, rest = development(folder, options.shots, options.seed)
        chosen = torch.randperm(len(rest), generator=torch.Generator().manual_seed(0))[: options.images]
        rest = rest.subset(chosen.tolist())
        for name, (settings, make) in methods(len(task.train)).items():
            if options.only and name not in options.only:
                continue
            digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
            key = (name, Path(options.model).name, folder.name, options.shots, options.seed, len(rest), digest)
            if key in known:
                continue
            method, begin = make(backbone), time.perf_counter()
            method.fit(task)
            seconds = time.perf_counter() - begin
            accuracy, nll = scores(method, rest)
            row = dict(zip(KEY, key, strict=True)) | {"accuracy": accuracy, "nll": nll, "seconds": seconds}
            rows.append(row)
            console.print(
                f"{folder.name} {options.shots} shots, {name}: {accuracy:.1f} %, NLL {nll:.3f}, {seconds:.0f} s"
            )
            if options.json:
                write_atomic(options.json, json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""What does each part of the presets `joint` and `paper-tuned` bring? One thing changed at a time, in a real CLIP.

    python -m benchmarks.towers MODEL ../shared/data/eurosat ../shared/data/pets ../shared/data/dtd37 --shots 1 4 \\
        --device cuda --json results/towers.json [--seeds 1 2] [--images 360] [--precision bfloat16] [--only joint ...]

Learns the shots of a seed and measures on training images that this seed does *not* use: no test image is opened, so
presets may be chosen by this table. AdamW learns exactly the same parameters from the same batches of the same
crops, from the same start; its loss is the negative log-likelihood whose root the filter observes. Rows that the file
has already are not measured again, unless their options have changed.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import PropertyMock, patch

import torch
import torch.nn.functional as F

from benchmarks.development import development, scores
from benchmarks.table import (
    SETS,
    Row,
    add_file,
    markdown,
    mean,
    only,
    read_rows,
    rows_of,
    shots_head,
    values,
    write_rows,
)
from kalmanclip.config import to_dict
from kalmanclip.encoders import Backbone, load_backbone
from kalmanclip.encoders.features import Progress
from kalmanclip.methods import Joint, JointConfig, Method, make_classifier, make_method, preset, with_options
from kalmanclip.methods.baselines import descent
from kalmanclip.methods.baselines.training import Recipe
from kalmanclip.methods.joint import Batch
from kalmanclip.methods.leave_one_out import LeaveOneOut

KEY = ("configuration", "model", "data", "shots", "seed", "images", "options")
RATES = (2e-4, 1e-3, 3e-3)
"""Of AdamW. The first is CLIP-LoRA's, for many more steps than here."""


@dataclass(frozen=True)
class DescentConfig(JointConfig):
    """Options of `joint`, and AdamW's learning rate at the start; down to 1e-6 by a cosine, as CLIP-LoRA's."""

    lr: float = 1e-3

    @property
    def recipe(self) -> Recipe:
        """All else of AdamW: weight decay 1e-2, as CLIP-LoRA's."""
        return Recipe(lr=self.lr, final_lr=1e-6)


class Descent(Joint):
    """`Joint`, but AdamW learns the low-rank parameters. Predictions are made by its last step's."""

    Config = DescentConfig
    config: DescentConfig

    def _learn_towers(self, batches: Iterator[Batch], observed: LeaveOneOut, steps: int, progress: Progress) -> None:
        recipe, encoder = self.config.recipe, self.encoder

        def loss(positions: torch.Tensor, *shown: torch.Tensor) -> torch.Tensor:
            f = encoder.encode_images(shown)
            value = F.cross_entropy(observed.logits(f, positions), observed.labels[positions])
            observed.remember(f.detach(), positions)
            return value

        adamw = descent.make_adamw(list(encoder.image.parameters()), recipe.lr, recipe.weight_decay)
        learner = descent.Descent(adamw, loss)
        for step, (positions, shown) in enumerate(itertools.islice(batches, steps)):
            learner.step(recipe.rate(step, steps, 1), positions, *shown)
            progress("adapting the image tower", step + 1, steps)


@dataclass(frozen=True)
class Change:
    """A row of the table: what is different from the preset.

    Attributes:
        options: of the method.
        parts: what is replaced while it learns and predicts: constants and functions that are no options.
        config: the options that are changed.
    """

    options: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    config: JointConfig = field(default_factory=JointConfig)


def _texts_alone(self: LeaveOneOut) -> torch.Tensor:
    """The gains that the observation has where no other image is asked."""
    return self.f.new_tensor([1.0, 0.0])


JOINT = "kalmanclip.methods.joint"
RANDOM_A = {f"{JOINT}.DualEncoder.start_principal": lambda self, images: None}
ROWS: dict[str, Change] = {
    "joint": Change(),
    "5 steps for each image of a class": Change({"steps": 5}),
    "10 steps": Change({"steps": 10}),
    "30 steps": Change({"steps": 30}),
    "30 steps, step size 0.03": Change({"steps": 30, "step_size": 0.03}),
    "60 steps": Change({"steps": 60}),
    "prior std 0.3": Change({"prior_std": 0.3}),
    "prior std 0.5": Change({"prior_std": 0.5}),
    "prior std 2": Change({"prior_std": 2.0}),
    "prior std 3": Change({"prior_std": 3.0}),
    "rank 1": Change({"low_rank": {"rank": 1}}),
    "rank 4": Change({"low_rank": {"rank": 4}}),
    "rank 8": Change({"low_rank": {"rank": 8}}),
    "q, k, v only": Change({"low_rank": {"targets": ["q", "k", "v"]}}),
    "mlp only": Change({"low_rank": {"targets": ["mlp"]}}),
    "last 2 blocks": Change({"low_rank": {"last_blocks": 2}}),
    "last 6 blocks": Change({"low_rank": {"last_blocks": 6}}),
    "A learned, too": Change({"low_rank": {"learn_a": True}}),
    "A random": Change(parts=RANDOM_A),
    "A random, and learned": Change({"low_rank": {"learn_a": True}}, RANDOM_A),
    "fixed centre crops": Change({"crop_scale": None}),
    "crops of 8 % of the area and more": Change({"crop_scale": [0.08, 1.0]}),
    "crops of half the area and more": Change({"crop_scale": [0.5, 1.0]}),
    "step size 0.02": Change({"step_size": 0.02}),
    "step size 0.15": Change({"step_size": 0.15}),
    "step size 0.1": Change({"step_size": 0.1}),
    "batches of 16": Change({"batch_size": 16}),
    "batches of 64": Change({"batch_size": 64}),
    "observed by the texts alone": Change(parts={f"{JOINT}.LeaveOneOut._fitted": _texts_alone}),
    "no untouched embeddings": Change(parts={f"{JOINT}.Joint.shares": PropertyMock(return_value=(0.0, 1.0))}),
    "equal shares": Change(parts={f"{JOINT}.Joint.shares": PropertyMock(return_value=(0.5, 0.5))}),
    "adapted embeddings trusted as untouched ones": Change(parts={f"{JOINT}.SEEN": 1.0}),
    "no generative classifier": Change({"residuals": {"generative": 0.0}}),
    **{f"AdamW {lr:g}": Change(config=DescentConfig(lr=lr)) for lr in RATES},
}
"""The preset, and with one thing changed at a time."""

OTHERS: dict[str, dict[str, Any] | None] = {
    "class residuals": {},
    "class residuals without the generative classifier": {"generative": 0.0},
    "zero-shot": None,
}
"""Without any parameters in the towers: options of the preset `residuals`; None: no method of ours."""


def _paper(prior_std: float, epochs: int, **options: Any) -> dict[str, Any]:
    return {"prior_std": prior_std, "epochs": epochs} | options


PAPER: dict[str, dict[str, Any]] = {
    "`paper-tuned`: contrastive, prior std 0.1, 30 passes": {},
    "contrastive, 10 passes": _paper(0.1, 10),
    "contrastive, prior std 0.2, 20 passes": _paper(0.2, 20),
    "contrastive, prior std 0.3": _paper(0.3, 30),
    "contrastive, prior std 0.3, 10 passes": _paper(0.3, 10),
    "contrastive, prior std 0.3, 10 passes, alpha 0": _paper(0.3, 10, filter={"alpha": 0.0}),
    "contrastive, prior std 0.3, batches of 32": _paper(0.3, 30, batch_size=32),
    "contrastive, prior std 1": _paper(1.0, 30),
    "contrastive, prior std 1, 10 passes": _paper(1.0, 10),
    "contrastive, prior std 1, 10 passes, alpha 0": _paper(1.0, 10, filter={"alpha": 0.0}),
    "contrastive, prior std 1, 10 passes, q 1e-6": _paper(1.0, 10, filter={"q": 1e-6}),
    "contrastive, prior std 1, 10 passes, method 1": _paper(1.0, 10, noise={"method": 1}),
    "contrastive, prior std 1, 10 passes, one variance": _paper(1.0, 10, prior_per_matrix=False),
    "contrastive, prior std 1, 10 passes, batches of 32": _paper(1.0, 10, batch_size=32),
    "contrastive, prior std 3, 10 passes": _paper(3.0, 10),
    "classes, prior std 0.3": _paper(0.3, 30, observation="classes"),
    "classes, prior std 0.3, 10 passes": _paper(0.3, 10, observation="classes"),
    "classes, prior std 1": _paper(1.0, 30, observation="classes"),
    "classes, prior std 1, 10 passes": _paper(1.0, 10, observation="classes"),
    "log-likelihood, prior std 0.3": _paper(0.3, 30, observation="log_likelihood"),
    "log-likelihood, prior std 0.3, 10 passes": _paper(0.3, 10, observation="log_likelihood"),
    "log-likelihood, prior std 1": _paper(1.0, 30, observation="log_likelihood"),
    "log-likelihood, prior std 1, 10 passes": _paper(1.0, 10, observation="log_likelihood"),
    "deviance, prior std 1, 10 passes": _paper(1.0, 10, observation="deviance"),
}
"""The preset `paper-tuned`, and with other choices: low-rank parameters of both towers by Algorithm 1."""
LAST_BLOCKS = "preset `paper`: the last two blocks, centre crops, 2 passes"


def table(part: str = "joint", rows: list[Row] | None = None) -> str:
    """Accuracy in % / NLL of every row by data set and shots, the mean last; in bold what the preset is."""
    chosen = {"joint": (*ROWS, *OTHERS), "paper": (*PAPER, LAST_BLOCKS)}[part]
    rows = [row for row in (read_rows("towers") if rows is None else rows) if row["configuration"] in chosen]
    places = [(data, shots) for data in values(rows, "data") for shots in sorted(values(rows, "shots"))]
    lines = []
    for configuration in [one for one in chosen if only(rows, configuration=one)]:
        found = only(rows, configuration=configuration)
        parts = [only(found, data=data, shots=shots) for data, shots in places]
        bold = "**" if configuration == chosen[0] else ""
        whole = all(parts)  # a mean over other data sets could not be compared
        cells = [f"{mean(part, 'accuracy'):.1f} / {mean(part, 'nll'):.3f}" if part else "" for part in parts]
        ends = [f"{mean(found, 'accuracy'):.1f} / {mean(found, 'nll'):.3f}", f"{mean(found, 'seconds'):.0f}"]
        lines.append([f"{bold}{configuration}{bold}", *cells, *(ends if whole else ["", ""])])
    heads = [f"{SETS.get(data, data)}, {shots_head(shots)}" for data, shots in places]
    return markdown(["", *heads, "mean", "s"], lines)


def methods(backbone: Backbone, seed: int) -> dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[], Method]]]:
    """What is measured, by name: its options, what is replaced in the code, and what makes it."""
    found: dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[], Method]]] = {}
    for name, change in ROWS.items():
        config = with_options(change.config, change.options | {"seed": seed})
        made = Descent if isinstance(config, DescentConfig) else Joint
        found[name] = to_dict(config), change.parts, lambda made=made, config=config: made(backbone, config)  # type: ignore[misc]
    residuals = {name: ("residuals", changed) for name, changed in OTHERS.items() if changed is not None}
    papers = {name: ("paper-tuned", changed) for name, changed in PAPER.items()} | {LAST_BLOCKS: ("paper", {})}
    for name, (start, changed) in (residuals | papers).items():
        config = with_options(preset(start), changed | {"seed": seed})
        found[name] = to_dict(config), {}, lambda config=config: make_classifier(backbone, config)  # type: ignore[misc]
    found["zero-shot"] = {}, {}, lambda: make_method("zero_shot", backbone)
    return found


def digest(settings: dict[str, Any], parts: Iterable[str] = ()) -> str:
    """Short words for options: another row is measured where they change."""
    text = json.dumps([settings, sorted(parts)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def synchronize(backbone: Backbone) -> None:
    """Wait for the device, before a clock is read."""
    if backbone.device.type == "cuda":
        torch.cuda.synchronize(backbone.device)


def main(arguments: list[str] | None = None) -> None:
    """Measure what the file does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--shots", nargs="+", type=int, default=[4])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--images", type=int, default=360, help="how many images to measure on, at most")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--only", nargs="+", help="these rows")
    add_file(parser)
    options = parser.parse_args(arguments)
    rows = rows_of(options.json)
    known = {tuple(row[k] for k in KEY) for row in rows}
    backbone = load_backbone(options.model, options.device, options.precision)  # no cache: the times are compared
    for folder in options.data:
        for shots in options.shots:
            for seed in options.seeds:
                task, rest = development(folder, shots, seed)
                chosen = torch.randperm(len(rest), generator=torch.Generator().manual_seed(0))[: options.images]
                rest = rest.subset(chosen.tolist())
                for name, (settings, parts, make) in methods(backbone, seed).items():
                    key = (name, Path(options.model).name, folder.name, shots, seed, len(rest), digest(settings, parts))
                    if (options.only and name not in options.only) or key in known:
                        continue
                    with ExitStack() as stack:
                        for place, other in parts.items():
                            stack.enter_context(patch(place, other))
                        method, begin = make(), time.perf_counter()
                        method.fit(task)
                        synchronize(backbone)
                        seconds = time.perf_counter() - begin
                        accuracy, nll = scores(method, rest)
                    measured = {"accuracy": accuracy, "nll": nll, "seconds": seconds}
                    rows.append(dict(zip(KEY, key, strict=True)) | measured)
                    print(f"{folder.name}, {shots_head(shots)}, seed {seed}, {name}: ", end="")
                    print(f"{accuracy:.1f} %, NLL {nll:.3f}, {seconds:.1f} s", flush=True)
                    write_rows(options, rows)
    for part in ("joint", "paper"):
        print(table(part, rows))


if __name__ == "__main__":
    main()

"""What bfloat16 towers cost in accuracy: the same fits and test images in float32 and in bfloat16.

    python -m benchmarks.precision ../shared/data/pets ../shared/data/eurosat ../shared/data/dtd37
        [--presets default head paper paper-literal] [--seeds 1 2 3] [--shots 16] [--model tiny] [--device cpu]

Every fit learns from one seed's shots and is measured on the whole test split. The standard error is that of the
difference in accuracy on the same images: it counts the images on which only one of the two is right. Processors
without bfloat16 instructions take many times longer for it than for float32.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.development import development
from kalmanclip.data import read_folder
from kalmanclip.encoders import Backbone, FeatureCache, load_backbone
from kalmanclip.methods import make_classifier, preset

COLUMNS = ("float32", "bfloat16", "difference", "standard error", "NLL float32", "NLL bfloat16", "other answers")


def answers(backbone: Backbone, name: str, folder: Path, shots: int, seed: int) -> tuple[Tensor, Tensor]:
    """Logits (N, C) of the test images by a fitted method, and their labels (N,)."""
    task, _ = development(folder, shots, seed)
    method = make_classifier(backbone, replace(preset(name), seed=seed))
    method.fit(task)
    test = read_folder(folder / "test", task.class_names)
    return method.logits(test.sources), torch.tensor(test.labels)


def row(pairs: list[tuple[Tensor, Tensor, Tensor]]) -> list[str]:
    """The cells of a table's row, of logits in float32, in bfloat16 and labels, seed by seed."""
    exact, rounded, labels = (torch.cat(column) for column in zip(*pairs, strict=True))
    right = [(logits.argmax(dim=1) == labels).double() for logits in (exact, rounded)]
    moved = right[1] - right[0]
    nll = [torch.nn.functional.cross_entropy(logits, labels).item() for logits in (exact, rounded)]
    others = (exact.argmax(dim=1) != rounded.argmax(dim=1)).double().mean().item()
    error = moved.std().item() / len(labels) ** 0.5
    numbers = [*(100 * r.mean().item() for r in right), 100 * moved.mean().item(), 100 * error]
    return [*(f"{n:.2f} %" for n in numbers), *(f"{n:.3f}" for n in nll), f"{100 * others:.2f} %"]


def main(arguments: list[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--presets", nargs="+", default=["default", "head", "paper", "paper-literal"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--shots", type=int, default=16)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)
    table = Table(title=f"{options.model}, {options.shots} shots, {len(options.seeds)} seeds: accuracy on test images")
    for column in ("data", "preset", *COLUMNS):
        table.add_column(column, justify="right" if column in COLUMNS else "left")
    with tempfile.TemporaryDirectory() as cache:  # presets and seeds share what the frozen towers make of an image
        backbones = [
            replace(load_backbone(options.model, options.device, precision), cache=FeatureCache(cache))
            for precision in COLUMNS[:2]
        ]
        for folder in options.folders:
            for name in options.presets:
                pairs = []
                for seed in options.seeds:
                    (exact, labels), (rounded, _) = (
                        answers(backbone, name, folder, options.shots, seed) for backbone in backbones
                    )
                    pairs.append((exact, rounded, labels))
                table.add_row(folder.name, name, *row(pairs))
    Console(width=150).print(table)


if __name__ == "__main__":
    main()

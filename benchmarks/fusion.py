"""Two sites learn apart; their beliefs are fused: how far from one who has seen all images?

    python -m benchmarks.fusion ../shared/data/eurosat ../shared/data/pets ../shared/data/dtd37 [--part test]

The shots are split in halves (every class at both sites), and by classes (every other class at each site, in an order
drawn with the seed). Accuracy in % and negative log-likelihood of each site alone, where it knows all classes, of the
fused classifier, and of the joint fit.
"""

import argparse
import dataclasses
import statistics
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from benchmarks.development import development
from kalmanclip.data import FewShotTask, LabelledImages, read_folder
from kalmanclip.encoders import Backbone, load_backbone
from kalmanclip.methods import Kalman, preset, silent
from kalmanclip.methods.features import activation_store
from kalmanclip.methods.fusion import fuse_methods


def halves(train: LabelledImages) -> list[LabelledImages]:
    """Every second image of each class to each site."""
    met: dict[int, int] = {}
    sides: tuple[list[int], list[int]] = ([], [])
    for i, label in enumerate(train.labels):
        sides[met.get(label, 0) % 2].append(i)
        met[label] = met.get(label, 0) + 1
    return [train.subset(side) for side in sides]


def by_classes(train: LabelledImages, seed: int) -> list[LabelledImages]:
    """Every second class to each site."""
    order = torch.randperm(len(train.class_names), generator=torch.Generator().manual_seed(seed)).tolist()
    sites = []
    for own in (order[::2], order[1::2]):
        label = {c: i for i, c in enumerate(own)}
        chosen = [i for i, c in enumerate(train.labels) if c in label]
        labels = [label[train.labels[i]] for i in chosen]
        sites.append(LabelledImages([train.sources[i] for i in chosen], labels, [train.class_names[c] for c in own]))
    return sites


def fitted(name: str, backbone: Backbone, task: FewShotTask, images: LabelledImages) -> Kalman:
    method = Kalman(backbone, dataclasses.replace(preset(name), seed=task.seed))
    method.fit(dataclasses.replace(task, train=images))
    return method


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--part", choices=["development", "test"], default="test")
    parser.add_argument("--shots", type=int, default=16)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    options = parser.parse_args(arguments)
    backbone = load_backbone(options.model, options.device)
    for folder in options.folders:
        found: dict[str, list[tuple[float, float]]] = {}
        for seed in options.seeds:
            task, rest = development(folder, options.shots, seed)
            asked = rest if options.part == "development" else read_folder(folder / "test")
            store = activation_store(Kalman(backbone, preset("head")).encoder, asked.sources, silent)
            activations = store[torch.arange(len(asked))]

            @torch.no_grad()
            def ask(
                method: Kalman, asked: LabelledImages = asked, activations: object = activations
            ) -> tuple[float, float]:
                f = method.encoder.encode_images(activations).cpu()  # type: ignore[arg-type]
                logits = backbone.logit_scale * f @ method.class_weights().mT
                names = [asked.class_names[label] for label in asked.labels]
                y = torch.tensor([method.class_names.index(name) for name in names])
                return 100 * (logits.argmax(dim=1) == y).float().mean().item(), F.cross_entropy(logits, y).item()

            first, second = (fitted(options.preset, backbone, task, part) for part in halves(task.train))
            apart = [fitted(options.preset, backbone, task, part) for part in by_classes(task.train, seed)]
            for name, method in {
                "site 1, half of the images": first,
                "site 2, the other half": second,
                "halves, fused": fuse_methods([first, second]),
                "classes apart, fused": fuse_methods(apart),
                "joint fit": fitted(options.preset, backbone, task, task.train),
            }.items():
                found.setdefault(name, []).append(ask(method))
        table = Table(
            title=f"{folder.name}: {options.model}, {options.preset}, {options.shots} shots, seeds {options.seeds}"
        )
        for column in ("classifier", f"accuracy in % on {options.part}", "NLL"):
            table.add_column(column, justify="left" if column == "classifier" else "right")
        for name, rows in found.items():
            accuracy, loss = (statistics.mean(column) for column in zip(*rows, strict=True))
            table.add_row(name, f"{accuracy:.1f}", f"{loss:.3f}")
        Console(width=110).print(table)


if __name__ == "__main__":
    main()

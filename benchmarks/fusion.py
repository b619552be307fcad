"""Two sites learn apart; their beliefs are fused: how far from one who has seen all images?

    python -m benchmarks.fusion ../shared/data/eurosat ../shared/data/pets ../shared/data/dtd37 \\
        --json results/fusion.json
    python -m benchmarks.fusion ../shared/data/eurosat ../shared/data/pets ../shared/data/dtd37 --preset head \\
        --json results/fusion-head.json

The shots are split in halves (every class at both sites), and by classes (every other class at each site, in an order
drawn with the seed). Accuracy in % and negative log-likelihood of each site alone, where it knows all classes, of the
fused classifier, and of the joint fit.
"""

import argparse
import dataclasses
from pathlib import Path

import torch
import torch.nn.functional as F

from benchmarks.development import cached_backbone, development
from benchmarks.table import SETS, Row, add_file, markdown, mean, only, read_rows, span, values, write_rows
from kalmanclip.data import FewShotTask, LabelledImages, read_folder
from kalmanclip.encoders import Backbone
from kalmanclip.encoders.features import activation_store
from kalmanclip.methods import Classifier, Kalman, make_classifier, preset, silent
from kalmanclip.methods.fusion import fuse_methods

CLASSIFIERS = (
    "site 1, half of the images",
    "site 2, the other half",
    "halves, fused",
    "classes apart, fused",
    "joint fit",
)


def table(name: str = "fusion", rows: list[Row] | None = None) -> str:
    """Accuracy in % / NLL of every classifier by data set."""
    rows = read_rows(name) if rows is None else rows
    sets = values(rows, "data")

    def text(classifier: str, data: str) -> str:
        found = only(rows, classifier=classifier, data=data)
        return f"{mean(found, 'accuracy'):.1f} / {mean(found, 'nll'):.3f}"

    heads = [SETS.get(data, data) for data in sets]
    return markdown(["classifier", *heads], [[own, *(text(own, data) for data in sets)] for own in CLASSIFIERS])


def lost(name: str, classifier: str) -> str:
    """How many points of accuracy a classifier is below the joint fit: the least and the largest by data set."""
    rows = read_rows(name)

    def accuracy(own: str, data: str) -> float:
        return mean(only(rows, classifier=own, data=data), "accuracy")

    return span(accuracy("joint fit", data) - accuracy(classifier, data) for data in values(rows, "data"))


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


def fitted(name: str, backbone: Backbone, task: FewShotTask, images: LabelledImages) -> Classifier:
    method = make_classifier(backbone, dataclasses.replace(preset(name), seed=task.seed))
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
    add_file(parser)
    options = parser.parse_args(arguments)
    backbone = cached_backbone(options.model, options.device)
    rows: list[Row] = []
    for folder in options.folders:
        for seed in options.seeds:
            task, rest = development(folder, options.shots, seed)
            asked = rest if options.part == "development" else read_folder(folder / "test")
            store = activation_store(Kalman(backbone, preset("head")).encoder, asked.sources, silent)
            activations = store[torch.arange(len(asked))]

            @torch.no_grad()
            def ask(
                method: Classifier, asked: LabelledImages = asked, activations: object = activations
            ) -> tuple[float, float]:
                f = method.encoder.encode_images(activations).cpu()  # type: ignore[arg-type]
                logits = backbone.logit_scale * f @ method.class_weights().mT
                names = [asked.class_names[label] for label in asked.labels]
                y = torch.tensor([method.class_names.index(name) for name in names])
                return 100 * (logits.argmax(dim=1) == y).float().mean().item(), F.cross_entropy(logits, y).item()

            first, second = (fitted(options.preset, backbone, task, part) for part in halves(task.train))
            apart = [fitted(options.preset, backbone, task, part) for part in by_classes(task.train, seed)]
            fused = fuse_methods([first, second]), fuse_methods(apart)
            joint = fitted(options.preset, backbone, task, task.train)
            for name, method in zip(CLASSIFIERS, (first, second, *fused, joint), strict=True):
                accuracy, nll = ask(method)
                run = {"classifier": name, "data": folder.name, "seed": seed}
                rows.append({**run, "accuracy": accuracy, "nll": nll})
    write_rows(options, rows)
    print(f"{options.model}, preset {options.preset}, {options.shots} shots, seeds {options.seeds}:")
    print(f"accuracy in % / NLL on {options.part} images")
    print(table(rows=rows))


if __name__ == "__main__":
    main()

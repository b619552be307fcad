"""Fusion as one-shot federated learning: 2, 5 and 10 sites, and one message from each.

    python -m benchmarks.federated ../shared/data/eurosat ../shared/data/pets ../shared/data/dtd37 \\
        --json results/federated.json

16 shots are dealt to the sites. *Alike*: at random, as many to each. *Skewed*: of each class a share to each site that
is drawn from a Dirichlet distribution with parameter 0.1, so that most images of a class are at one or two sites, and
most sites lack most classes; a site without an image takes no part. Every site fits the default, class residuals, to
the centre crops of its images; all know the names of all classes.

*Fused* is `fuse`: sums are added, and the mode is sought anew. *Averaged* is one round of FedAvg: the mean of the
sites' class weights by their numbers of images; *averaged by class* weights each class by its own number of images at
each site. The *best site* is the best on the test images, which nobody could have known.

An interrupted run goes on where it was: what it has measured lies beside the file, as NAME.partial.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor

from benchmarks.development import TEMPLATES, add_model, cached_backbone
from benchmarks.table import SETS, Row, add_file, markdown, mean, only, read_rows, resumed, span, values
from kalmanclip.data import few_shot_task, read_folder, read_shot_lists
from kalmanclip.encoders import Backbone, DualEncoder
from kalmanclip.encoders.features import image_features
from kalmanclip.methods import ClassResiduals, ClassResidualsConfig
from kalmanclip.methods.fusion import fuse_methods

CONCENTRATION = 0.1
PARTITIONS = {"alike": "alike", "skewed": f"skewed, Dirichlet({CONCENTRATION})"}
FUSED, JOINT = "fused", "joint fit"
CLASSIFIERS = ("zero-shot", "mean site", "best site", "averaged", "averaged by class", FUSED, JOINT)


@dataclass(frozen=True)
class Shots:
    """The images of one task as features.

    Attributes:
        names: of the classes.
        template: of the prompts.
        train: features (N, d) and labels (N,).
        test: the same.
    """

    names: list[str]
    template: str
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    @classmethod
    @torch.no_grad()
    def read(cls, backbone: Backbone, folder: Path, shots: int, seed: int) -> Shots:
        """Read a data set; all its images are embedded, in the same order for all seeds, so that a cache has them."""
        train, test = (read_folder(folder / part) for part in ("train", "test"))
        task = few_shot_task(train, None, None, shots, seed, shot_lists=read_shot_lists(folder, train))
        assert task.draw is not None
        f, asked = (image_features(DualEncoder(backbone), part.sources) for part in (train, test))
        chosen = torch.tensor(task.draw.train)
        own = f[chosen.to(f.device)], torch.tensor(train.labels)[chosen].to(f.device)
        template = TEMPLATES.get(folder.name, "a photo of a {}.")
        return cls(train.class_names, template, own, (asked, torch.tensor(test.labels, device=f.device)))


def dealt(labels: Tensor, sites: int, partition: str, seed: int) -> list[Tensor]:
    """The images of each site that has any, as positions."""
    generator = np.random.default_rng(seed)
    if partition == "alike":
        parts = np.array_split(generator.permutation(len(labels)), sites)
    else:
        own: list[list[np.ndarray]] = [[] for _ in range(sites)]
        for c in range(int(labels.max()) + 1):
            images = generator.permutation(np.flatnonzero(labels.cpu().numpy() == c))
            shares = generator.dirichlet(np.full(sites, CONCENTRATION))
            cuts = np.round(shares.cumsum()[:-1] * len(images)).astype(int)
            for site, part in zip(own, np.split(images, cuts), strict=True):
                site.append(part)
        parts = [np.concatenate(site) for site in own]
    return [torch.from_numpy(part).to(labels.device) for part in parts if len(part)]


def fitted(backbone: Backbone, shots: Shots, images: Tensor) -> ClassResiduals:
    """A site's classifier."""
    method = ClassResiduals(backbone, ClassResidualsConfig(crops=0))
    method.set_classes(shots.names, (shots.template,))
    f, labels = shots.train
    method.residuals.learn(f[images].unsqueeze(1), labels[images])
    return method


Measured = tuple[float, float]
"""Accuracy in %, and negative log-likelihood."""


@torch.no_grad()
def asked(shots: Shots, scale: float, W: Tensor) -> Measured:
    """Accuracy in %, and negative log-likelihood, of class weights (C, d) on the test images."""
    f, labels = shots.test
    logits = scale * f @ W.mT
    return 100 * (logits.argmax(dim=1) == labels).double().mean().item(), F.cross_entropy(logits, labels).item()


@torch.no_grad()
def federation(backbone: Backbone, shots: Shots, sites: int, partition: str, seed: int) -> dict[str, Measured]:
    """Accuracy and negative log-likelihood of every classifier that can be made of the sites'."""
    labels = shots.train[1]
    parts = dealt(labels, sites, partition, seed)
    methods = [fitted(backbone, shots, part) for part in parts]
    W = torch.stack([method.class_weights() for method in methods])
    alone = [asked(shots, backbone.logit_scale, own) for own in W]
    counts = torch.stack([torch.bincount(labels[part], minlength=len(shots.names)) for part in parts]).to(W)
    images, by_class = counts.sum(dim=1) / counts.sum(), counts / counts.sum(dim=0)
    made = {
        "averaged": torch.einsum("k,kcd->cd", images, W),
        "averaged by class": torch.einsum("kc,kcd->cd", by_class, W),
        FUSED: fuse_methods(methods).class_weights(),
    }
    accuracy, nll = (float(np.mean(column)) for column in zip(*alone, strict=True))
    found = {"mean site": (accuracy, nll), "best site": max(alone)}
    return found | {name: asked(shots, backbone.logit_scale, own) for name, own in made.items()}


def table(name: str = "federated", partition: str = "alike", rows: list[Row] | None = None) -> str:
    """Accuracy in % / NLL by data set and number of sites, of every classifier."""
    rows = read_rows(name) if rows is None else rows
    places = [(data, sites) for data in values(rows, "data") for sites in sorted({row["sites"] for row in rows} - {1})]

    def text(classifier: str, data: str, sites: int) -> str:
        own = {"sites": 1} if classifier in ("zero-shot", JOINT) else {"sites": sites, "partition": partition}
        found = only(rows, classifier=classifier, data=data, **own)
        return f"{mean(found, 'accuracy'):.1f} / {mean(found, 'nll'):.2f}" if found else ""

    heads = [f"**{name}**" if name == FUSED else name for name in CLASSIFIERS]
    lines = [
        [f"{SETS.get(data, data)}, {sites} sites", *(text(name, data, sites) for name in CLASSIFIERS)]
        for data, sites in places
    ]
    return markdown([PARTITIONS[partition], *heads], lines)


def gain(partition: str, rival: str, name: str = "federated") -> str:
    """How many points the fused classifier is above another: the least and the largest by data set and sites."""
    rows = read_rows(name)
    gains = []
    for row in only(rows, partition=partition, classifier=FUSED, seed=min(values(rows, "seed"))):
        place = {"data": row["data"], "partition": partition, "sites": row["sites"]}
        other = {"data": row["data"], "sites": 1} if rival == JOINT else place
        found, against = only(rows, classifier=FUSED, **place), only(rows, classifier=rival, **other)
        gains.append(mean(found, "accuracy") - mean(against, "accuracy"))
    return span(gains, sign=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    add_model(parser)
    parser.add_argument("--shots", type=int, default=16)
    parser.add_argument("--sites", nargs="+", type=int, default=[2, 5, 10])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    add_file(parser)
    options = parser.parse_args(arguments)
    backbone = cached_backbone(options.model, options.device, options.precision)
    places = [(folder, seed) for seed in options.seeds for folder in options.folders]
    tasks = {(folder.name, seed): Shots.read(backbone, folder, options.shots, seed) for folder, seed in places}

    def measured(data: str, seed: int, sites: int, partition: str) -> list[Row]:
        shots, scale = tasks[data, seed], backbone.logit_scale
        if sites == 1:
            whole = fitted(backbone, shots, torch.arange(len(shots.train[1])))
            known = {JOINT: whole.class_weights(), "zero-shot": whole.residuals.T}
            found = {name: asked(shots, scale, W) for name, W in known.items()}
        else:
            found = federation(backbone, shots, sites, partition, seed)
        place = {"data": data, "seed": seed, "sites": sites, "partition": partition}
        return [{**place, "classifier": name, "accuracy": own[0], "nll": own[1]} for name, own in found.items()]

    kinds = [(1, "whole"), *((sites, partition) for sites in options.sites for partition in PARTITIONS)]
    cells = [(*task, *kind) for task in tasks for kind in kinds]
    rows = resumed(options, track(cells, "federations", transient=True), measured, ("folders", "sites", "seeds"))
    print(f"{options.model}, {options.shots} shots, seeds {options.seeds}; accuracy in % / NLL on test images")
    for partition in PARTITIONS:
        print(table(partition=partition, rows=rows), end="\n\n")


if __name__ == "__main__":
    main()

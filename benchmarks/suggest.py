"""Accuracy against labels bought: which acquisition asks for the right labels?

    python -m benchmarks.suggest ../shared/data/eurosat ../shared/data/pets ../shared/data/dtd37 --part development \\
        --by filter epig batchbald bald entropy margin random --json results/suggest-development.json
    python -m benchmarks.suggest ../shared/data/eurosat ../shared/data/pets ../shared/data/dtd37 \\
        --json results/suggest.json

Every course begins with one labelled image per class, drawn with the seed. Then ``--batch`` labels are bought at a
time, ``--rounds`` times, and the default is fitted anew to all images that have a label, with the default's crops. The
prior is the typical one throughout, for all alike: choosing it in every round takes several times as long.

*development*: half of the training images are the pool, the other half is measured on; here the default acquisition
was chosen. *test*: all training images are the pool, the test images are measured on. *expected* is the accuracy that
the classifier expects on the images it is measured on: the mean of the largest probabilities.
"""

import argparse
import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.progress import track
from torch import Tensor

from benchmarks.development import TEMPLATES, cached_backbone
from benchmarks.table import SETS, Row, add_file, markdown, mean, only, read_rows, span, values, write_rows
from kalmanclip.data import LabelledImages, read_folder, sample_shots
from kalmanclip.encoders import Backbone
from kalmanclip.encoders.features import crop_features, image_features
from kalmanclip.experiments.aggregate import Cell
from kalmanclip.experiments.figure import Picture, draw_lines
from kalmanclip.methods import ClassResiduals, preset
from kalmanclip.methods.residuals import TYPICAL_STD
from kalmanclip.methods.suggest import ACQUISITIONS, DEFAULT, choose
from kalmanclip.prediction import LogitGaussian, expected_softmax

REPORTED = ["filter", "batchbald", "entropy", "margin", "random"]
CROP_SEED = 1  # one set of crops for all courses


@dataclasses.dataclass
class Pool:
    """Images whose labels can be bought, and images to measure on, as features."""

    images: LabelledImages
    crops: Tensor
    measured: Tensor
    labels: Tensor
    template: str


def pool_of(backbone: Backbone, folder: Path, part: str) -> Pool:
    """All training images and the test images; or the two halves of the training images."""
    images = read_folder(folder / "train")
    template = TEMPLATES.get(folder.name, "a photo of a {}.")
    encoder = ClassResiduals(backbone, preset("default")).encoder
    crops = crop_features(encoder, images.sources, preset("default"), CROP_SEED)
    if part == "test":
        test = read_folder(folder / "test", images.class_names)
        return Pool(images, crops, image_features(encoder, test.sources), torch.tensor(test.labels), template)
    seen: dict[int, int] = {}
    halves: tuple[list[int], list[int]] = ([], [])
    for i, label in enumerate(images.labels):
        halves[seen.get(label, 0) % 2].append(i)
        seen[label] = seen.get(label, 0) + 1
    mine, other = halves
    return Pool(images.subset(mine), crops[mine], crops[other, 0], torch.tensor(images.labels)[other], template)


def course(backbone: Backbone, pool: Pool, by: str, seed: int, batch: int, rounds: int) -> list[Row]:
    """What is measured after every purchase."""
    labels = torch.tensor(pool.images.labels)
    names = pool.images.class_names
    first = set(sample_shots(pool.images, 1, seed).sources)
    bought = [i for i, source in enumerate(pool.images.sources) if source in first]
    config = dataclasses.replace(preset("default"), seed=seed, prior_std=TYPICAL_STD)
    rows: list[Row] = []
    for number in range(rounds + 1):
        method = ClassResiduals(backbone, config)
        method.set_classes(names, (pool.template,))
        method.residuals.learn(pool.crops[bought], labels[bought])
        rows.append({"labels": len(bought), **_measured(method, pool)})
        if number == rounds:
            return rows
        known = set(bought)
        rest = [i for i in range(len(labels)) if i not in known]
        positions, _ = choose(method, [(pool.crops[rest, 0],)], batch, by, seed=1000 * seed + number)
        bought += [rest[i] for i in positions]
    return rows


def _acquisitions(rows: list[Row]) -> list[str]:
    return sorted(values(rows, "by"), key=list(ACQUISITIONS).index)


def _measured(method: ClassResiduals, pool: Pool) -> Row:
    residuals, f = method.residuals, pool.measured
    logits = LogitGaussian(residuals.logits(f), residuals.covariance_scale * residuals.variance(f))
    p = expected_softmax(logits).probabilities
    return {
        "accuracy": 100 * float((p.argmax(dim=1) == pool.labels).float().mean()),
        "nll": -float(p.gather(1, pool.labels.unsqueeze(1)).log().mean()),
        "expected": 100 * float(p.amax(dim=1).mean()),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--part", choices=["development", "test"], default="test")
    parser.add_argument("--by", nargs="+", choices=list(ACQUISITIONS), default=REPORTED)
    parser.add_argument("--batch", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    add_file(parser)
    options = parser.parse_args(arguments)
    backbone = cached_backbone(options.model, options.device)
    rows: list[Row] = []
    for folder in options.folders:
        pool = pool_of(backbone, folder, options.part)
        courses = [(by, seed) for by in options.by for seed in options.seeds]
        for by, seed in track(courses, folder.name, transient=True):
            found = course(backbone, pool, by, seed, options.batch, options.rounds)
            rows += [{"by": by, "data": folder.name, "seed": seed, "round": i, **row} for i, row in enumerate(found)]
    write_rows(options, rows)
    print(f"{options.model}, {options.part} images, seeds {options.seeds}: accuracy in % / NLL after each purchase")
    for data in values(rows, "data"):
        print(table(data, rows), end="\n\n")


def figure() -> Picture:
    """Accuracy against labels, a panel per data set."""
    rows = read_rows("suggest")
    panels = {
        SETS[data]: {
            by: {
                count: Cell({row["seed"]: row["accuracy"] for row in only(rows, data=data, by=by, labels=count)})
                for count in values(only(rows, data=data), "labels")
            }
            for by in _acquisitions(rows)
        }
        for data in values(rows, "data")
    }
    return draw_lines("Accuracy against labels bought, by acquisition", panels, ours=(DEFAULT,), x="labels")


def choice() -> str:
    """What the default was chosen by: means over purchases and data sets on development images, best NLL first."""
    rows = [row for row in read_rows("suggest-development") if row["round"]]
    means = {by: [mean(only(rows, by=by), metric) for metric in ("accuracy", "nll")] for by in _acquisitions(rows)}
    order = sorted(means, key=lambda by: means[by][1])
    lines = [[f"**{by}**" if by == DEFAULT else by, f"{means[by][0]:.1f}", f"{means[by][1]:.3f}"] for by in order]
    return markdown(["chosen by", "accuracy", "NLL"], lines)


def against(other: str, metric: str = "accuracy") -> str:
    """How far the default is ahead of another after the last purchase: the least and the largest by data set."""
    rows = read_rows("suggest")
    last = max(values(rows, "round"))
    sign = 1 if metric == "accuracy" else -1

    def end(by: str, data: str) -> float:
        return mean(only(rows, by=by, data=data, round=last), metric)

    gains = [sign * (end(DEFAULT, data) - end(other, data)) for data in values(rows, "data")]
    return span(gains, 1 if metric == "accuracy" else 3, sign=True)


def random_wins() -> str:
    """Where random labels teach more than an acquisition after the last purchase, in the mean over seeds, in points."""
    rows = read_rows("suggest")
    last = max(values(rows, "round"))
    lines = []
    for data in values(rows, "data"):
        end = {by: mean(only(rows, by=by, data=data, round=last), "accuracy") for by in _acquisitions(rows)}
        behind = [f"`{by}` ({end['random'] - value:.1f})" for by, value in end.items() if value < end["random"]]
        lines.append(f"{SETS.get(data, data)}: {', '.join(behind) or 'than none'}")
    return "; ".join(lines)


def expected_error() -> str:
    """The mean distance of expected and measured accuracy in points, by data set: the least and the largest."""
    rows = only(read_rows("suggest"), by=DEFAULT)
    found = ([abs(row["expected"] - row["accuracy"]) for row in only(rows, data=data)] for data in values(rows, "data"))
    return span(map(statistics.fmean, found))


def table(data: str, rows: list[Row] | None = None) -> str:
    """Accuracy in % and NLL on one data set, by labels bought."""
    rows = only(read_rows("suggest") if rows is None else rows, data=data)
    counts = sorted(values(rows, "labels"))
    lines = []
    for by in _acquisitions(rows):
        found = [only(rows, by=by, labels=count) for count in counts]
        lines.append(
            [
                f"**{by}**" if by == DEFAULT else by,
                *(f"{mean(part, 'accuracy'):.1f} / {mean(part, 'nll'):.3f}" for part in found),
            ]
        )
    return markdown([SETS.get(data, data), *(f"{count} labels" for count in counts)], lines)


if __name__ == "__main__":
    main()

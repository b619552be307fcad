"""Images of nothing it knows, and sets of classes: each data set against the others and against its own corruptions.

    python -m benchmarks.unknown ../shared/data --part development     (what choices were made on)
    python -m benchmarks.unknown ../shared/data --part test            (what is reported)

*development*: the familiar images are training images that no draw of this seed uses, the unknown ones the training
images of the other sets. *test*: the test images. Beside the familiarity stand the published reference (MCM, the
largest softmax of zero-shot similarities) and the largest probability of the fitted model. The threshold is set for
5 % false alarms from the shots alone; how many there were is printed. The last table is the coverage of conformal sets,
with four of 16 shots held out to calibrate.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from benchmarks.development import MOST_SHOTS, TEMPLATES
from kalmanclip.data import FewShotTask, LabelledImages, few_shot_task, read_folder, read_shot_lists
from kalmanclip.data.corruptions import corrupted
from kalmanclip.encoders import Backbone, FeatureCache, load_backbone
from kalmanclip.methods import Kalman, KalmanConfig
from kalmanclip.methods.features import image_features
from kalmanclip.metrics import detection_auroc, fpr_at_tpr, maximum_softmax
from kalmanclip.prediction.conformal import KINDS, Calibration
from kalmanclip.prediction.unknown import FALSE_ALARMS, KnownImages

PARTS = {"pacs": ("photo_train", "photo_test")}
CORRUPTIONS = ("gaussian_noise:5", "fog:5", "defocus_blur:5", "contrast:5", "pixelate:5", "snow:3")
CALIBRATION = 4
COVERAGE = 0.9
SCORES = ("familiarity", "MCM", "softmax")


@dataclass
class DataSet:
    """One data set with the features of everything that is measured on."""

    name: str
    train: LabelledImages
    folder: Path
    inside: LabelledImages  # of it, familiar images are taken
    features: Tensor
    damaged: dict[str, Tensor]

    def task(self, shots: int, seed: int) -> FewShotTask:
        lists = read_shot_lists(self.folder, self.train)
        images = few_shot_task(self.train, None, None, shots, seed, shot_lists=lists).train
        template = TEMPLATES.get(self.name, "a photo of a {}.")
        return FewShotTask(images, templates=(template,), seed=seed)

    def familiar(self, part: str, seed: int) -> list[int]:
        """Positions of images that no task of this seed learns from."""
        used = set(self.task(MOST_SHOTS, seed).train.sources) if part == "development" else set()
        return [i for i, source in enumerate(self.inside.sources) if source not in used]


def read(root: Path, name: str, part: str, backbone: Backbone, damages: Sequence[str]) -> DataSet:
    folder = root / name
    train_part, test_part = PARTS.get(name, ("train", "test"))
    train = read_folder(folder / train_part)
    inside = train if part == "development" else read_folder(folder / test_part, train.class_names)
    spoilt = {}
    for damage in damages:
        kind, _, level = damage.partition(":")
        spoilt[damage] = image_features(backbone, corrupted(inside, kind, int(level)).sources)
    return DataSet(name, train, folder, inside, image_features(backbone, inside.sources), spoilt)


def fitted(backbone: Backbone, task: FewShotTask) -> tuple[Kalman, KnownImages]:
    method = Kalman(backbone, KalmanConfig(seed=task.seed))
    method.fit(task)
    assert method.classes is not None
    assert method.classes.T is not None
    f = image_features(backbone, task.train.sources)
    labels = torch.tensor(task.train.labels, device=f.device)
    return method, KnownImages.of(f, labels, method.classes.T, [""] * len(labels))


def scores(method: Kalman, known: KnownImages, f: Tensor) -> dict[str, np.ndarray]:
    """By name, larger for familiar images."""
    assert method.classes is not None
    with torch.no_grad():
        return {
            "familiarity": known.score(f).cpu().numpy(),
            "MCM": maximum_softmax((f @ known.texts.mT).cpu()),
            "softmax": maximum_softmax(method.classes.logits(f).cpu()),
        }


def measure(sets: list[DataSet], shots: int, seeds: Sequence[int], part: str, backbone: Backbone, rate: float) -> None:
    found: dict[tuple[str, str], list[list[float]]] = {}
    alarms: dict[str, list[list[float]]] = {}
    for own in sets:
        for seed in seeds:
            method, known = fitted(backbone, own.task(shots, seed))
            rows = own.familiar(part, seed)
            inside = scores(method, known, own.features[rows])
            threshold = known.threshold(rate)
            outside = {other.name: other.features for other in sets if other is not own}
            outside |= {damage: f[rows] for damage, f in own.damaged.items()}
            flagged = []
            for name, f in outside.items():
                theirs = scores(method, known, f)
                row = [detection_auroc(inside[s], theirs[s]) for s in SCORES]
                row += [fpr_at_tpr(inside[s], theirs[s]) for s in SCORES]
                found.setdefault((own.name, name), []).append([100 * number for number in row])
                if ":" not in name:
                    flagged.append(float((theirs["familiarity"] < threshold.value).mean()))
            false = float((inside["familiarity"] < threshold.value).mean())
            alarms.setdefault(own.name, []).append([100 * false, 100 * mean(flagged), float(threshold.counted)])
    table = Table(title=f"{shots} shots, {part} images, seeds {list(seeds)}: AUROC and FPR95 in %")
    columns = [f"{measure} {s}" for measure in ("AUROC", "FPR95") for s in SCORES]
    for column in ("familiar", "unknown", *columns, "better than MCM"):
        table.add_column(column, justify="left" if column in ("familiar", "unknown") else "right")
    better = []
    for (familiar, unknown), lines in found.items():
        numbers = [mean(column) for column in zip(*lines, strict=True)]
        better.append(numbers[0] > numbers[1])
        table.add_row(familiar, unknown, *(f"{n:.1f}" for n in numbers), "yes" if better[-1] else "NO")
    everything = [mean(column) for column in zip(*(line for lines in found.values() for line in lines), strict=True)]
    table.add_row("mean", "", *(f"{n:.1f}" for n in everything), f"{sum(better)} of {len(better)}")
    show(table)
    table = Table(title=f"{shots} shots: false alarms, flagged images of other sets, in %; {100 * rate:g} % asked for")
    for column in ("familiar", "false alarms by seed", "mean", "flagged", "threshold"):
        table.add_column(column, justify="right" if column != "familiar" else "left")
    for name, lines in alarms.items():
        false_by_seed, flags, counted = zip(*lines, strict=True)
        shown = ", ".join(f"{value:.1f}" for value in false_by_seed)
        kind = "counted" if all(counted) else "extrapolated"
        table.add_row(name, shown, f"{mean(false_by_seed):.1f}", f"{mean(flags):.1f}", kind)
    show(table)


def measure_sets(sets: list[DataSet], seeds: Sequence[int], part: str, backbone: Backbone) -> None:
    table = Table(title=f"Conformal sets for {COVERAGE:.0%}, {MOST_SHOTS - CALIBRATION} shots + {CALIBRATION} held out")
    for column in ("set", "classes", "accuracy", *(f"{what} {kind}" for kind in KINDS for what in ("covered", "size"))):
        table.add_column(column, justify="right" if column != "set" else "left")
    for own in sets:
        lines = []
        for seed in seeds:
            task = own.task(MOST_SHOTS, seed)
            seen: dict[int, int] = {}
            place = []
            for label in task.train.labels:
                place.append(seen.get(label, 0))
                seen[label] = place[-1] + 1
            held = task.train.subset(i for i, p in enumerate(place) if p >= MOST_SHOTS - CALIBRATION)
            kept = task.train.subset(i for i, p in enumerate(place) if p < MOST_SHOTS - CALIBRATION)
            method, _ = fitted(backbone, dataclasses.replace(task, train=kept))
            assert method.classes is not None
            rows = own.familiar(part, seed)
            with torch.no_grad():
                before, after = (
                    method.classes.logits(f).softmax(dim=1).cpu().numpy()
                    for f in (image_features(backbone, held.sources), own.features[rows])
                )
            labels = np.array(own.inside.labels)[rows]
            line = [100 * float((after.argmax(axis=1) == labels).mean())]
            for kind in KINDS:
                inside = Calibration.of(before, held.labels, kind).sets(after, COVERAGE)
                line += [100 * float(inside[np.arange(len(labels)), labels].mean()), float(inside.sum(axis=1).mean())]
            lines.append(line)
        numbers = [mean(column) for column in zip(*lines, strict=True)]
        table.add_row(own.name, str(len(own.train.class_names)), *(f"{n:.1f}" for n in numbers))
    show(table)


def show(table: Table) -> None:
    Console(width=170).print(table)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--part", choices=["development", "test"], default="test")
    parser.add_argument("--sets", nargs="+", default=["eurosat", "pets", "dtd37", "pacs"])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shots", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--corruptions", nargs="*", default=CORRUPTIONS)
    parser.add_argument("--cache", type=Path, help="a folder to keep features in: the next run is quick")
    parser.add_argument("--rate", type=float, default=FALSE_ALARMS)
    options = parser.parse_args(arguments)
    backbone = load_backbone(options.model, options.device)
    if options.cache is not None:
        backbone = dataclasses.replace(backbone, cache=FeatureCache(options.cache))
    sets = [
        read(options.root, name, options.part, backbone, options.corruptions)
        for name in track(options.sets, "reading", transient=True)
    ]
    for shots in options.shots if len(sets) > 1 else ():
        measure(sets, shots, options.seeds, options.part, backbone, options.rate)
    measure_sets(sets, options.seeds, options.part, backbone)


if __name__ == "__main__":
    main()

"""Sets of classes: calibrated on images set aside, or on the training images, each held out once. And what to expect.

    python -m benchmarks.conformal ../shared/data --json results/conformal.json

*split*: a quarter of the shots, at least one of each class, is set aside to calibrate; the classifier learns from the
rest. *cross*: it learns from all; the scores are those of the images that the fit holds out in turn to choose its
prior, and it scores new images itself. *CV+* (Romano, Sesia and Candes 2020), what `fit` does: a held-out image is
compared with what the classifier that had not seen it says of the new image.

Measured are coverage and size on the test images, and on the training images that no shot of the seed uses
(*development*: what was decided by was decided there). The expected accuracy is of the images held out in turn.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from benchmarks.development import MOST_SHOTS, cached_backbone, development
from benchmarks.table import SETS, Row, add_file, markdown, mean, only, read_rows, shots_head, values, write_rows
from kalmanclip.data import read_folder
from kalmanclip.encoders import Backbone, DualEncoder
from kalmanclip.encoders.features import crop_features, image_features
from kalmanclip.methods import ClassResiduals, ClassResidualsConfig
from kalmanclip.methods.residuals import ResidualBelief
from kalmanclip.prediction import Calibration, ExpectedAccuracy
from kalmanclip.prediction.conformal import images_needed

KINDS = ("lac", "aps")
COVERAGE = 0.9
WAYS = {"split": "split", "cross": "cross", "CV+": "**CV+**"}


def table(kind: str = "lac", part: str = "test", rows: list[Row] | None = None) -> str:
    """Accuracy, and coverage in % / size of the sets, by data set and number of shots."""
    rows = only(read_rows("conformal") if rows is None else rows, part=part)
    lines = []
    for count in sorted(values(rows, "shots")):
        for name in [*values(rows, "data"), None]:
            found = only(rows, shots=count, **({} if name is None else {"data": name}))
            accuracy = [f"{mean(found, which):.1f}" for which in ("split accuracy", "accuracy")]
            lines.append([str(count), SETS.get(name, "mean"), *accuracy, *(_sets(found, way, kind) for way in WAYS)])
    heads = [f"{way}: covered / size" if way == "split" else way for way in WAYS]
    return markdown(["shots", "set", "accuracy, split", "accuracy, all", *heads], lines, left=2)


def _sets(rows: list[Row], way: str, kind: str) -> str:
    return f"{mean(rows, f'{way} {kind} covered'):.1f} / {mean(rows, f'{way} {kind} size'):.1f}"


def means(way: str, kind: str, what: str) -> str:
    """The mean over data sets and seeds, for each number of shots: '95.1, 92.0, 91.3 and 90.2'."""
    rows = only(read_rows("conformal"), part="test")
    counts = sorted(values(rows, "shots"))
    found = [f"{mean(only(rows, shots=count), f'{way} {kind} {what}'):.1f}" for count in counts]
    return f"{', '.join(found[:-1])} and {found[-1]}"


def least(way: str, kind: str) -> str:
    """The least coverage of a data set and number of shots, mean over seeds: '88.1 (EuroSAT, 16 shots)'."""
    rows = only(read_rows("conformal"), part="test")
    found = {
        (name, count): mean(only(rows, data=name, shots=count), f"{way} {kind} covered")
        for name in values(rows, "data")
        for count in values(rows, "shots")
    }
    name, count = min(found, key=lambda cell: found[cell])
    return f"{found[name, count]:.1f} ({SETS[name]}, {shots_head(count)})"


def expected(rows: list[Row] | None = None) -> str:
    """The expected accuracy beside that on test images, in %, and how often the interval holds it."""
    rows = only(read_rows("conformal") if rows is None else rows, part="test")
    lines = []
    for name in values(rows, "data"):
        for count in sorted(values(rows, "shots")):
            found = only(rows, data=name, shots=count)
            ends = [100 * end for row in found for end in _expected(row).interval()]
            said = 100 * float(np.mean([_expected(row).accuracy for row in found]))
            cells = [f"{np.mean(ends[::2]):.0f} to {np.mean(ends[1::2]):.0f}", f"{mean(found, 'accuracy'):.1f}"]
            within = sum(_within(row) == 0 for row in found)
            lines.append([SETS[name], str(count), f"{said:.1f}", *cells, f"{within} of {len(found)}"])
    return markdown(["set", "shots", "expected", "interval", "test", "within"], lines)


def within(side: str = "0") -> str:
    """In how many fits the accuracy on test images lies within the interval (0), above (1) or below (-1)."""
    rows = only(read_rows("conformal"), part="test")
    return f"{sum(_within(row) == int(side) for row in rows)} of {len(rows)}"


def _expected(row: Row) -> ExpectedAccuracy:
    return ExpectedAccuracy(row["right"], row["held out"])


def _within(row: Row) -> int:
    """0: the accuracy lies within the interval; 1: above, -1: below."""
    low, high = _expected(row).interval()
    return int(row["accuracy"] > 100 * high) - int(row["accuracy"] < 100 * low)


def measure(root: Path, name: str, seed: int, shots: Sequence[int], backbone: Backbone) -> list[Row]:
    """Rows of one data set and seed."""
    task, rest = development(root / name, MOST_SHOTS, seed)
    test = read_folder(root / name / "test", task.class_names)
    method = ClassResiduals(backbone, ClassResidualsConfig(seed=seed))
    method.set_classes(task.class_names, task.templates)
    encoder = DualEncoder(backbone)
    crops = crop_features(encoder, task.train.sources, method.config, seed)
    labels = torch.tensor(task.train.labels, device=crops.device)
    place = positions(task.train.labels)
    found: list[Row] = []
    parts = {
        part: (image_features(encoder, images.sources), np.array(images.labels))
        for part, images in (("development", rest), ("test", test))
    }

    def learned(these: Tensor) -> ResidualBelief:
        belief = ResidualBelief(method.config, backbone.logit_scale)
        belief.set_classes(task.class_names, method.text_weights())
        belief.learn(crops[these], labels[these])
        return belief

    for count in shots:
        aside = max(1, count // 4)
        every, kept = (torch.where(place < number)[0] for number in (count, count - aside))
        held = torch.where((place < count) & (place >= count - aside))[0]
        whole, smaller = learned(every), learned(kept)
        assert whole.held_out is not None
        assert whole.held_out.weights is not None
        before, y = probabilities(whole.held_out.logits), whole.held_out.labels.cpu().numpy()
        expected = ExpectedAccuracy(int((before.argmax(axis=1) == y).sum()), len(y))
        for part, (f, truth) in parts.items():
            full, less = probabilities(whole.logits(f)), probabilities(smaller.logits(f))
            by_fold = probabilities(backbone.logit_scale * f @ whole.held_out.weights.mT)
            row: Row = {"data": name, "seed": seed, "shots": count, "part": part}
            row |= {"right": expected.right, "held out": expected.images, "images": len(truth)}
            row |= {"accuracy": 100 * float((full.argmax(axis=1) == truth).mean())}
            row |= {"split accuracy": 100 * float((less.argmax(axis=1) == truth).mean())}
            for kind in KINDS:
                sets = {"cross": Calibration.of(before, y, kind).sets(full, COVERAGE)}
                in_turn = Calibration.of(before, y, kind, whole.held_out.folds.cpu())
                sets["CV+"] = in_turn.sets(full, COVERAGE, by_fold=by_fold)
                if len(held) >= images_needed(COVERAGE):
                    calibration = Calibration.of(
                        probabilities(smaller.logits(crops[held, 0])), labels[held].cpu(), kind
                    )
                    sets["split"] = calibration.sets(less, COVERAGE)
                for way, inside in sets.items():
                    row[f"{way} {kind} covered"] = 100 * float(inside[np.arange(len(truth)), truth].mean())
                    row[f"{way} {kind} size"] = float(inside.sum(axis=1).mean())
            found.append(row)
    return found


def positions(labels: Sequence[int]) -> Tensor:
    """How many images of its class come before each image (N,)."""
    seen: dict[int, int] = {}
    found = []
    for label in labels:
        found.append(seen.get(label, 0))
        seen[label] = found[-1] + 1
    return torch.tensor(found)


@torch.no_grad()
def probabilities(logits: Tensor) -> np.ndarray:
    return logits.softmax(dim=-1).double().cpu().numpy()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--sets", nargs="+", default=["eurosat", "pets", "dtd37"])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shots", nargs="+", type=int, default=[2, 4, 8, 16])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    add_file(parser)
    options = parser.parse_args(arguments)
    backbone = cached_backbone(options.model, options.device)
    runs = [(name, seed) for name in options.sets for seed in options.seeds]
    rows: list[Row] = []
    for name, seed in track(runs, "measuring", transient=True):
        rows += measure(options.root, name, seed, options.shots, backbone)
    write_rows(options, rows)
    for part in ("development", "test"):
        for kind in KINDS:
            print(f"{options.model}, {part} images, seeds {options.seeds}, {kind}", table(kind, part, rows), sep="\n\n")
            print()
    print(expected(rows))


if __name__ == "__main__":
    main()

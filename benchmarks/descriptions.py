"""What descriptions of the classes add to a template, with one image of each class.

    python -m benchmarks.descriptions ../shared/data/eurosat ../shared/data/dtd37 --part development \\
        --json results/descriptions-development.json
    python -m benchmarks.descriptions ../shared/data/eurosat ../shared/data/dtd37 --json results/descriptions.json

The descriptions are in ``descriptions/NAME.txt``; the comments there say how they came about. *template*: the prompt of
the comparison alone. *mean*: it and the descriptions, averaged. *spread 0.1*: also a share of the prior's covariance
where descriptions of the same class differ. *development*: measured on training images outside the shots.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.progress import track

from benchmarks.development import cached_backbone, development
from benchmarks.table import ROOT, SETS, Row, add_file, markdown, mean, only, read_rows, shots_head, values, write_rows
from kalmanclip.data import FewShotTask, read_descriptions, read_folder
from kalmanclip.encoders import Backbone
from kalmanclip.methods import ClassResiduals, preset, with_options

SPREADS = (0.1, 0.3)


def measure(backbone: Backbone, folder: Path, task: FewShotTask) -> list[Row]:
    """One row for each prior."""
    assert task.test is not None
    described = read_descriptions(ROOT / "descriptions" / f"{folder.name}.txt")
    labels = torch.tensor(task.test.labels)
    rows: list[Row] = []
    for prior, spread in (("template", 0.0), ("mean", 0.0), *((f"spread {share:g}", share) for share in SPREADS)):
        method = ClassResiduals(
            backbone, with_options(preset("default"), {"seed": task.seed, "description_spread": spread})
        )
        if prior != "template":
            method.describe(described)
        method.set_classes(task.class_names, task.templates)
        zero_shot = method.logits(task.test.sources).argmax(dim=1) == labels
        method.fit(dataclasses.replace(task, test=None))
        p = method.predict(task.test.sources).probabilities
        rows.append(
            {
                "prior": prior,
                "zero_shot": 100 * float(zero_shot.float().mean()),
                "accuracy": 100 * float((p.argmax(dim=1) == labels).float().mean()),
                "nll": -float(p.gather(1, labels.unsqueeze(1)).log().mean()),
            }
        )
    return rows


def table(data: str, rows: list[Row] | None = None) -> str:
    """Accuracy in % before any image, and accuracy and NLL by number of shots, of every prior."""
    rows = only(read_rows("descriptions") if rows is None else rows, data=data)
    shots = sorted(values(rows, "shots"))
    lines = []
    for prior in ("template", "mean", *(f"spread {share:g}" for share in SPREADS)):
        found = [only(rows, prior=prior, shots=k) for k in shots]
        cells = [f"{mean(part, 'accuracy'):.1f} / {mean(part, 'nll'):.3f}" for part in found]
        lines.append([prior, f"{mean(found[0], 'zero_shot'):.1f}", *cells])
    return markdown([SETS.get(data, data), "no image", *map(shots_head, shots)], lines)


def gain(prior: str, data: str, shots: str = "1", study: str = "descriptions") -> str:
    """By how many points a prior is more accurate than the template, with its sign."""
    rows = only(read_rows(study), data=data, shots=int(shots))
    change = mean(only(rows, prior=prior), "accuracy") - mean(only(rows, prior="template"), "accuracy")
    return f"{change:+.1f}".replace("-", "−")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--part", choices=["development", "test"], default="test")
    parser.add_argument("--shots", nargs="+", type=int, default=[1])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    add_file(parser)
    options = parser.parse_args(arguments)
    backbone = cached_backbone(options.model, options.device)
    rows: list[Row] = []
    cells = [(folder, k, seed) for folder in options.folders for k in options.shots for seed in options.seeds]
    for folder, k, seed in track(cells, "fits", transient=True):
        task, rest = development(folder, k, seed)
        test = rest if options.part == "development" else read_folder(folder / "test", task.class_names)
        found = measure(backbone, folder, dataclasses.replace(task, test=test))
        rows += [{"data": folder.name, "shots": k, "seed": seed, **row} for row in found]
    write_rows(options, rows)
    print(f"{options.model}, {options.part} images, seeds {options.seeds}: accuracy in %, accuracy in % / NLL")
    for data in values(rows, "data"):
        print(table(data, rows), end="\n\n")


if __name__ == "__main__":
    main()

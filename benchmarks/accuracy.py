"""Zero-shot against tuned accuracy on class folders, three seeds.

    python -m benchmarks.accuracy ../shared/data/pets ../shared/data/eurosat [--shots 16] [--seeds 1 2 3]

A data set is a folder with ``train/`` and ``test/``, each of class folders, and optionally shot lists
(`kalmanclip.data.shot_lists`); without them the shots are drawn. Nothing is chosen on the test images.
"""

import argparse
import dataclasses
import statistics
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from kalmanclip import KalmanCLIP
from kalmanclip.data import few_shot_task, read_folder, read_shot_lists
from kalmanclip.encoders import load_backbone

TEMPLATES = {
    "pets": "a photo of a {}, a type of pet.",
    "eurosat": "a centered satellite photo of {}.",
    "dtd37": "{} texture.",
}


def nll(logits: torch.Tensor, labels: torch.Tensor) -> float:
    return torch.nn.functional.cross_entropy(logits, labels).item()


def main(arguments: list[str] | None = None) -> dict[str, tuple[float, float]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--shots", nargs="+", type=int, default=[16])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    options = parser.parse_args(arguments)
    backbone = load_backbone(options.model)
    table = Table(
        title=f"Top-1 accuracy in % on test/, {options.model}, seeds {options.seeds}: mean ± standard deviation"
    )
    for column in ("data", "shots", "zero-shot", "tuned", "zero-shot NLL", "tuned NLL", "seconds to fit"):
        table.add_column(column, justify="left" if column == "data" else "right")
    result = {}
    for folder in options.folders:
        templates = [TEMPLATES.get(folder.name, "a photo of a {}.")]
        train = read_folder(folder / "train")
        lists = read_shot_lists(folder, train)
        test = read_folder(folder / "test", train.class_names)
        labels = torch.tensor(test.labels)
        start = KalmanCLIP(backbone, templates=templates).set_classes(train.class_names)
        before = start.method.logits(test.sources)
        for shots in options.shots:
            accuracies, losses, seconds = [], [], []
            for seed in track(options.seeds, f"{folder.name}, {shots} shots", transient=True):
                clf = KalmanCLIP(backbone, dataclasses.replace(start.config, seed=seed), templates=templates)
                begin = time.perf_counter()
                clf.fit(few_shot_task(train, None, None, shots, seed, shot_lists=lists).train)
                seconds.append(time.perf_counter() - begin)
                logits = clf.method.logits(test.sources)
                accuracies.append(100 * (logits.argmax(dim=1) == labels).float().mean().item())
                losses.append(nll(logits, labels))
            zero = 100 * (before.argmax(dim=1) == labels).float().mean().item()
            spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
            mean = statistics.mean(accuracies)
            result[f"{folder.name} {shots}"] = (zero, mean)
            table.add_row(
                folder.name,
                str(shots),
                f"{zero:.1f}",
                f"{mean:.1f} ± {spread:.1f}",
                f"{nll(before, labels):.2f}",
                f"{statistics.mean(losses):.2f}",
                f"{statistics.median(seconds):.0f}",
            )
    Console(width=110).print(table)
    return result


if __name__ == "__main__":
    main()

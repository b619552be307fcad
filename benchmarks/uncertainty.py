"""Do the probabilities mean what they say? The predictive distribution beside the mode and beside other methods.

    python -m benchmarks.uncertainty ../shared/data/eurosat ../shared/data/pets ../shared/data/dtd37
    python -m benchmarks.uncertainty ../shared/data/eurosat --development --preset head    # opens no test image

The default is fitted on the shots of the protocol and predicts the test images at the mean of its belief, linearised
(by draws of the logits, and by the formula without draws) and by sampled parameters. The other methods' figures are
read from the records in ``results/comparison``, made on the same shots and test images; they are not run again.

*Least ECE* is what the same probabilities would show on average if they were exactly right: with a few hundred images
in 15 bins no method can be expected to get below it.

With ``--development`` images are predicted that are neither shots nor test images, and the rows are temperings of the
covariance: where the typical values were chosen.
"""

import argparse
import dataclasses
import statistics
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.development import TEMPLATES, development
from kalmanclip.data import FewShotTask, few_shot_task, read_folder, read_shot_lists
from kalmanclip.encoders import Backbone, FeatureCache, load_backbone
from kalmanclip.encoders.disk_cache import cache_folder
from kalmanclip.experiments.store import Store
from kalmanclip.methods import Kalman, preset
from kalmanclip.methods.predictive import linearised
from kalmanclip.metrics import expected_calibration_error
from kalmanclip.metrics.summary import summarise
from kalmanclip.prediction import expected_softmax, mean_field

MEASURES = ("accuracy", "nll", "ece", "brier", "failure_auroc")
COLUMNS = ("accuracy in %", "NLL", "ECE in %", "Brier", "failure AUROC in %", "least ECE in %")


def measured(probabilities: torch.Tensor, labels: np.ndarray) -> tuple[float, ...]:
    """The `MEASURES`, and the least ECE."""
    p = probabilities.double()
    p = p / p.sum(dim=1, keepdim=True)  # single precision sums to one but for rounding
    numbers = summarise(p.numpy(), labels)
    generator = torch.Generator().manual_seed(0)
    drawn = (torch.multinomial(p, 1, generator=generator).squeeze(1) for _ in range(20))
    least = statistics.mean(expected_calibration_error(p, true) for true in drawn)
    return (*(numbers[name] for name in MEASURES), least)


TEMPERS = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0)


def task_of(folder: Path, shots: int, seed: int) -> FewShotTask:
    """The shots of the protocol, and the test images."""
    train, test = read_folder(folder / "train"), read_folder(folder / "test")
    lists = read_shot_lists(folder, train)
    task = few_shot_task(train, None, test, shots, seed, shot_lists=lists)
    return dataclasses.replace(task, templates=(TEMPLATES.get(folder.name, "a photo of a {}."),))


def development_task(folder: Path, shots: int, seed: int) -> FewShotTask:
    """The shots of the protocol, and other training images in the place of the test images."""
    task, rest = development(folder, shots, seed)
    return dataclasses.replace(task, test=rest)


def tempered(backbone: Backbone, task: FewShotTask, name: str) -> dict[str, tuple[float, ...]]:
    """What the preset measures by how much of its covariance it averages over."""
    assert task.test is not None
    method = Kalman(backbone, dataclasses.replace(preset(name), seed=task.seed))
    method.fit(dataclasses.replace(task, test=None))
    with torch.no_grad():
        parts = method._each_batch(task.test.sources, linearised(method, temper=False), lambda *_: None)
    labels, found = np.asarray(task.test.labels), {}
    for t in (0.0, *TEMPERS):
        p = torch.cat([expected_softmax(part.tempered(t)).probabilities for part in parts]).cpu()
        found[f"ours, t = {t:.4f}"] = measured(p, labels)
    return found


def ours(backbone: Backbone, task: FewShotTask, name: str, samples: int) -> dict[str, tuple[float, ...]]:
    """What the preset measures on the test images, by how it predicts."""
    assert task.test is not None
    method = Kalman(backbone, dataclasses.replace(preset(name), seed=task.seed))
    method.fit(dataclasses.replace(task, test=None, validation=None))
    images, labels = task.test.sources, np.asarray(task.test.labels)
    found = {
        f"ours, {how}": measured(method.predict_distribution(images, how, samples).probabilities, labels)
        for how in ("mean", "linearised", "sampled")
    }
    with torch.no_grad():
        parts = method._each_batch(images, linearised(method), lambda *_: None)
    found["ours, mean field"] = measured(torch.cat([mean_field(part) for part in parts]).cpu(), labels)
    return found


def recorded(
    results: Path, places: Iterable[str], shots: list[int], seeds: list[int]
) -> dict[tuple[str, int], dict[tuple[str, int], tuple[float, ...]]]:
    """By method and shots: the measures of each data set and seed that is on record."""
    found: dict[tuple[str, int], dict[tuple[str, int], tuple[float, ...]]] = {}
    for record in Store(results).records():
        run = record["run"]
        usual = record["status"] == "done" and run["model"] == "tiny" and "contamination" not in run
        if usual and run["data"] in set(places) and run["shots"] in shots and run["seed"] in seeds:
            cells = found.setdefault((record["label"], run["shots"]), {})
            cells[run["data"], run["seed"]] = tuple(record["metrics"][name] for name in MEASURES)
    return {key: cells for key, cells in found.items() if not key[0].startswith("kalman")}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--preset", default="default")
    parser.add_argument("--shots", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--development", action="store_true", help="training images outside the shots, by tempering")
    parser.add_argument("--results", type=Path, default=Path("results/comparison"))
    options = parser.parse_args(arguments)
    cache = cache_folder()
    backbone = dataclasses.replace(load_backbone("tiny"), cache=None if cache is None else FeatureCache(cache))
    rows: dict[tuple[str, int], dict[tuple[str, int], tuple[float, ...]]] = {}
    if not options.development:
        rows = recorded(options.results, [place.name for place in options.folders], options.shots, options.seeds)
    cells = [(place, k, seed) for place in options.folders for k in options.shots for seed in options.seeds]
    for place, k, seed in track(cells, "fits", transient=True):
        if options.development:
            found = tempered(backbone, development_task(place, k, seed), options.preset)
        else:
            found = ours(backbone, task_of(place, k, seed), options.preset, options.samples)
        for name, numbers in found.items():
            rows.setdefault((name, k), {})[place.name, seed] = numbers
    wanted = len(options.folders) * len(options.seeds)
    console = Console(width=130)
    for k in options.shots:
        table = Table(title=f"tiny, {k} shots, mean of {wanted} runs (data sets x seeds {options.seeds})")
        for column in ("method", *COLUMNS):
            table.add_column(column, justify="left" if column == "method" else "right")
        for (name, shots), runs in sorted(rows.items(), key=lambda row: (row[0][0].startswith("ours"), row[0])):
            if shots != k:
                continue
            means = [statistics.mean(column) for column in zip(*runs.values(), strict=True)]
            forms = ("{:.1%}", "{:.3f}", "{:.1%}", "{:.3f}", "{:.1%}", "{:.1%}")
            texts = [form.format(mean).rstrip("%") for form, mean in zip(forms, means, strict=False)]
            share = "" if len(runs) == wanted else f" ({len(runs)} of {wanted} runs)"
            table.add_row(name + share, *texts, *["-"] * (len(COLUMNS) - len(texts)))
        console.print(table)


if __name__ == "__main__":
    main()

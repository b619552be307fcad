"""Do the probabilities mean what they say? The predictive distribution beside the mode and beside other methods.

    python -m benchmarks.uncertainty ../shared/data/eurosat ../shared/data/pets ../shared/data/dtd37 \\
        --json results/uncertainty.json
    python -m benchmarks.uncertainty ../shared/data/eurosat --development --preset head    # opens no test image

The default is fitted on the shots of the protocol and predicts the test images at the mean of its belief, linearised
(by draws of the logits, and by the formula without draws) and by sampled parameters. The other methods' figures are
read from the records in results/comparison.jsonl, made on the same shots and test images; they are not run again.

*Least ECE* is what the same probabilities would show on average if they were exactly right: with a few hundred images
in 15 bins no method can be expected to get below it.

With ``--development`` images are predicted that are neither shots nor test images, and the rows are scales of the
covariance: where the typical values were chosen.
"""

import argparse
import dataclasses
import statistics
from pathlib import Path

import numpy as np
import torch
from rich.progress import track

from benchmarks import comparison
from benchmarks.development import TEMPLATES, cached_backbone, development
from benchmarks.table import Row, add_file, markdown, mean, only, read_rows, shots_head, span, values, write_rows
from kalmanclip.data import FewShotTask, few_shot_task, read_folder, read_shot_lists
from kalmanclip.encoders import Backbone
from kalmanclip.experiments.aggregate import places_of
from kalmanclip.experiments.render import Measure
from kalmanclip.experiments.report import Column, make_table
from kalmanclip.methods import make_classifier, preset
from kalmanclip.metrics import expected_calibration_error, summarise
from kalmanclip.prediction import expected_softmax, mean_field

MEASURES = {
    "accuracy": ("accuracy in %", "{:.1%}"),
    "nll": ("NLL", "{:.3f}"),
    "ece": ("ECE in %", "{:.1%}"),
    "brier": ("Brier", "{:.3f}"),
    "failure_auroc": ("failure AUROC in %", "{:.1%}"),
}
"""By metric, what it is called and how it is shown."""
WAYS = {
    "mean": "ours, at the mean",
    "linearised": "**ours, linearised**",
    "mean field": "ours, linearised, formula without draws",
    "sampled": "ours, sampled",
}
"""How the default predicts, and what the tables call it."""


def table(first: str, second: str, rows: list[Row] | None = None) -> str:
    """Two measures of every method in results/comparison.jsonl and of all ways to predict, by number of shots."""
    rows = read_rows("uncertainty") if rows is None else rows
    sets, shots, seeds = values(rows, "data"), sorted(values(rows, "shots")), set(values(rows, "seed"))
    pair = (first, second)

    frame = comparison.results("comparison")
    asked = frame[frame["data"].isin(sets) & (frame["shift"] == "") & (frame["status"] == "done")]
    # seeds that are done on all data sets, each with its mean over them
    by_seed = asked.groupby(["row", "shots", "seed"]).filter(lambda runs: len(runs) == len(sets))
    by_seed = by_seed.groupby(["row", "shots", "seed"])[list(pair)].mean()

    def theirs(label: str, k: int) -> str:
        if (label, k) not in by_seed.index.droplevel("seed"):
            return "-"
        found = by_seed.loc[label, k]
        means = list(found[found.index.isin(seeds)].mean())
        return _text(pair, means) + ("" if seeds <= set(found.index) else f" ({len(found)} of {len(seeds)} seeds)")

    others = [row for row, method in comparison.methods_of(frame).items() if method not in comparison.OWN]
    lines = [[comparison.called(row), *(theirs(row, k) for k in shots)] for row in others]
    for way in sorted(values(rows, "how"), key=lambda way: list(WAYS).index(way) if way in WAYS else len(WAYS)):
        found = [only(rows, how=way, shots=k) for k in shots]
        lines.append([WAYS.get(way, way), *(_text(pair, [mean(part, m) for m in pair]) for part in found)])
    if "ece" in pair:
        least = [mean(only(rows, how="linearised", shots=k), "least_ece") for k in shots]
        lines.append(["*least ECE of ours, linearised*", *(f"{100 * number:.1f}" for number in least)])
    return markdown([" / ".join(MEASURES[m][0] for m in pair), *map(shots_head, shots)], lines)


def averaging_gains() -> str:
    """By how much averaging lowers NLL, in nats: the least and the largest over numbers of shots."""
    rows = read_rows("uncertainty")

    def nll(how: str, k: int) -> float:
        return mean(only(rows, how=how, shots=k), "nll")

    return span((nll("mean", k) - nll("linearised", k) for k in values(rows, "shots")), 3)


def lower(measure: str) -> str:
    """The other methods that are better than the linearised default in the mean, by number of shots, as a list."""
    rows, frame, lines = read_rows("uncertainty"), comparison.results("comparison"), []
    sign = 1 if measure in ("accuracy", "failure_auroc") else -1
    for k in sorted(values(rows, "shots")):
        ours = mean(only(rows, how="linearised", shots=k), measure)
        places = tuple(place for place in places_of(frame) if place.shots == k)
        others = make_table("", frame[~frame["method"].isin(comparison.OWN)], [Column(("",), places)], Measure(measure))
        means = {row: others.cell(i, 0).mean for i, (row,) in enumerate(others.rows)}
        better = [row for row, value in means.items() if value is not None and sign * (value - ours) > 0]
        if better:
            lines.append(f"*{shots_head(k)}*: {', '.join(map(comparison.called, better))}")
    return ". ".join(lines) or "none"


def _text(measures: tuple[str, ...], numbers: list[float]) -> str:
    return " / ".join(MEASURES[m][1].format(number).rstrip("%") for m, number in zip(measures, numbers, strict=True))


def measured(probabilities: torch.Tensor, labels: np.ndarray) -> Row:
    """The `MEASURES`, and the least ECE."""
    p = probabilities.double()
    p = p / p.sum(dim=1, keepdim=True)  # single precision sums to one but for rounding
    numbers = summarise(p.numpy(), labels)
    generator = torch.Generator().manual_seed(0)
    drawn = (torch.multinomial(p, 1, generator=generator).squeeze(1) for _ in range(20))
    least = statistics.mean(expected_calibration_error(p, true) for true in drawn)
    return {**{name: numbers[name] for name in MEASURES}, "least_ece": least}


SCALES = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0)


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


def by_scale(backbone: Backbone, task: FewShotTask, name: str) -> dict[str, Row]:
    """What the preset measures by how much of its covariance it averages over."""
    assert task.test is not None
    method = make_classifier(backbone, dataclasses.replace(preset(name), seed=task.seed))
    method.fit(dataclasses.replace(task, test=None))
    parts = method.linearized_batches(task.test.sources, scaled=False)
    labels, found = np.asarray(task.test.labels), {}
    for t in (0.0, *SCALES):
        p = torch.cat([expected_softmax(part.scaled(t)).probabilities for part in parts]).cpu()
        found[f"ours, t = {t:g}"] = measured(p, labels)
    return found


def ours(backbone: Backbone, task: FewShotTask, name: str, samples: int) -> dict[str, Row]:
    """What the preset measures on the test images, by how it predicts."""
    assert task.test is not None
    method = make_classifier(backbone, dataclasses.replace(preset(name), seed=task.seed))
    method.fit(dataclasses.replace(task, test=None, validation=None))
    images, labels = task.test.sources, np.asarray(task.test.labels)
    found = {
        how: measured(method.predict(images, how=how, samples=samples).probabilities, labels)
        for how in ("mean", "linearised", "sampled")
    }
    parts = method.linearized_batches(images)
    found["mean field"] = measured(torch.cat([mean_field(part) for part in parts]).cpu(), labels)
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--preset", default="default")
    parser.add_argument("--shots", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--development", action="store_true", help="training images outside the shots, by scale")
    add_file(parser)
    options = parser.parse_args(arguments)
    backbone = cached_backbone("tiny")
    rows: list[Row] = []
    cells = [(place, k, seed) for place in options.folders for k in options.shots for seed in options.seeds]
    for place, k, seed in track(cells, "fits", transient=True):
        if options.development:
            found = by_scale(backbone, development_task(place, k, seed), options.preset)
        else:
            found = ours(backbone, task_of(place, k, seed), options.preset, options.samples)
        rows += [{"how": how, "data": place.name, "shots": k, "seed": seed, **row} for how, row in found.items()]
    write_rows(options, rows)
    print(f"tiny, {', '.join(place.name for place in options.folders)}, seeds {options.seeds}, preset {options.preset}")
    if not options.development:
        print(table("nll", "ece", rows), table("brier", "failure_auroc", rows), sep="\n\n")
        return
    heads = ["", *(f"{shots_head(k)}: NLL / ECE in %" for k in options.shots)]
    parts = {how: [only(rows, how=how, shots=k) for k in options.shots] for how in values(rows, "how")}
    print(
        markdown(
            heads,
            [
                [how, *(_text(("nll", "ece"), [mean(part, "nll"), mean(part, "ece")]) for part in found)]
                for how, found in parts.items()
            ],
        )
    )


if __name__ == "__main__":
    main()

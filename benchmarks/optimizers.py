"""Optimiser against filter, fairly: the same low-rank parameters, start, crops, batches and number of images seen.

    python -m benchmarks.optimizers MODEL ../shared/data/eurosat ../shared/data/pets ../shared/data/dtd37 \\
        --device cuda --json results/optimizers.json [--shots 4 16] [--seeds 1 2 3] [--precision bfloat16]

Of the preset `joint` only the learning inside the image tower is exchanged: its filter, or AdamW with one of three
learning rates (weight decay 1e-2, down to 1e-6 by a cosine, as in CLIP-LoRA). Both are given the same classification of
each image by the text and the other images; AdamW descends its negative log-likelihood, of which the filter observes
the deviance. Every fourth of the steps the tower is read by one fixed classifier of test images, with nothing fitted:
that of the observation, with all training images in the means of the classes (``a f . t_c / tau + b g_c(f)``, gains
from the untouched embeddings). It is read as each learner would leave it there: the filter's mean, from half of its
steps on their average since then; AdamW's last step. The last numbers are those of the whole method, class residuals
included. The seconds are those of the steps alone, without reading; neither learner is captured as a CUDA graph.

Runs that the file has already are not measured again, unless their options have changed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.development import TEMPLATES, cached_backbone, scores
from benchmarks.table import (
    SETS,
    Row,
    add_file,
    markdown,
    mean,
    only,
    read_rows,
    rows_of,
    shots_head,
    values,
    write_rows,
)
from benchmarks.towers import RATES, Descent, DescentConfig, digest, synchronize
from kalmanclip.config import to_dict
from kalmanclip.data import FewShotTask, few_shot_task, read_folder, read_shot_lists
from kalmanclip.encoders import Backbone
from kalmanclip.encoders.features import Progress, activation_store
from kalmanclip.filtering import CapturedStep
from kalmanclip.methods import Joint, JointConfig, with_options
from kalmanclip.methods.joint import Batch
from kalmanclip.methods.leave_one_out import LeaveOneOut
from kalmanclip.methods.statistics import ClassStatistics

if TYPE_CHECKING:
    from kalmanclip.experiments.figure import Picture

KEY = ("learner", "model", "data", "shots", "seed", "options")
FILTER = "filter"
READINGS = 4
"""While it learns; there is one before."""

Watch = Callable[[Joint, LeaveOneOut, int, int], None]
"""Called with the steps taken and to take, before the first and after each."""


class Watched(Joint):
    """`Joint`, watched while it learns inside the tower."""

    watch: Watch

    def _learn_towers(self, batches: Iterator[Batch], observed: LeaveOneOut, steps: int, progress: Progress) -> None:
        self.watch(self, observed, 0, steps)
        super()._learn_towers(
            batches, observed, steps, lambda stage, done, total: self.watch(self, observed, done, total)
        )


class WatchedDescent(Watched, Descent):
    """The same with AdamW."""


class Course:
    """What a learner has made of the tower after so many images.

    Args:
        backbone: the model.
        task: the training and test images.
        averaged: whether the second half of the steps is read by the average of the parameters.

    Attributes:
        points: images seen, seconds, accuracy in % and mean negative log-likelihood of test images, one by one.
    """

    def __init__(self, backbone: Backbone, task: FewShotTask, averaged: bool) -> None:
        self.backbone, self.averaged = backbone, averaged
        self.points: list[tuple[int, float, float, float]] = []
        self._task, self._seconds = task, 0.0
        self._labels = [torch.tensor(part.labels, device=backbone.device) for part in (task.train, task.test)]

    def watch(self, method: Joint, observed: LeaveOneOut, done: int, steps: int) -> None:
        """Read the tower, if it is time."""
        theta = method.encoder.theta.detach()
        if done == 0:
            self._average, self._taken = torch.zeros_like(theta), 0
            self._images = [activation_store(method.encoder, part.sources, _silent) for part in self._parts]
        elif 2 * done > steps:
            self._taken += 1
            self._average.lerp_(theta, 1 / self._taken)
        if done in {round(steps * i / READINGS) for i in range(READINGS + 1)}:
            synchronize(self.backbone)
            if done:
                self._seconds += time.perf_counter() - self._begin
            seen = done * min(method.config.batch_size, len(self._labels[0]))
            self.points.append((seen, self._seconds, *self._read(method, observed)))
            synchronize(self.backbone)
            self._begin = time.perf_counter()

    @property
    def _parts(self) -> tuple[Any, Any]:
        return self._task.train, self._task.test

    @torch.no_grad()
    def _read(self, method: Joint, observed: LeaveOneOut) -> tuple[float, float]:
        """Accuracy in % and mean negative log-likelihood by the fixed classifier."""
        theta = method.encoder.theta
        now = theta.clone()
        if self.averaged and self._taken:
            theta.copy_(self._average)
        f, test = (self._embedded(method, number) for number in (0, 1))
        theta.copy_(now)
        of_classes = ClassStatistics.of(f.unsqueeze(1), self._labels[0], len(observed.T))
        text, others = observed.scale * test @ observed.T.mT, test @ of_classes.generative(method.residuals.root).mT
        logits = observed.gains[0] * text + observed.gains[1] * others
        right = (logits.argmax(dim=1) == self._labels[1]).float().mean()
        return 100 * float(right), float(F.cross_entropy(logits, self._labels[1]))

    def _embedded(self, method: Joint, number: int) -> Tensor:
        """Embeddings (N, d) of the training or the test images, by centre crops."""
        positions = torch.arange(len(self._labels[number])).split(128)
        return torch.cat([method.encoder.encode_images(self._images[number][part]) for part in positions])


def _silent(stage: str, done: int, total: int) -> None:
    """Report nothing."""


def learners() -> dict[str, JointConfig]:
    """The filter, and AdamW at every rate."""
    return {FILTER: JointConfig(), **{f"AdamW {lr:g}": DescentConfig(lr=lr) for lr in RATES}}


def measured(backbone: Backbone, config: JointConfig, task: FewShotTask) -> Row:
    """The course of one learner on one task, and the scores of the whole method."""
    descent = isinstance(config, DescentConfig)
    method = (WatchedDescent if descent else Watched)(backbone, config)
    course = Course(backbone, task, averaged=not descent)
    method.watch = course.watch
    with patch.object(CapturedStep, "possible", return_value=False):
        method.fit(task)
    accuracy, nll = scores(method, task.test)
    return {"points": [list(point) for point in course.points], "accuracy": accuracy, "nll": nll}


def read_task(folder: Path, shots: int, seed: int) -> FewShotTask:
    """The shots of a seed, and all test images."""
    train = read_folder(folder / "train")
    test = read_folder(folder / "test", train.class_names)
    templates = (TEMPLATES.get(folder.name, "a photo of a {}."),)
    return few_shot_task(train, None, test, shots, seed, templates, shot_lists=read_shot_lists(folder, train))


def table(rows: list[Row] | None = None) -> str:
    """Accuracy in % / NLL of the whole method, by learner, data set and shots, and the seconds of its steps."""
    rows = read_rows("optimizers") if rows is None else rows
    places = [(data, shots) for data in values(rows, "data") for shots in sorted(values(rows, "shots"))]
    lines = []
    for learner in [one for one in learners() if only(rows, learner=one)]:
        found = only(rows, learner=learner)
        parts = [only(found, data=data, shots=shots) for data, shots in places]
        cells = [f"{mean(part, 'accuracy'):.1f} / {mean(part, 'nll'):.3f}" if part else "" for part in parts]
        ends = [
            f"{mean(found, 'accuracy'):.1f} / {mean(found, 'nll'):.3f}",
            f"{sum(row['points'][-1][1] for row in found) / len(found):.1f}",
        ]
        lines.append([learner, *cells, *(ends if all(parts) else ["", ""])])
    heads = [f"{SETS.get(data, data)}, {shots_head(shots)}" for data, shots in places]
    return markdown(["", *heads, "mean", "s"], lines)


def pictures() -> dict[str, Picture]:
    """Accuracy and NLL against images seen, and against seconds: means over seeds, by data set and shots."""
    from kalmanclip.experiments.figure import draw_curves

    rows = read_rows("optimizers")
    found = {}
    for at, (name, x) in enumerate((("images", "images seen"), ("seconds", "seconds"))):
        panels = {}
        for shots in sorted(values(rows, "shots")):
            for column, measure in ((2, "accuracy (%)"), (3, "NLL")):
                for data in values(rows, "data"):
                    title = f"{SETS.get(data, data)}, {shots_head(shots)}: {measure}"
                    lines = {one: only(rows, data=data, shots=shots, learner=one) for one in learners()}
                    panels[title] = {one: _curve(runs, at, column) for one, runs in lines.items() if runs}
        title = f"Accuracy and NLL of the Kalman filter and of AdamW against {x}"
        found[f"optimizers-{name}"] = draw_curves(title, panels, ours=(FILTER,), x=x)
    return found


def _curve(runs: list[Row], *columns: int) -> list[tuple[float, ...]]:
    """Two columns of the points, each the mean over runs."""
    together = zip(*(run["points"] for run in runs), strict=True)
    return [tuple(sum(point[c] for point in points) / len(points) for c in columns) for points in together]


def main(arguments: list[str] | None = None) -> None:
    """Measure what the file does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--shots", nargs="+", type=int, default=[4, 16])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="bfloat16")
    add_file(parser)
    options = parser.parse_args(arguments)
    rows = rows_of(options.json)
    known = {tuple(row[k] for k in KEY) for row in rows}
    backbone = cached_backbone(options.model, options.device, options.precision)
    for seed in options.seeds:
        for folder in options.data:
            for shots in options.shots:
                task = read_task(folder, shots, seed)
                for learner, changed in learners().items():
                    config = with_options(changed, {"seed": seed})
                    key = (learner, Path(options.model).name, folder.name, shots, seed, digest(to_dict(config)))
                    if key in known:
                        continue
                    row = dict(zip(KEY, key, strict=True)) | measured(backbone, config, task)
                    rows.append(row)
                    _, seconds, accuracy, nll = row["points"][-1]
                    print(
                        f"{folder.name}, {shots_head(shots)}, seed {seed}, {learner}: read {accuracy:.1f} %, ", end=""
                    )
                    print(f"{nll:.3f}; method {row['accuracy']:.1f} %, {row['nll']:.3f}; {seconds:.1f} s", flush=True)
                    write_rows(options, rows)
    print(table(rows))


if __name__ == "__main__":
    main()

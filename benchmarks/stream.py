"""Classes that arrive one group after the other, their images never seen again: who remembers?

    python -m benchmarks.stream ../shared/data/eurosat ../shared/data/pets ../shared/data/dtd37 \\
        --json results/stream.json

The shots of a data set are cut into ``--steps`` groups of classes, in an order drawn with the seed. Each group is shown
once. After each step every learner is asked about the classes seen so far: all of them, those of earlier steps (old)
and those of this step (new). *Forgetting* is the mean over groups of the accuracy on the group when it was new, less
that at the end; it is not zero for the joint fit either, because classes that come later compete.

Learners: ``partial_fit`` with the presets default and head; AdamW on the same stream, on the same parameters (class
weights that start at the texts, on the same crops; low-rank parameters that start as the filter's); and as a bound the
default fitted jointly to all images so far. AdamW's learning rate is the one of ``RATES`` with the best accuracy at the
end of the stream on development images, which are training images outside the shots: an advantage over the filter,
for which nothing is chosen.
"""

import argparse
import dataclasses
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.development import cached_backbone, development
from benchmarks.table import SETS, Row, add_file, markdown, mean, only, read_rows, span, values, write_rows
from kalmanclip.data import FewShotTask, LabelledImages, read_folder
from kalmanclip.encoders import Backbone
from kalmanclip.encoders.features import activation_store, crop_features
from kalmanclip.methods import Classifier as Method
from kalmanclip.methods import ClassResiduals, Kalman, make_classifier, preset, silent
from kalmanclip.methods.base import labels_of
from kalmanclip.methods.baselines.training import Recipe, steps_of, train

RATES = (1e-5, 1e-4, 1e-3, 1e-2)
EPOCHS = 50
LOW_RANK_EPOCHS = 20

DEFAULT, JOINT = "partial_fit, default", "joint fit, default"

Classifier = tuple[Method, Tensor]
"""A method, whose encoder embeds images, and the class weights (C, d) to compare them with."""


def groups_of(task: FewShotTask, steps: int) -> list[LabelledImages]:
    """The training images, group by group of classes; each numbers its labels by all classes so far."""
    order = torch.randperm(len(task.class_names), generator=torch.Generator().manual_seed(task.seed)).tolist()
    groups, seen = [], 0
    for part in torch.tensor(order).tensor_split(steps):
        now, seen = order[: seen + len(part)], seen + len(part)
        label = {c: i for i, c in enumerate(now)}
        chosen = [i for i, c in enumerate(task.train.labels) if c in set(part.tolist())]
        images = [task.train.sources[i] for i in chosen]
        labels = [label[task.train.labels[i]] for i in chosen]
        groups.append(LabelledImages(images, labels, [task.class_names[c] for c in now]))
    return groups


def filtered(name: str, backbone: Backbone, task: FewShotTask, groups: list[LabelledImages]) -> Iterator[Classifier]:
    """`partial_fit` with a preset."""
    method = make_classifier(backbone, dataclasses.replace(preset(name), seed=task.seed))
    for group in groups:
        method.update(group, method.config.passes, templates=task.templates)
        yield method, method.class_weights()


def joint(backbone: Backbone, task: FewShotTask, groups: list[LabelledImages]) -> Iterator[Classifier]:
    """The default, fitted to all images so far."""
    for number, group in enumerate(groups, start=1):
        sources = [source for shown in groups[:number] for source in shown.sources]
        labels = [label for shown in groups[:number] for label in shown.labels]
        method = ClassResiduals(backbone, dataclasses.replace(preset("default"), seed=task.seed))
        images = LabelledImages(sources, labels, group.class_names)
        method.fit(FewShotTask(images, templates=task.templates, seed=task.seed))
        yield method, method.class_weights()


def zero_shot(backbone: Backbone, task: FewShotTask, groups: list[LabelledImages]) -> Iterator[Classifier]:
    method = ClassResiduals(backbone, preset("default"))
    for group in groups:
        method.set_classes(group.class_names, task.templates)
        yield method, method.class_weights()


def adamw_classes(
    rate: float, backbone: Backbone, task: FewShotTask, groups: list[LabelledImages]
) -> Iterator[Classifier]:
    """Class weights, from the texts on, on the crops that the filter sees."""
    method = ClassResiduals(backbone, dataclasses.replace(preset("default"), seed=task.seed))
    W = torch.empty(0, backbone.width, device=backbone.device)
    for group in groups:
        method.set_classes(group.class_names, task.templates)
        T = method.class_weights().to(W)
        crops = crop_features(method.encoder, group.sources, method.config, method.config.seed)
        f, y = crops.flatten(0, 1), labels_of(group, W.device).repeat_interleave(crops.shape[1])
        W = torch.cat([W, T[len(W) :]]).requires_grad_()

        def loss(i: Tensor, _: int, W: Tensor = W, f: Tensor = f, y: Tensor = y) -> Tensor:
            return F.cross_entropy(backbone.logit_scale * f[i] @ W.mT, y[i])

        recipe = Recipe(lr=rate, batch_size=192)  # 32 images, with their crops
        train([W], recipe, len(f), steps_of(len(f), recipe.batch_size, EPOCHS), loss, task.seed)
        W = W.detach()
        yield method, W


def adamw_low_rank(
    rate: float, backbone: Backbone, task: FewShotTask, groups: list[LabelledImages]
) -> Iterator[Classifier]:
    """The low-rank parameters of the preset head."""
    method = Kalman(backbone, dataclasses.replace(preset("head"), seed=task.seed))
    for group in groups:
        method.set_classes(group.class_names, task.templates)
        store, y = activation_store(method.encoder, group.sources, silent), labels_of(group, backbone.device)

        def loss(i: Tensor, _: int, store: object = store, y: Tensor = y) -> Tensor:
            similarities = method.encoder(store[i], method._texts, len(task.templates))  # type: ignore[index]
            return F.cross_entropy(backbone.logit_scale * similarities, y[i])

        recipe = Recipe(lr=rate)
        steps = steps_of(len(y), recipe.batch_size, LOW_RANK_EPOCHS)
        train(list(method.encoder.parameters()), recipe, len(y), steps, loss, task.seed)
        yield method, method.class_weights()


class Questions:
    """Images to ask about, with their frozen activations, which are the same for every learner."""

    def __init__(self, backbone: Backbone, images: LabelledImages) -> None:
        self.names = [images.class_names[label] for label in images.labels]
        self.store = activation_store(Kalman(backbone, preset("head")).encoder, images.sources, silent)
        self.scale = backbone.logit_scale

    @torch.no_grad()
    def right(self, classifier: Classifier, class_names: list[str]) -> dict[str, list[bool]]:
        """For each of the classes, which of its images are told right among them."""
        method, W = classifier
        label = {name: i for i, name in enumerate(class_names)}
        asked = [i for i, name in enumerate(self.names) if name in label]
        f = method.encoder.encode_images(self.store[torch.tensor(asked)])
        found = (f.to(W) @ W.mT).argmax(dim=1).tolist()
        told: dict[str, list[bool]] = {name: [] for name in class_names}
        for i, guess in zip(asked, found, strict=True):
            told[self.names[i]].append(guess == label[self.names[i]])
        return told


@dataclasses.dataclass
class Course:
    """Accuracies in % along one stream."""

    steps: list[float]
    old: float
    new: float
    forgetting: float


def follow(learner: Iterator[Classifier], groups: list[LabelledImages], questions: list[Questions]) -> list[Course]:
    """Asks each set of questions after each step."""
    told = [
        [asked.right(classifier, group.class_names) for asked in questions]
        for group, classifier in zip(groups, learner, strict=True)
    ]
    return [_course([step[q] for step in told], groups) for q in range(len(questions))]


def _course(told: list[dict[str, list[bool]]], groups: list[LabelledImages]) -> Course:
    """From what was told right after each step."""
    known = [0, *(len(group.class_names) for group in groups)]
    fresh = [group.class_names[known[step] :] for step, group in enumerate(groups)]
    when_new = [_accuracy(told[step], names) for step, names in enumerate(fresh)]
    lost = [before - _accuracy(told[-1], names) for before, names in zip(when_new[:-1], fresh[:-1], strict=True)]
    return Course(
        [_accuracy(answers, group.class_names) for answers, group in zip(told, groups, strict=True)],
        _accuracy(told[-1], groups[-2].class_names),
        when_new[-1],
        statistics.mean(lost),
    )


def _accuracy(told: dict[str, list[bool]], names: list[str]) -> float:
    answers = [answer for name in names for answer in told[name]]
    return 100 * statistics.mean(answers)


Learner = Callable[[Backbone, FewShotTask, list[LabelledImages]], Iterator[Classifier]]


def learners(only: list[str] | None) -> dict[str, dict[float, Learner]]:
    """By name, and where there is something to choose by rate."""

    def tuned(function: Callable[..., Iterator[Classifier]]) -> dict[float, Learner]:
        return {rate: lambda *args, rate=rate: function(rate, *args) for rate in RATES}  # type: ignore[misc]

    known: dict[str, dict[float, Learner]] = {
        "zero-shot": {0: zero_shot},
        DEFAULT: {0: lambda *args: filtered("default", *args)},
        "partial_fit, head": {0: lambda *args: filtered("head", *args)},
        "AdamW, class weights": tuned(adamw_classes),
        "AdamW, low-rank head": tuned(adamw_low_rank),
        JOINT: {0: joint},
    }
    return {name: choices for name, choices in known.items() if not only or name in only}


def table(data: str, rows: list[Row] | None = None) -> str:
    """Every learner on one data set: accuracy in % after each step, at the end of old and new classes, forgetting."""
    rows = only(read_rows("stream") if rows is None else rows, data=data)
    lines = []
    for name in learners(None):
        if not (found := only(rows, learner=name)):
            continue
        found = _with_best_rate(found)
        steps = [statistics.fmean(column) for column in zip(*(row["steps"] for row in found), strict=True)]
        rest = [f"{mean(found, what):.1f}" for what in ("old", "new", "forgetting")]
        rate = f" (rate {found[0]['rate']:g})" if found[0]["rate"] else ""
        bold = "**" if name == DEFAULT else ""
        lines.append([f"{bold}{name}{bold}{rate}", ", ".join(f"{a:.1f}" for a in steps), *rest])
    return markdown([SETS.get(data, data), "after each step", "old", "new", "forgetting"], lines)


def behind_joint() -> str:
    """How many points the default's stream ends below the joint fit: the least and the largest by data set."""
    rows = read_rows("stream")

    def end(learner: str, data: str) -> float:
        return statistics.fmean(row["steps"][-1] for row in only(rows, learner=learner, data=data))

    return span(end(JOINT, data) - end(DEFAULT, data) for data in values(rows, "data"))


def _with_best_rate(rows: list[Row]) -> list[Row]:
    """The rows of one learner whose rate is the best at the end of the stream on development images."""
    by_rate = {rate: only(rows, rate=rate) for rate in values(rows, "rate")}
    return max(by_rate.values(), key=lambda found: mean(found, "development"))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--part", choices=["development", "test"], default="test")
    parser.add_argument("--shots", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", help="these learners")
    add_file(parser)
    options = parser.parse_args(arguments)
    backbone = cached_backbone(options.model, options.device)
    rows: list[Row] = []
    for folder in options.folders:
        tests = Questions(backbone, read_folder(folder / "test")) if options.part == "test" else None
        for seed in options.seeds:
            task, rest = development(folder, options.shots, seed)
            groups, chosen_by = groups_of(task, options.steps), Questions(backbone, rest)
            for name, choices in learners(options.only).items():
                for rate, learner in choices.items():
                    asked = [chosen_by, tests or chosen_by]
                    first, last = follow(learner(backbone, task, groups), groups, asked)
                    run = {"learner": name, "rate": rate, "data": folder.name, "seed": seed}
                    rows.append({**run, "development": first.steps[-1], **dataclasses.asdict(last)})
    write_rows(options, rows)
    print(f"{options.model}, {options.shots} shots, seeds {options.seeds}; accuracy in % on {options.part} images")
    for data in values(rows, "data"):
        print(table(data, rows), end="\n\n")


if __name__ == "__main__":
    main()

"""Class-incremental learning by the field's protocol: ten steps of new classes, no image kept (B0-Inc, exemplar-free).

    python -m benchmarks.incremental ../shared/data/eurosat ../shared/data/pets ../shared/data/dtd37 --seeds 1 \\
        --json results/incremental.json
    python -m benchmarks.incremental cifar100 --images 100 --seeds 1 --json results/incremental-cifar100.json

A data set is a folder with the class folders ``train`` and ``test``; CIFAR-100 in that form is the public repository
cyizhuo/CIFAR-100-dataset. Classes come in the order of seed 1993, drawn as PyCIL, LAMDA-PILOT and RanPAC draw it, in
ten steps as equal as can be. After each step test images of all classes so far are asked about. *Last* is the
accuracy after the last step, *average* the mean over the steps.

RanPAC's published 10,000 random features, and random features under the residuals, are measured where ``--only`` asks
for them: both take long.

All learn from the same frozen features, one centre crop of each image. `partial_fit` is the default's update, class
residuals, once with the text and once without: all class names then mean the same. *On random features* is the same
with as many ``relu(f W)`` as its row says beside the features. The joint fit sees all images again at every step.

``--part development`` learns from three of four training images and measures on the fourth: where choices are made, for
no test image is opened.

An interrupted run goes on where it was: what it has measured lies beside the file, as NAME.partial.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor

from benchmarks.development import TEMPLATES, add_model, cached_backbone
from benchmarks.ranpac import FEATURES, RandomFeatures, RanPAC
from benchmarks.table import SETS, Row, add_file, markdown, mean, only, read_rows, resumed, span, values
from kalmanclip.data import LabelledImages, read_folder
from kalmanclip.encoders import Backbone, DualEncoder
from kalmanclip.encoders.features import image_features, text_weights
from kalmanclip.methods import ClassResidualsConfig
from kalmanclip.methods.residuals import ResidualBelief

STEPS = 10
ORDER = 1993
MORE = 1000  # random features beside the features, under the residuals


class Learner(Protocol):
    """Learns classes step by step; their numbers are those of the order in which they come."""

    def learn(self, f: Tensor, labels: Tensor, classes: int) -> None:
        """Learn images with features (N, d), of new classes; there are so many by now."""

    def scores(self, f: Tensor) -> Tensor:
        """Return scores (N, C) of the classes so far."""


@dataclass(frozen=True)
class Stream:
    """A data set in the order in which its classes come.

    Attributes:
        T: the text weights (C, d).
        scale: 1 / tau.
        train: features (N, d) and labels (N,).
        test: the same.
        known: how many classes there are after each step.
    """

    T: Tensor
    scale: float
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    known: list[int]

    @classmethod
    @torch.no_grad()
    def read(cls, backbone: Backbone, folder: Path, images: int | None, order: int, part: str = "test") -> Stream:
        """Read a data set; ``images`` limits those of each class to learn from."""
        train = read_folder(folder / "train")
        if images:
            train = first_of_each(train, images)
        train, test = development(train) if part == "development" else (train, read_folder(folder / "test"))
        template = TEMPLATES.get(folder.name, "a photo of a {}.")
        T = text_weights(backbone, train.class_names, [template])
        coming = class_order(len(T), order)
        place = torch.from_numpy(np.argsort(coming)).to(T.device)

        def embedded(part: LabelledImages) -> tuple[Tensor, Tensor]:
            f = image_features(DualEncoder(backbone), part.sources)
            return f, place[torch.tensor(part.labels, device=f.device)]

        return cls(T[torch.from_numpy(coming)], backbone.logit_scale, embedded(train), embedded(test), sizes(len(T)))

    def steps(self) -> Iterator[tuple[Tensor, Tensor, int]]:
        """Yield features and labels of the new classes, and how many classes there are then."""
        f, labels = self.train
        for before, now in zip([0, *self.known], self.known, strict=False):
            new = (labels >= before) & (labels < now)
            yield f[new], labels[new], now


def class_order(classes: int, seed: int) -> np.ndarray:
    """Which class comes when: what numpy's old generator draws, as everybody in the field does."""
    return np.random.RandomState(seed).permutation(classes)


def sizes(classes: int) -> list[int]:
    """How many classes there are after each step; the last steps may bring one less."""
    return np.cumsum([len(part) for part in np.array_split(np.arange(classes), STEPS)]).tolist()


def first_of_each(images: LabelledImages, count: int) -> LabelledImages:
    """The first images of each class."""
    met: dict[int, int] = {}
    chosen = []
    for i, label in enumerate(images.labels):
        met[label] = met.get(label, 0) + 1
        if met[label] <= count:
            chosen.append(i)
    return images.subset(chosen)


def development(images: LabelledImages) -> tuple[LabelledImages, LabelledImages]:
    """Three of four training images of each class to learn from, and the fourth to measure on."""
    met: dict[int, int] = {}
    parts: tuple[list[int], list[int]] = [], []
    for i, label in enumerate(images.labels):
        met[label] = met.get(label, 0) + 1
        parts[met[label] % 4 == 0].append(i)
    learned, measured = (images.subset(part) for part in parts)
    return learned, measured


class ZeroShot:
    """The text alone."""

    def __init__(self, stream: Stream) -> None:
        self._T, self._classes = stream.T, 0

    def learn(self, f: Tensor, labels: Tensor, classes: int) -> None:
        self._classes = classes

    def scores(self, f: Tensor) -> Tensor:
        return f @ self._T[: self._classes].mT


class NearestMean:
    """The class mean with the largest cosine similarity."""

    def __init__(self, stream: Stream) -> None:
        self._means = stream.T[:0]

    def learn(self, f: Tensor, labels: Tensor, classes: int) -> None:
        new = [F.normalize(f[labels == c].mean(dim=0), dim=0) for c in range(len(self._means), classes)]
        self._means = torch.cat([self._means, torch.stack(new)])

    def scores(self, f: Tensor) -> Tensor:
        return f @ self._means.mT


class Residuals:
    """The default's update, from one centre crop of each image.

    Args:
        stream: whose texts to use.
        text: whether to use them at all.
        features: random ones beside the features; 0: none.
        seed: of these.
    """

    def __init__(self, stream: Stream, text: bool = True, features: int = 0, seed: int = 0) -> None:
        self._stream, self._text = stream, text
        self._random = RandomFeatures(stream.T.shape[1], features, seed, stream.T) if features else None
        self._begin()

    def _begin(self) -> None:
        self.belief = ResidualBelief(ClassResidualsConfig(crops=0), self._stream.scale)

    def _expanded(self, f: Tensor) -> Tensor:
        return f if self._random is None else torch.cat([f, F.normalize(self._random(f), dim=1)], dim=1) / 2**0.5

    def learn(self, f: Tensor, labels: Tensor, classes: int) -> None:
        T = self._stream.T[:classes] * float(self._text)
        if self._random is not None:  # the text's logits stay what they are
            T = F.pad(2**0.5 * T, (0, self._random.width))
        self.belief.set_classes([str(c) for c in range(classes)], T)
        self.belief.learn(self._expanded(f).unsqueeze(1), labels)

    def scores(self, f: Tensor) -> Tensor:
        return self.belief.logits(self._expanded(f))


class Joint(Residuals):
    """The default, fitted anew to all images so far at each step."""

    _seen: tuple[Tensor, ...] = ()

    def learn(self, f: Tensor, labels: Tensor, classes: int) -> None:
        self._seen = tuple(map(torch.cat, zip(self._seen, (f, labels), strict=True))) if self._seen else (f, labels)
        self._begin()
        super().learn(self._seen[0], self._seen[1], classes)


def ranpac(stream: Stream, seed: int, features: int) -> RanPAC:
    return RanPAC(RandomFeatures(stream.T.shape[1], features, seed, stream.T), seed)


OURS, WITHOUT_TEXT = "partial_fit", "partial_fit, no text"
JOINT, JOINT_WITHOUT_TEXT = "joint fit", "joint fit, no text"
RANPAC = f"RanPAC, {FEATURES:,} random features"

LEARNERS: dict[str, Callable[[Stream, int], Learner]] = {
    "zero-shot": lambda stream, seed: ZeroShot(stream),
    "nearest class mean": lambda stream, seed: NearestMean(stream),
    "RanPAC, no random features": partial(ranpac, features=0),
    f"RanPAC, {MORE:,} random features": partial(ranpac, features=MORE),
    f"RanPAC, {FEATURES // 2:,} random features": partial(ranpac, features=FEATURES // 2),
    RANPAC: partial(ranpac, features=FEATURES),
    WITHOUT_TEXT: lambda stream, seed: Residuals(stream, text=False),
    f"partial_fit, no text, on {MORE:,} random features": lambda stream, seed: Residuals(stream, False, MORE, seed),
    JOINT_WITHOUT_TEXT: lambda stream, seed: Joint(stream, text=False),
    OURS: lambda stream, seed: Residuals(stream),
    f"partial_fit, on {MORE:,} random features": lambda stream, seed: Residuals(stream, True, MORE, seed),
    JOINT: lambda stream, seed: Joint(stream),
}
"""Made of a stream, and of the seed of what is random."""
LONG = (RANPAC, *(name for name in LEARNERS if name.endswith(f"on {MORE:,} random features")))
"""What takes so long that it is measured only where it is asked for (``--only``)."""


@torch.no_grad()
def follow(learner: Learner, stream: Stream) -> tuple[list[float], float]:
    """Accuracy in % after each step, of the classes so far, and the processor's seconds for learning them all."""
    f, labels = stream.test
    accuracies, seconds = [], 0.0
    for step in stream.steps():
        begin = time.process_time()
        learner.learn(*step)
        seconds += time.process_time() - begin
        asked = labels < step[-1]
        right = learner.scores(f[asked]).argmax(dim=1) == labels[asked]
        accuracies.append(100 * right.double().mean().item())
    return accuracies, seconds


def table(name: str = "incremental", rows: list[Row] | None = None) -> str:
    """Average / last accuracy in % of every learner, by data set."""
    rows = read_rows(name) if rows is None else rows
    sets = values(rows, "data")

    def text(learner: str, data: str) -> str:
        found = only(rows, learner=learner, data=data)
        return f"{mean(found, 'average'):.1f} / {mean(found, 'last'):.1f}" if found else ""

    lines = []
    for learner in LEARNERS:
        if only(rows, learner=learner):
            bold = "**" if learner == OURS else ""
            lines.append([f"{bold}{learner}{bold}", *(text(learner, data) for data in sets)])
    return markdown(["learner", *(SETS.get(data, data) for data in sets)], lines)


def gain(learner: str, rival: str, what: str = "last", name: str = "incremental") -> str:
    """How many points a learner is above another, average or last: the least and the largest by data set with both."""
    rows = read_rows(name)
    pairs = [[only(rows, learner=one, data=data) for one in (learner, rival)] for data in values(rows, "data")]
    return span((mean(own, what) - mean(other, what) for own, other in pairs if own and other), sign=True)


def seconds(data: str, name: str = "incremental") -> str:
    """The processor's seconds of all ten updates of `partial_fit`, with and without the text."""
    rows = only(read_rows(name), data=data)
    return span((row["seconds"] for row in rows if row["learner"] in (OURS, WITHOUT_TEXT)), digits=0)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    add_model(parser)
    parser.add_argument("--images", type=int, help="of each class to learn from; default: all")
    parser.add_argument("--part", default="test", choices=("test", "development"), help="measured on")
    parser.add_argument("--order", type=int, default=ORDER, help="seed of the order of the classes")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="of random features and splits")
    parser.add_argument("--only", nargs="+", choices=LEARNERS, metavar="LEARNER", help=f"of: {'; '.join(LEARNERS)}")
    add_file(parser)
    options = parser.parse_args(arguments)
    backbone = cached_backbone(options.model, options.device, options.precision)
    streams = {
        folder.name: Stream.read(backbone, folder, options.images, options.order, options.part)
        for folder in track(options.folders, "reading", transient=True)
    }

    def measured(data: str, name: str, seed: int) -> list[Row]:
        accuracies, seconds = follow(LEARNERS[name](streams[data], seed), streams[data])
        found = {"average": float(np.mean(accuracies)), "last": accuracies[-1], "seconds": seconds}
        return [{"data": data, "learner": name, "seed": seed, "accuracies": accuracies, **found}]

    cells = [
        (data, name, seed)
        for data in streams
        for name in options.only or [name for name in LEARNERS if name not in LONG]
        for seed in (options.seeds if "random features" in name and "no random" not in name else options.seeds[:1])
    ]
    rows = resumed(options, track(cells, "streams", transient=True), measured, ("folders", "only", "seeds"))
    print(f"{options.model}, ten steps; average / last accuracy in %")
    print(table(rows=rows))


if __name__ == "__main__":
    main()

"""``kalmanclip demo``: 16 satellite pictures of each of ten kinds of land teach the embedded CLIP to tell them apart.

It shows the path, it is not a benchmark: the pictures are a small sample of EuroSAT that comes with the package.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kalmanclip.cli.arguments import writable_folder
from kalmanclip.cli.console import (
    bars,
    command_line,
    expected_facts,
    facts,
    fit_facts,
    listing,
    percent,
    say,
    suggest,
    waiting,
)
from kalmanclip.errors import ConfigError

if TYPE_CHECKING:
    from kalmanclip.app.story import Shown
    from kalmanclip.data import LabelledImages
    from kalmanclip.estimator import KalmanCLIP
    from kalmanclip.prediction import Prediction

EXAMPLES = """
kalmanclip demo
kalmanclip demo --out somewhere/else --seed 1 --no-open
"""

TEMPLATE = "a centered satellite photo of {}."
ADAPTER, PAGE, TRAIN, TEST, UNKNOWN = "eurosat.adapter", "index.html", "train", "test", "flower.jpg"


def demo(
    out: Annotated[Path, typer.Option(help="The folder for what it makes.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Of all that is random.")] = 0,
    open_page: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open its page in the browser. Default: on a desktop.")
    ] = None,
    tests: Annotated[int | None, typer.Option(hidden=True, min=1)] = None,
) -> None:
    """See it work: learn what ten kinds of land look like from space, from 16 pictures each, offline."""
    with writable_folder(out):
        run(out, seed, tests)
    if _desktop() if open_page is None else open_page:
        typer.launch(str(out / PAGE))


def sample(tests: int | None = None) -> tuple[LabelledImages, LabelledImages]:
    """Return pictures to learn from, 16 of each class, and others to test on; ``tests``: only so many of each class."""
    from kalmanclip.data import read_folder

    folder = Path(str(resources.files("kalmanclip.data") / "eurosat"))
    train = read_folder(folder / "train")
    test = read_folder(folder / "test", train.class_names)
    seen = [0] * len(train.class_names)
    kept = []
    for i, label in enumerate(test.labels):
        seen[label] += 1
        if tests is None or seen[label] <= tests:
            kept.append(i)
    return train, test.subset(kept)


def run(out: Path, seed: int = 0, tests: int | None = None) -> tuple[float, float]:
    """Run the demo with so many test pictures of each class; return the accuracy before and after."""
    with waiting("Loading"):
        import numpy as np
        from PIL import Image
        from sklearn.datasets import load_sample_image

        from kalmanclip.app.story import Story, story_html
        from kalmanclip.data import fill
        from kalmanclip.errors import DataError
        from kalmanclip.estimator import KalmanCLIP
        from kalmanclip.files import write_atomic

    started = time.monotonic()
    if any(out.iterdir()) and not (out / ADAPTER).is_dir():
        raise ConfigError(f"{out} has other things in it. Choose another folder with --out.")
    train, test = sample(tests)
    shots, classes = train.counts()[0], len(train.class_names)
    clf = KalmanCLIP("tiny", templates=[TEMPLATE], seed=seed).set_classes(train.class_names)

    _step(1, "The task")
    say(
        f"{len(train)} satellite pictures to learn from, {shots} of each of {classes} kinds of land; "
        f"{len(test)} others to test on."
    )
    say(
        f'The embedded CLIP "tiny" compares each with a sentence per class: "{fill(TEMPLATE, train.class_names[0])[0]}"'
    )

    _step(2, "Before: zero-shot")
    with bars() as progress:
        before = clf.score(test, progress=progress)
    say(f"Accuracy {percent(before)}. Guessing would give {percent(1 / classes)}.")

    _step(3, "Learn: a Gaussian belief about what the pictures add to each class's sentence")
    with bars() as progress:
        clf.fit(train, progress=progress)
    expected = expected_facts(clf.expected_accuracy_)
    facts([*fit_facts(clf.diagnostics_), *expected])

    _step(4, "After")
    with bars() as progress:
        prediction = clf.predict_full(test.sources, progress=progress)
    after = float((prediction.at_mean.argmax(dim=1).numpy() == np.array(test.labels)).mean())
    say(f"Accuracy {percent(after)}, from {percent(before)} before.", style="bold green")
    say("A few of the test pictures. Open: what more training pictures could settle, where 100 % is a pure guess.")
    some = random.Random(seed).sample(range(len(test)), min(6, len(test)))
    table = listing("shows", "predicted", "probability", "open", "", right=("probability", "open"))
    for i in some:
        truth, guess = test.class_names[test.labels[i]], str(prediction.labels[i])
        share = float(prediction.epistemic[i]) / float(np.log(classes))
        row = (truth, guess, percent(float(prediction.confidence[i])), percent(share))
        table.add_row(*row, "" if guess == truth else "wrong")
    say(table)

    _step(5, "A picture of something else")
    Image.fromarray(load_sample_image(UNKNOWN)).save(out / UNKNOWN, quality=90)
    flower = clf.predict_full([out / UNKNOWN])
    flagged = "none of these" if flower.is_ood is not None and bool(flower.is_ood[0]) else str(flower.labels[0])
    mistaken = 0.0 if prediction.is_ood is None else float(prediction.is_ood.double().mean())
    say(f"{out / UNKNOWN}, a flower: {flagged}. Of the test pictures, {percent(mistaken)} are called so by mistake.")

    clf.save(out / ADAPTER)
    for name, images in ((TRAIN, train), (TEST, test)):
        shutil.rmtree(out / name, ignore_errors=True)  # of an earlier run
        for source in images.sources:
            target = out / name / Path(str(source)).parent.name / Path(str(source)).name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(source), target)
    commands = (
        (command_line("evaluate", out / ADAPTER, out / TEST), "the same accuracy, class by class"),
        (command_line("predict", out / ADAPTER, out / UNKNOWN, out / TEST / "River"), "single pictures"),
        (command_line("app", out / ADAPTER, "--images", out / TRAIN, "--test", out / TEST), "the same in the browser"),
        (command_line("fit", "PHOTOS", "-o", "mine.adapter"), "your own pictures: one folder per class in PHOTOS"),
    )
    with waiting("Drawing"):
        told = [
            ("before, zero-shot", percent(before)),
            (f"after {shots} pictures of each class", percent(after)),
            *expected,
            ("called nothing it knows by mistake", percent(mistaken)),
        ]
        lines = "\n".join(f"{command}   # {what}" for command, what in commands)
        story = Story(told, _shown(clf, prediction, test, out / UNKNOWN), prediction, test.labels, lines)
        title = f"{shots} satellite pictures of each of {classes} kinds of land"
        write_atomic(out / PAGE, story_html(title, story), DataError)
    _step(6, f"Done in {time.monotonic() - started:.0f} s")
    say(f"{out / PAGE} shows all this, with pictures and their uncertainty.")
    suggest(*commands)
    return before, after


def _step(number: int, title: str) -> None:
    say()
    say(f"{number}. {title}", style="bold cyan")


def _shown(clf: KalmanCLIP, prediction: Prediction, test: LabelledImages, unknown: Path) -> list[Shown]:
    """Return answers about the surest and the least sure test picture, the surest mistake, and the unknown picture."""
    from kalmanclip.app.images import Gallery, read_upload
    from kalmanclip.app.service import answer
    from kalmanclip.app.story import Shown

    sure = prediction.confidence.double()
    wrong = sure.clone()
    for i, label in enumerate(test.labels):
        if test.class_names[label] == str(prediction.labels[i]):
            wrong[i] = -1
    picks: list[tuple[str, Any]] = [
        ("The surest answer", test.sources[int(sure.argmax())]),
        ("The least sure", test.sources[int(sure.argmin())]),
    ]
    if float(wrong.max()) > 0:
        i = int(wrong.argmax())
        picks.append((f"The surest mistake: it is {test.class_names[test.labels[i]]}", test.sources[i]))
    picks.append(("Something else", unknown))
    gallery = Gallery(Path(str(resources.files("kalmanclip.data") / "eurosat" / "train")))
    shown = []
    for title, source in picks:
        upload = read_upload(Path(str(source)))
        shown.append(Shown(title, upload, answer(clf, upload, gallery)))
    return shown


def _desktop() -> bool:
    """Return whether somebody watches who has a browser with windows."""
    windows = sys.platform in ("win32", "darwin") or bool({"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ))
    return sys.stdout.isatty() and windows

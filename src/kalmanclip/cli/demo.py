"""``kalmanclip demo``: 16 handwritten digits of each kind teach the embedded CLIP what ten words look like, offline.

It shows the path, it is not a benchmark: that the digits are drawn in dark ink was decided by looking at such images.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    from kalmanclip.data import ImageSource, LabelledImages
    from kalmanclip.estimator import KalmanCLIP
    from kalmanclip.plots import Example

EXAMPLES = """
kalmanclip demo
kalmanclip demo --out somewhere/else --seed 1
"""

SHOTS = 16
SIDE = 64
TEMPLATE = "a photo of the number {}."
ADAPTER, PICTURE, TEST = "digits.adapter", "predictions.png", "test"


def demo(
    out: Annotated[Path, typer.Option(help="The folder for what it makes.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Draws the images it learns from.")] = 0,
    tests: Annotated[int, typer.Option(hidden=True, min=1)] = 50,
) -> None:
    """See it work: learn handwritten digits from 16 examples each, offline, in less than a minute."""
    with writable_folder(out):
        run(out, seed, tests)


def digits(seed: int, tests: int) -> tuple[LabelledImages, LabelledImages]:
    """Return images to learn from, 16 of each digit, and others to test on; both drawn with the seed."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    from kalmanclip.data import LabelledImages, sample_shots

    data = load_digits()
    # 8 x 8 values from 0 to 16, bright on dark, become a smooth picture of dark ink on white paper
    papers = (Image.fromarray((255 - pixels * (255 / 16)).astype(np.uint8)) for pixels in data.images)
    sources: list[ImageSource] = [np.asarray(paper.resize((SIDE, SIDE), Image.Resampling.BICUBIC)) for paper in papers]
    images = LabelledImages(sources, list(data.target), list(map(str, data.target_names)))
    train = sample_shots(images, SHOTS, seed)
    taken = set(map(id, train.sources))
    rest = images.subset(i for i, source in enumerate(images.sources) if id(source) not in taken)
    return train, sample_shots(rest, tests, seed)


def run(out: Path, seed: int = 0, tests: int = 50) -> tuple[float, float]:
    """Run the demo with so many test images per class; return the accuracy before and after."""
    with waiting("Loading"):
        from kalmanclip.data import fill
        from kalmanclip.estimator import KalmanCLIP
        from kalmanclip.plots import draw_predictions

    started = time.monotonic()
    if any(out.iterdir()) and not (out / ADAPTER).is_dir():
        raise ConfigError(f"{out} has other things in it. Choose another folder with --out.")
    train, test = digits(seed, tests)
    clf = KalmanCLIP("tiny", templates=[TEMPLATE], seed=seed).set_classes(train.class_names)

    _step(1, "The task")
    say(f"{len(train)} images to learn from ({SHOTS} of each handwritten digit), {len(test)} others to test on.")
    say(f'The embedded CLIP "tiny" compares each image with ten sentences: "{fill(TEMPLATE, "0")[0]}" and so on.')

    _step(2, "Before: zero-shot")
    with bars() as progress:
        before = clf.score(test, progress=progress)
    say(f"Accuracy {percent(before)}. Guessing would give 10 %: the small model does not know digits by name.")

    _step(3, "Learn: a Gaussian belief about what the images add to each class's sentence")
    with bars() as progress:
        clf.fit(train, progress=progress)
    facts([*fit_facts(clf.diagnostics_), *expected_facts(clf.expected_accuracy_)])

    _step(4, "After")
    with bars() as progress:
        after = clf.score(test, progress=progress)
    say(f"Accuracy {percent(after)}, from {percent(before)} before.", style="bold green")
    say(
        "A few of the test images. Lead: how far the first choice is ahead of the second, in standard deviations "
        "of the filter's belief; a small one means that the filter is unsure."
    )
    shown = _examples(clf, test, seed)
    table = listing("digit", "predicted", "probability", "lead", "", right=("probability", "lead"))
    for p in shown[:6]:
        verdict = "" if p.predicted == p.truth else "wrong"
        table.add_row(p.truth, p.predicted, percent(p.probability), f"{p.lead:.2f}", verdict)
    say(table)

    clf.save(out / ADAPTER)
    draw_predictions(out / PICTURE, shown)
    _write_folder(out / TEST, test)
    _step(5, f"Done in {time.monotonic() - started:.0f} s")
    say(f"{out / PICTURE} shows {len(shown)} test images with predictions and uncertainty.")
    suggest(
        (command_line("evaluate", out / ADAPTER, out / TEST), "the same accuracy, class by class"),
        (command_line("predict", out / ADAPTER, out / TEST / "7", "--top", "3"), "single images"),
        (command_line("fit", "PHOTOS", "-o", "mine.adapter"), "your own images: one folder per class in PHOTOS"),
    )
    return before, after


def _step(number: int, title: str) -> None:
    say()
    say(f"{number}. {title}", style="bold cyan")


def _examples(clf: KalmanCLIP, test: LabelledImages, seed: int, count: int = 15) -> list[Example]:
    """Return a random handful of test images, right or wrong, with their predictions."""
    from kalmanclip.plots import examples

    some = test.subset(random.Random(seed).sample(range(len(test)), min(count, len(test))))
    return examples(clf.predict_full(some.sources), some.sources, some.labels)


def _write_folder(folder: Path, images: LabelledImages) -> None:
    """Write the test images as files, so that the other commands have something to work on."""
    import numpy as np
    from PIL import Image

    for old in folder.glob("?/???.png"):  # of an earlier run, perhaps with another seed
        old.unlink()
    for number, (image, label) in enumerate(zip(images.sources, images.labels, strict=True)):
        target = folder / images.class_names[label]
        target.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(image)).save(target / f"{number:03}.png")

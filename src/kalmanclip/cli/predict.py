"""``kalmanclip predict``: classes of images, for people or for programs."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kalmanclip.cli.common import Adapter, Device, Json, Precision, load, naming_bad_images, unreadable
from kalmanclip.cli.screen import bars, listing, note, percent, say
from kalmanclip.errors import ConfigError, ImageError

if TYPE_CHECKING:
    import numpy as np

    from kalmanclip.estimator import KalmanCLIP
    from kalmanclip.prediction import Prediction

EXAMPLES = """
kalmanclip predict pets.adapter new.jpg another.png
kalmanclip predict pets.adapter holiday/ --top 3 --skip-bad
kalmanclip predict pets.adapter holiday/ --uncertainty
kalmanclip predict pets.adapter holiday/ --false-alarms 0.01
kalmanclip predict pets.adapter holiday/ --sets 0.9
kalmanclip predict pets.adapter holiday/ --csv > predictions.csv
"""


def predict(
    adapter: Adapter,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES...", help="Files and folders.", show_default=False)],
    top: Annotated[int, typer.Option(help="How many classes to show for each image.", min=1)] = 2,
    uncertainty: Annotated[
        bool,
        typer.Option(
            "--uncertainty",
            help="Average over the filter's belief, and say what is left open, in nats: by what was learned from so "
            "few images (epistemic), by the image itself (aleatoric); the standard deviation of the first choice's "
            "logit, and its lead over the second in standard deviations (small: unsure). Takes longer.",
        ),
    ] = False,
    sets: Annotated[
        float | None,
        typer.Option(
            help="Also a set of classes that holds the true one with this probability, such as 0.9, by the "
            "probabilities at the mean of the belief; for adapters that were fitted with --calibrate.",
        ),
    ] = None,
    false_alarms: Annotated[
        float,
        typer.Option(help="Images that show nothing known are marked; so many of the others may be, by mistake."),
    ] = 0.05,
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV and nothing else.")] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out images that cannot be read; stderr names them.")
    ] = False,
    device: Device = None,
    precision: Precision = None,
) -> None:
    """Classify images."""
    if as_json and as_csv:
        raise ConfigError("Output is either --json or --csv. Give one of them.")
    wanted = Wanted(uncertainty, sets, false_alarms)
    clf = load(adapter, device, precision)
    from kalmanclip.data import read_images

    files, scores = _scores(clf, read_images(images), wanted, skip_bad)
    rows = [_row(clf.classes_, file, *score, top) for file, score in zip(files, scores, strict=True)]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    elif as_csv:
        _print_csv(rows)
    else:
        _print_table(rows, wanted)


@dataclass(frozen=True)
class Wanted:
    """What is asked for beside classes and probabilities.

    Attributes:
        uncertainty: what the belief leaves open.
        sets: the coverage of sets of classes; None: no sets.
        false_alarms: the share of familiar images that may be called unknown.
    """

    uncertainty: bool
    sets: float | None
    false_alarms: float

    def __post_init__(self) -> None:
        for name, share in (("--sets", self.sets), ("--false-alarms", self.false_alarms)):
            if share is not None and not 0 < share < 1:
                raise ConfigError(f"{name} is a share above 0 and below 1, not {share:g}.")


_UNCERTAINTY = ("epistemic", "aleatoric", "logit std", "lead")

Score = tuple["np.ndarray", dict[str, Any]]
"""Of one image: class probabilities (C,), and what else is known of it."""

_SEVERAL = " | "  # between the classes of a set


def _scores(clf: KalmanCLIP, files: list[Path], wanted: Wanted, skip_bad: bool) -> tuple[list[Path], list[Score]]:
    """The images that could be read, and their scores."""
    if wanted.sets is not None:
        import numpy as np

        clf.class_sets(np.empty((0, len(clf.classes_))), wanted.sets)  # before images are read: can it be promised?
    try:
        with naming_bad_images(files):
            return files, _predict(clf, files, wanted)
    except ImageError as problem:
        if not skip_bad:
            raise ImageError(f"{problem}\nWith --skip-bad such images are left out.") from problem
    bad = unreadable(files)
    for error in bad.values():
        note(f"Left out: {error}")
    good = [file for i, file in enumerate(files) if i not in bad]
    return good, _predict(clf, good, wanted)


def _predict(clf: KalmanCLIP, files: Sequence[Path], wanted: Wanted) -> list[Score]:
    threshold = clf.method.ood_threshold(wanted.false_alarms)
    more: dict[str, Sequence[Any]] = {}
    with bars() as progress:
        if threshold is not None:
            prediction = clf.method.predict(files, how="mean", false_alarms=wanted.false_alarms, progress=progress)
            probabilities = prediction.at_mean.numpy()
            assert prediction.is_ood is not None
            assert prediction.ood_score is not None
            more["unknown"] = prediction.is_ood.tolist()
            more["familiarity"] = (-prediction.ood_score).tolist()
        else:
            note("Images that show nothing known are not marked: that takes the default preset.")
            probabilities = clf.predict_proba(files, progress=progress)
        if wanted.sets is not None:
            more["set"] = clf.class_sets(probabilities, wanted.sets)  # promised for probabilities at the mean
        if wanted.uncertainty:
            averaged = clf.predict_distribution(files, progress=progress)
            probabilities = averaged.probabilities.numpy()
            more |= _uncertainty(averaged)
    return [(p, {name: column[i] for name, column in more.items()}) for i, p in enumerate(probabilities)]


def _uncertainty(averaged: Prediction) -> dict[str, Sequence[float]]:
    from kalmanclip.metrics import standardized_margin

    first = averaged.probabilities.argmax(dim=1, keepdim=True)
    return {
        "epistemic": averaged.epistemic.tolist(),
        "aleatoric": averaged.aleatoric.tolist(),
        "logit_std": averaged.std.gather(1, first).squeeze(1).tolist(),
        "lead": standardized_margin(averaged.mean.numpy(), averaged.std.numpy()).tolist(),
    }


def _row(names: list[str], file: Path, probabilities: Any, more: dict[str, Any], top: int) -> dict[str, Any]:
    order = (-probabilities).argsort(kind="stable")[:top]
    choices = [{"class": names[i], "probability": round(float(probabilities[i]), 6)} for i in order]
    rounded = {name: round(value, 6) if isinstance(value, float) else value for name, value in more.items()}
    return {"image": str(file), **choices[0], **rounded, "top": choices}


def _print_csv(rows: list[dict[str, Any]]) -> None:
    flat = []
    for row in rows:
        line = {name: value for name, value in row.items() if name != "top"}
        if "set" in line:
            line["set"] = _SEVERAL.join(line["set"])
        for rank, choice in enumerate(row["top"][1:], start=2):
            line |= {f"{name}_{rank}": value for name, value in choice.items()}
        flat.append(line)
    if flat:
        writer = csv.DictWriter(sys.stdout, fieldnames=list(flat[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(flat)


def _print_table(rows: list[dict[str, Any]], wanted: Wanted) -> None:
    ranks = range(2, 1 + max((len(row["top"]) for row in rows), default=1))
    others = [column for rank in ranks for column in (f"choice {rank}", f"probability {rank}")]
    flags = any("unknown" in row for row in rows)
    extra = _UNCERTAINTY if wanted.uncertainty else ()
    numbers = ["probability", *(c for c in others if c.startswith("probability")), *extra]
    told = [*(["known?"] if flags else []), *(["set"] if wanted.sets is not None else [])]
    table = listing("image", "class", "probability", *told, *extra, *others, right=numbers)
    for row in rows:
        cells = [row["image"], row["class"], percent(row["probability"])]
        cells += ["unknown" if row["unknown"] else ""] if flags else []
        covered = not row.get("unknown")  # a set promises nothing about images of nothing known
        cells += [_SEVERAL.join(row["set"]) if covered else "not covered"] if wanted.sets is not None else []
        cells += [f"{row[name.replace(' ', '_')]:.2f}" for name in extra]
        for choice in row["top"][1:]:
            cells += [choice["class"], percent(choice["probability"])]
        table.add_row(*cells)
    say(table)

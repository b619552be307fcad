"""``kalmanclip predict``: classes of images, for people or for programs."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kalmanclip.cli.common import Adapter, Device, Json, load, naming_bad_images, unreadable
from kalmanclip.cli.screen import bars, listing, note, percent, say
from kalmanclip.errors import ConfigError, ImageError

if TYPE_CHECKING:
    import numpy as np

    from kalmanclip.estimator import KalmanCLIP

EXAMPLES = """
kalmanclip predict pets.adapter new.jpg another.png
kalmanclip predict pets.adapter holiday/ --top 3 --skip-bad
kalmanclip predict pets.adapter holiday/ --uncertainty
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
            help="Also the standard deviation of the first choice's logit under the filter's belief, and the lead over "
            "the second choice in standard deviations (small: unsure). Takes longer.",
        ),
    ] = False,
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV and nothing else.")] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out images that cannot be read; stderr names them.")
    ] = False,
    device: Device = None,
) -> None:
    """Classify images."""
    if as_json and as_csv:
        raise ConfigError("Output is either --json or --csv. Give one of them.")
    clf = load(adapter, device)
    from kalmanclip.data import read_images

    files, scores = _scores(clf, read_images(images), uncertainty, skip_bad)
    rows = [_row(clf.classes_, file, *score, top) for file, score in zip(files, scores, strict=True)]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    elif as_csv:
        _print_csv(rows)
    else:
        _print_table(rows, uncertainty)


Score = tuple["np.ndarray", dict[str, float]]
"""Of one image: class probabilities (C,), and what is known of their uncertainty."""


def _scores(clf: KalmanCLIP, files: list[Path], uncertainty: bool, skip_bad: bool) -> tuple[list[Path], list[Score]]:
    """The images that could be read, and their scores."""
    try:
        with naming_bad_images(files):
            return files, _predict(clf, files, uncertainty)
    except ImageError as problem:
        if not skip_bad:
            raise ImageError(f"{problem}\nWith --skip-bad such images are left out.") from problem
    bad = unreadable(files)
    for error in bad.values():
        note(f"Left out: {error}")
    good = [file for i, file in enumerate(files) if i not in bad]
    return good, _predict(clf, good, uncertainty)


def _predict(clf: KalmanCLIP, files: Sequence[Path], uncertainty: bool) -> list[Score]:
    with bars() as progress:
        if not uncertainty:
            return [(p, {}) for p in clf.predict_proba(files, progress=progress)]
        logits = clf.predict_logits(files, progress=progress)
    from kalmanclip.metrics import lead

    mean, std = logits.mean.numpy(), logits.std.numpy()
    leads = lead(mean, std)
    return [
        (p, {"logit_std": float(std[i, mean[i].argmax()]), "lead": float(leads[i])})
        for i, p in enumerate(logits.mean.softmax(dim=1).numpy())
    ]


def _row(names: list[str], file: Path, probabilities: Any, more: dict[str, float], top: int) -> dict[str, Any]:
    order = (-probabilities).argsort(kind="stable")[:top]
    choices = [{"class": names[i], "probability": round(float(probabilities[i]), 6)} for i in order]
    return {"image": str(file), **choices[0], **{k: round(v, 6) for k, v in more.items()}, "top": choices}


def _print_csv(rows: list[dict[str, Any]]) -> None:
    flat = []
    for row in rows:
        line = {name: value for name, value in row.items() if name != "top"}
        for rank, choice in enumerate(row["top"][1:], start=2):
            line |= {f"{name}_{rank}": value for name, value in choice.items()}
        flat.append(line)
    if flat:
        writer = csv.DictWriter(sys.stdout, fieldnames=list(flat[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(flat)


def _print_table(rows: list[dict[str, Any]], uncertainty: bool) -> None:
    ranks = range(2, 1 + max((len(row["top"]) for row in rows), default=1))
    others = [column for rank in ranks for column in (f"choice {rank}", f"probability {rank}")]
    extra = ["logit std", "lead"] if uncertainty else []
    numbers = ["probability", *(c for c in others if c.startswith("probability")), *extra]
    table = listing("image", "class", "probability", *extra, *others, right=numbers)
    for row in rows:
        cells = [row["image"], row["class"], percent(row["probability"])]
        cells += [f"{row['logit_std']:.2f}", f"{row['lead']:.2f}"] if uncertainty else []
        for choice in row["top"][1:]:
            cells += [choice["class"], percent(choice["probability"])]
        table.add_row(*cells)
    say(table)

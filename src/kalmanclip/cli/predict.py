"""``kalmanclip predict``: classes of images, for people or for programs."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kalmanclip.cli.arguments import (
    Adapter,
    Device,
    Json,
    Precision,
    check_share,
    load,
    naming_bad_images,
    unreadable,
)
from kalmanclip.cli.console import bars, listing, note, percent, say
from kalmanclip.errors import ConfigError, ImageError

if TYPE_CHECKING:
    from kalmanclip.prediction import Prediction

EXAMPLES = """
kalmanclip predict pets.adapter new.jpg another.png
kalmanclip predict pets.adapter holiday/ --top 3 --skip-bad
kalmanclip predict pets.adapter holiday/ --uncertainty
kalmanclip predict pets.adapter holiday/ --false-alarms 0.01
kalmanclip predict pets.adapter holiday/ --sets 0.9
kalmanclip predict pets.adapter holiday/ --csv > predictions.csv
"""

_UNCERTAINTY = ("epistemic", "aleatoric", "logit std", "lead")
_SEPARATOR = " | "  # between the classes of a set


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
    check_share("sets", sets)
    check_share("false-alarms", false_alarms)
    clf = load(adapter, device, precision)
    from kalmanclip.data import read_images

    if clf.ood_threshold(false_alarms) is None:
        note("Images that show nothing known are not marked: that takes the default preset.")
    files = read_images(images)

    def passed(files: Sequence[Path]) -> Prediction:
        how = "linearised" if uncertainty else "mean"
        with bars() as progress:
            return clf.predict_full(files, how=how, coverage=sets, false_alarms=false_alarms, progress=progress)

    try:
        with naming_bad_images(files):
            prediction = passed(files)
    except ImageError as problem:
        if not skip_bad:
            raise ImageError(f"{problem}\nWith --skip-bad such images are left out.") from problem
        bad = unreadable(files)
        for error in bad.values():
            note(f"Left out: {error}")
        files = [file for i, file in enumerate(files) if i not in bad]
        prediction = passed(files)
    rows = _rows(files, prediction, top, uncertainty)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    elif as_csv:
        _print_csv(rows)
    else:
        _print_table(rows, uncertainty)


def _rows(files: Sequence[Path], prediction: Prediction, top: int, uncertainty: bool) -> list[dict[str, Any]]:
    """Return what is printed of each image, in the order of the columns."""
    columns: dict[str, Sequence[Any]] = {}
    if prediction.is_ood is not None and prediction.ood_score is not None:
        columns |= {"is_ood": prediction.is_ood.tolist(), "ood_score": prediction.ood_score.tolist()}
    if prediction.sets is not None:
        columns["set"] = prediction.sets
    p = prediction.probabilities if uncertainty else prediction.at_mean
    if uncertainty:
        from kalmanclip.metrics import standardized_margin

        first = p.argmax(dim=1, keepdim=True)
        columns |= {
            "epistemic": prediction.epistemic.tolist(),
            "aleatoric": prediction.aleatoric.tolist(),
            "logit_std": prediction.std.gather(1, first).squeeze(1).tolist(),
            "lead": standardized_margin(prediction.mean.numpy(), prediction.std.numpy()).tolist(),
        }
    order = p.argsort(dim=1, descending=True, stable=True)[:, :top].tolist()
    rows = []
    for i, file in enumerate(files):
        choices = [{"class": prediction.class_names[c], "probability": round(float(p[i, c]), 6)} for c in order[i]]
        values = {name: column[i] for name, column in columns.items()}
        rounded = {name: round(value, 6) if isinstance(value, float) else value for name, value in values.items()}
        rows.append({"image": str(file), **choices[0], **rounded, "top": choices})
    return rows


def _print_csv(rows: list[dict[str, Any]]) -> None:
    flat = []
    for row in rows:
        line = {name: value for name, value in row.items() if name != "top"}
        if "set" in line:
            line["set"] = _SEPARATOR.join(line["set"])
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
    flags, sets = (any(name in row for row in rows) for name in ("is_ood", "set"))
    extra = _UNCERTAINTY if uncertainty else ()
    numbers = ["probability", *(c for c in others if c.startswith("probability")), *extra]
    table = listing(
        *("image", "class", "probability", *["known?"] * flags, *["set"] * sets, *extra, *others), right=numbers
    )
    for row in rows:
        cells = [row["image"], row["class"], percent(row["probability"])]
        cells += ["unknown" if row["is_ood"] else ""] if flags else []
        covered = not row.get("is_ood")  # a set promises nothing about images of nothing known
        cells += [_SEPARATOR.join(row["set"]) if covered else "not covered"] if sets else []
        cells += [f"{row[name.replace(' ', '_')]:.2f}" for name in extra]
        for choice in row["top"][1:]:
            cells += [choice["class"], percent(choice["probability"])]
        table.add_row(*cells)
    say(table)

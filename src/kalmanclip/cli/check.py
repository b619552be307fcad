"""``kalmanclip check``: pictures whose label is probably wrong. Reads only; no file is moved or changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kalmanclip.cli.arguments import Device, Json, Precision, check_device, check_share, naming_bad_images
from kalmanclip.cli.console import bars, listing, note, percent, say, say_csv, waiting
from kalmanclip.cli.fit import read_source
from kalmanclip.cli.lean import import_models
from kalmanclip.errors import ConfigError

if TYPE_CHECKING:
    from kalmanclip.data import LabelledImages
    from kalmanclip.prediction import LabelCheck

EXAMPLES = """
kalmanclip check photos/
kalmanclip check photos/ --threshold 0.2
kalmanclip check photos.csv --model ViT-B-16:openai
kalmanclip check photos/ --csv > suspects.csv
"""

_SHOWN = 40


def check(
    data: Annotated[
        str,
        typer.Argument(
            metavar="PHOTOS", help="What `kalmanclip fit` would learn from, with classes.", show_default=False
        ),
    ],
    threshold: Annotated[
        float, typer.Option(help="List the pictures whose label is wrong with a larger probability than this.")
    ] = 0.5,
    model: Annotated[
        str | None, typer.Option(help="The CLIP to judge by: tiny (embedded, the default), ViT-B-16:openai, ...")
    ] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(help='A prompt such as "a photo of a {}."; give several and they are averaged.'),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random crops.")] = 0,
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV and nothing else.")] = False,
    device: Device = None,
    precision: Precision = None,
) -> None:
    """List pictures whose label is probably wrong.

    Each picture is judged by a classifier that has learned from the others. No file is moved or changed. To check
    whether the files of a known data set are complete and readable, see kalmanclip data check.
    """
    if as_json and as_csv:
        raise ConfigError("Output is either --json or --csv. Give one of them.")
    check_share("threshold", threshold)
    source = read_source(data)
    if source.labelled is None:
        raise ConfigError("Captions have no classes to check: give a folder of class folders, or a list with classes.")
    with waiting("Loading the model"):
        import_models(model or "tiny")
        check_device(device, precision)
        from kalmanclip.estimator import KalmanCLIP

        templates = template or source.templates
        options: dict[str, Any] = {"templates": templates} if templates else {}
        clf = KalmanCLIP(model or "tiny", preset="residuals", seed=seed, device=device, precision=precision, **options)
        clf.load_backbone()
    with bars() as progress, naming_bad_images(source.labelled.sources):
        found = clf.check_labels(source.labelled, progress=progress)
    rows = _rows(source.labelled, found, threshold)
    if as_json:
        typer.echo(json.dumps({"images": len(found.labels), "wrong": round(found.rate, 6), "suspects": rows}, indent=2))
    elif as_csv:
        say_csv(rows, list(_COLUMNS))
    else:
        _show(rows, found, data)


_COLUMNS = ("image", "label", "wrong", "likely", "probability")


def _rows(images: LabelledImages, found: LabelCheck, threshold: float) -> list[dict[str, Any]]:
    """Return what is printed of each suspect picture, the surest first."""
    from kalmanclip.data.images import image_identity

    rows = []
    for i in found.suspects(threshold):
        source = images.sources[i]
        name = str(source) if isinstance(source, str | Path) else image_identity(source)
        label, likely = (found.class_names[labels[i]] for labels in (found.labels, found.likely))
        numbers = (round(float(column[i]), 6) for column in (found.wrong, found.likely_probability))
        wrong, probability = numbers
        rows.append(dict(zip(_COLUMNS, (name, label, wrong, likely, probability), strict=True)))
    return rows


def _show(rows: list[dict[str, Any]], found: LabelCheck, data: str) -> None:
    if rows:
        table = listing("picture", "label", "wrong", "rather", "probability", right=("wrong", "probability"))
        folder = Path(data)
        for row in rows[:_SHOWN]:
            path = Path(row["image"])
            name = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else row["image"]
            table.add_row(name, row["label"], percent(row["wrong"]), row["likely"], percent(row["probability"]))
        say(table)
    if len(rows) > _SHOWN:
        note(f"and {len(rows) - _SHOWN} more; --csv and --json list all of them")
    count = f"{len(rows)} of {len(found.labels)} pictures are" if len(rows) != 1 else "One picture is"
    say(f"{count} suspect. About {percent(found.rate)} of all labels are wrong, as far as this model can tell.")

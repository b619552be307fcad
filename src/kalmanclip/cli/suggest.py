"""``kalmanclip suggest``: which images to label next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kalmanclip.cli.arguments import Adapter, Device, Json, Precision, load, naming_bad_images
from kalmanclip.cli.console import bars, command_line, listing, percent, say, say_csv
from kalmanclip.cli.console import suggest as suggest_commands
from kalmanclip.errors import ConfigError

EXAMPLES = """
kalmanclip suggest pool/ pets.adapter -n 20
kalmanclip suggest pool/ pets.adapter --csv > to_label.csv
kalmanclip suggest pool/ pets.adapter --by random
"""


def suggest(
    pool: Annotated[Path, typer.Argument(metavar="POOL", help="A folder of images without labels.")],
    adapter: Adapter,
    n: Annotated[int, typer.Option("-n", "--number", help="How many images to suggest.", min=1)] = 20,
    by: Annotated[
        str | None,
        typer.Option(
            help="filter, epig, batchbald, bald, entropy, margin or random; left out, filter with class residuals, "
            "else batchbald."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of what is random.")] = 0,
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV and nothing else.")] = False,
    device: Device = None,
    precision: Precision = None,
) -> None:
    """Say which images to label next, so that few labels teach the adapter most.

    The first is the one to label first. Images that it has learned from already, by folder and file name, are left out.
    """
    if as_json and as_csv:
        raise ConfigError("Output is either --json or --csv. Give one of them.")
    clf = load(adapter, device, precision)
    from kalmanclip.data import read_images
    from kalmanclip.methods.suggest import usual_acquisition

    files = read_images([pool])
    by = by or usual_acquisition(clf.method_)
    with naming_bad_images(files), bars() as progress:
        found = clf.suggest(files, n, by=by, seed=seed, progress=progress)
    names = clf.class_names_
    rows: list[dict[str, Any]] = []
    for position, score in zip(found.positions, found.scores, strict=True):
        probability, best = found.probabilities[position].max(dim=0)
        guess = {"class": names[int(best)], "probability": round(float(probability), 6)}
        rows.append({"image": str(files[position]), **guess, "score": round(score, 6)})
    summary = {"pool": len(files), "unlabelled": int(found.unlabelled.sum())}
    if as_json:
        accuracy = round(found.expected_accuracy, 6)
        typer.echo(json.dumps({"by": by, **summary, "expected_accuracy": accuracy, "suggestions": rows}, indent=2))
    elif as_csv:
        say_csv(rows, ["image", "class", "probability", "score"])
    else:
        table = listing("", "image", "guess so far", "probability", "score", right=("", "probability", "score"))
        for rank, row in enumerate(rows, start=1):
            table.add_row(str(rank), row["image"], row["class"], percent(row["probability"]), f"{row['score']:.3g}")
        say(table)
        say(
            f"Of {summary['unlabelled']} images without a label it expects to tell {percent(found.expected_accuracy)} "
            "right."
        )
        suggest_commands(
            (command_line("app", adapter, "--pool", pool), "label them with a click; it learns at once"),
        )

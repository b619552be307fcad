"""``kalmanclip evaluate``: how good an adapter is on labelled images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kalmanclip.cli.common import Adapter, Device, Json, load, naming_bad_images
from kalmanclip.cli.screen import bars, facts, listing, note, percent, say

if TYPE_CHECKING:
    from kalmanclip.metrics import ClassResult

EXAMPLES = """
kalmanclip evaluate pets.adapter test/
kalmanclip evaluate pets.adapter test/ -o confusion.png
kalmanclip evaluate pets.adapter test/ --json > result.json
"""


def evaluate(
    adapter: Adapter,
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="One folder per class, with images that the adapter was not fitted to.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Draw the confusion matrix into this file (.png, .pdf, .svg)."),
    ] = None,
    as_json: Json = False,
    device: Device = None,
) -> None:
    """Measure the accuracy on a labelled folder."""
    if output is not None:
        from kalmanclip.pictures import check_picture_path

        check_picture_path(output)
    clf = load(adapter, device)
    from kalmanclip.data import read_folder
    from kalmanclip.metrics import accuracy, confusion_matrix, per_class

    test = read_folder(folder, clf.classes_)
    with bars() as progress, naming_bad_images(test.sources):
        tuned, untuned = clf.method.logits_and_zero_shot(test.sources, progress)
    predicted = tuned.argmax(dim=1).numpy()
    before = accuracy(test.labels, untuned.argmax(dim=1).numpy())
    matrix = confusion_matrix(test.labels, predicted, len(clf.classes_))
    result = {"images": len(test), "accuracy": accuracy(test.labels, predicted), "zero_shot_accuracy": before}
    rows = _class_rows(clf.classes_, per_class(matrix))
    if as_json:
        typer.echo(json.dumps({**result, "classes": rows, "confusion_matrix": matrix.tolist()}, indent=2))
    else:
        _print(result, rows)
    if output is not None:
        from kalmanclip.pictures import draw_confusion

        draw_confusion(output, matrix, clf.classes_)
        note(f"Confusion matrix: {output}")


def _class_rows(names: list[str], results: list[ClassResult]) -> list[dict[str, Any]]:
    return [
        {
            "class": name,
            "images": r.images,
            "accuracy": r.accuracy,
            "confused_with": None if r.confused_with is None else names[r.confused_with],
            "times": r.times,
        }
        for name, r in zip(names, results, strict=True)
    ]


def _print(result: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    untuned = percent(result["zero_shot_accuracy"])
    facts(
        [
            ("accuracy", f"{percent(result['accuracy'])} of {result['images']} images"),
            ("zero-shot", f"{untuned} (the same backbone and prompts, untuned)"),
        ]
    )
    table = listing("class", "images", "accuracy", "mostly taken for", right=("images", "accuracy"))
    for row in rows:
        confusion = f"{row['confused_with']} ({row['times']})" if row["times"] else ""
        table.add_row(row["class"], str(row["images"]), percent(row["accuracy"]), confusion)
    say(table)

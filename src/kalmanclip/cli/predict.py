"""``kalmanclip predict``: classes of images, for people or for programs."""

from __future__ import annotations

import json
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
    load_method,
    naming_bad_images,
    unreadable,
)
from kalmanclip.cli.console import bars, listing, note, percent, say, say_csv, shortened
from kalmanclip.errors import ConfigError, ImageError
from kalmanclip.process import shares_processors

if TYPE_CHECKING:
    from kalmanclip.prediction import Prediction

EXAMPLES = """
kalmanclip predict pets.adapter new.jpg another.png
kalmanclip predict pets.adapter holiday/ --top 3 --skip-bad
kalmanclip predict pets.adapter holiday/ --uncertainty
kalmanclip predict pets.adapter holiday/ --false-alarms 0.01
kalmanclip predict pets.adapter holiday/ --false-alarms 0
kalmanclip predict pets.adapter holiday/ --sets 0.9
kalmanclip predict pets.adapter holiday/ --csv > predictions.csv
kalmanclip predict pets.adapter archive/ --ray auto -o predictions/
"""

_UNCERTAINTY = ("epistemic", "aleatoric", "logit std", "lead")
_SEPARATOR = " | "  # between the classes of a set


def predict(
    adapter: Adapter,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES...", help="Files and folders.", show_default=False)],
    top: Annotated[
        int | None,
        typer.Option(help="How many classes to show for each image. Default: 1 on the screen, else 2.", min=1),
    ] = None,
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
            "probabilities at the mean of the belief. Takes two training images of a class, or fit --calibrate.",
        ),
    ] = None,
    false_alarms: Annotated[
        float,
        typer.Option(
            help="An image that shows nothing known is answered 'none of these'; so may be this share of the others, "
            "by mistake. 0: every image gets a class.",
        ),
    ] = 0.05,
    show_all: Annotated[
        bool,
        typer.Option("--all", help="Whole paths, the score of unknown images, and two classes for each image."),
    ] = False,
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV and nothing else.")] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out images that cannot be read; stderr names them.")
    ] = False,
    device: Device = None,
    precision: Precision = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Very many images, on a Ray cluster: auto (the one this machine belongs to), HOST:PORT, or local "
            "(started here, for this command). Takes --output. An image that cannot be read is a row with an error. "
            "Given again, the command does what is not done yet.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="With --ray: the folder for predictions, JSON lines in parts."),
    ] = None,
    part_size: Annotated[int, typer.Option(help="With --ray: images of a part.", min=1)] = 1000,
    workers: Annotated[
        int | None, typer.Option(help="With --ray: processes, each with a model. Default: what fits.", min=1)
    ] = None,
    cpus_per_run: Annotated[int, typer.Option(help="With --ray: processor threads of each.", min=1)] = 1,
    gpus_per_run: Annotated[float, typer.Option(help="With --ray: GPUs of each, such as 0.5.")] = 0.0,
) -> None:
    """Classify images.

    The column "doubt" says "unsure" where the class has less than half of the probability, and "unknown" where the
    image shows nothing like the training images.
    """
    if (ray is None) != (output is None):
        raise ConfigError("--ray writes many files and takes a folder for them, --output, which is for --ray alone.")
    if ray is not None and (as_json or as_csv or device is not None):
        raise ConfigError(
            "With --ray leave out --json and --csv (it writes JSON lines), and --device (--gpus-per-run)."
        )
    if as_json and as_csv:
        raise ConfigError("Output is either --json or --csv. Give one of them.")
    check_share("sets", sets)
    check_share("false-alarms", false_alarms or None)
    if ray is not None and output is not None:
        from kalmanclip.bulk import Parts, Task, predict_on_ray
        from kalmanclip.data import read_images
        from kalmanclip.experiments.ray_workers import check_share as check_share_of_gpu

        check_share_of_gpu(gpus_per_run)
        options = {
            "how": "linearised" if uncertainty else "mean",
            "coverage": sets,
            "false_alarms": false_alarms or None,
        }
        task = Task(str(adapter.resolve()), precision, top or 2, options)
        parts = Parts(
            output,
            lambda: read_images(images),
            task.describe() | {"sources": [str(path.absolute()) for path in images]},
            part_size,
        )
        with bars() as progress:
            damaged = predict_on_ray(parts, task, ray, cpus_per_run, gpus_per_run, workers, progress)
        note(f"{parts.count} images in {len(parts)} parts in {output}; {damaged} of those done now cannot be read.")
        return
    method = load_method(adapter, device, precision)
    from kalmanclip.data import read_images
    from kalmanclip.prediction import records

    if false_alarms and method.ood_threshold(false_alarms) is None:
        note(
            "Every image gets a class: 'none of these' takes 3 training images. Or fit again: it may be an old adapter."
        )
    files = read_images(images)

    def passed(files: Sequence[Path]) -> Prediction:
        how = "linearised" if uncertainty else "mean"
        with bars() as progress:
            rate = false_alarms or None
            classify = shares_processors(method.predict)
            return classify(files, how=how, coverage=sets, false_alarms=rate, progress=progress)

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
    rows = records(list(map(str, files)), prediction, top or 2, uncertainty)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    elif as_csv:
        _print_csv(rows)
    else:
        _print_table(rows, uncertainty, show_all, choices=top or (2 if show_all else 1))


def _print_csv(rows: list[dict[str, Any]]) -> None:
    flat = []
    for row in rows:
        line = {name: value for name, value in row.items() if name != "top"}
        if "set" in line:
            line["set"] = _SEPARATOR.join(line["set"])
        for rank, choice in enumerate(row["top"][1:], start=2):
            shown = dict.fromkeys(choice) if row.get("is_ood") else choice
            line |= {f"{name}_{rank}": value for name, value in shown.items()}
        flat.append(line)
    if flat:
        say_csv(flat, list(flat[0]))


def _print_table(rows: list[dict[str, Any]], uncertainty: bool, everything: bool, choices: int) -> None:
    ranks = range(2, 1 + min(choices, max((len(row["top"]) for row in rows), default=1)))
    others = [column for rank in ranks for column in (f"choice {rank}", f"probability {rank}")]
    sets, scores = (any(name in row for row in rows) for name in ("set", "ood_score"))
    extra = _UNCERTAINTY if uncertainty else ()
    score = ["OOD score"] * (scores and everything)
    numbers = ["probability", *(c for c in others if c.startswith("probability")), *score, *extra]
    head = ("image", "class", "probability", "doubt", *["set"] * sets, *score, *extra, *others)
    table = listing(*head, right=numbers)
    for row in rows:
        known = row["probability"] is not None
        cells = [row["image"] if everything else shortened(row["image"]), row["class"]]
        cells += [percent(row["probability"]) if known else "", _doubt(row["probability"])]
        cells += [_SEPARATOR.join(row["set"])] if sets else []
        cells += [f"{row['ood_score']:.2f}"] if score else []
        cells += [f"{row[name.replace(' ', '_')]:.2f}" for name in extra]
        for choice in row["top"][1:choices]:
            cells += [choice["class"], percent(choice["probability"])] if known else ["", ""]
        table.add_row(*cells)
    say(table)


def _doubt(probability: float | None) -> str:
    from kalmanclip.prediction import SURE

    return "unknown" if probability is None else "unsure" if probability < SURE else ""

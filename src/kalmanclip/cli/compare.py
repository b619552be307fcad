"""``kalmanclip compare``: methods side by side on the same few images, resumable after every run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from kalmanclip.cli.common import Device, check_device, writable_folder
from kalmanclip.cli.guard import INTERRUPTED
from kalmanclip.cli.screen import bars, console, listing, note, say, waiting
from kalmanclip.errors import ConfigError
from kalmanclip.files import read_json

if TYPE_CHECKING:
    from kalmanclip.experiments import Grid

EXAMPLES = """
kalmanclip compare --data photos/ -o results/
kalmanclip compare --data oxford_pets,dtd --root ~/data --model ViT-B-16:openai --workers 2 -o results/
kalmanclip compare --data photos/ --methods kalman,gda --shots 1,2,4,8,16 --seeds 1,2,3 -o results/
"""

SHOTS = ("1", "2", "4", "8", "16")
SEEDS = ("1", "2", "3")


def compare(
    data: Annotated[
        list[str],
        typer.Option(
            help="A data set's name (kalmanclip data list), or a folder with train/ and test/ (and val/, if any) of "
            "class folders. Several: repeat the option, or separate by commas.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder for results; finished runs in it are kept.")
    ],
    methods: Annotated[list[str] | None, typer.Option(help="Which methods, several like --data. Default: all.")] = None,
    shots: Annotated[
        list[str] | None, typer.Option(help=f"Training images per class. Default: {','.join(SHOTS)}.")
    ] = None,
    seeds: Annotated[list[str] | None, typer.Option(help=f"One draw each. Default: {','.join(SEEDS)}.")] = None,
    model: Annotated[str, typer.Option(help="The CLIP: tiny (embedded), ViT-B-16:openai, RN50:openai, ...")] = "tiny",
    template: Annotated[
        list[str] | None,
        typer.Option(help='A prompt such as "a photo of a {}."; repeat to average several. Default: the data set\'s.'),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help='A JSON file with options by method, such as {"kalman": {"epochs": 10}}.'),
    ] = None,
    root: Annotated[Path | None, typer.Option(help="Where the named data sets lie. Default: $KALMANCLIP_DATA.")] = None,
    workers: Annotated[int, typer.Option(help="Processes, each with its own copy of the model.", min=1)] = 1,
    device: Device = None,
) -> None:
    """Compare methods on the same draws of the same data sets.

    Every run is kept as soon as it is finished: after an interruption the same command goes on, and with more shots,
    seeds or methods it only does what is new. Methods that search options choose on at most four validation images per
    class; test images are only measured on.
    """
    with waiting("Loading"):
        from kalmanclip.encoders.backbone import architecture_of
        from kalmanclip.experiments import Store, find_sources, plan, run_all, write_report
        from kalmanclip.methods import METHODS

    options = {} if config is None else read_json(config, ConfigError)
    if not isinstance(options, dict):
        raise ConfigError(f"{config} must hold a table of options by method, such as {{'kalman': {{'epochs': 10}}}}.")
    architecture_of(model)  # a mistyped name is found before data sets are read
    check_device(device)
    chosen = _words(methods) or list(METHODS)
    numbers = _integers("shots", shots or SHOTS), _integers("seeds", seeds or SEEDS)
    with waiting("Looking for data sets"):
        plan([], chosen, *numbers, model, options)  # as are other mistakes
        sources = find_sources(_paths(data), root, template)
    runs = plan(sources, chosen, *numbers, model, options)
    with writable_folder(output):
        store = Store(output)
        before = sum(store.finished(run) is not None for run in runs)
        if before:
            note(f"{before} of {len(runs)} runs are finished already.")
        try:
            with bars() as show:
                records = run_all(
                    runs,
                    sources,
                    store,
                    device or _best_device(),
                    workers,
                    lambda done, total: show("runs", done, total),
                )
        except KeyboardInterrupt:
            done = sum(store.finished(run) is not None for run in runs)
            note(f"Stopped. {done} of {len(runs)} runs are kept in {output}; the same command goes on.")
            raise typer.Exit(INTERRUPTED) from None
        with waiting("Drawing"):
            grid = write_report(output, records)
    _print(grid)
    note(f"Also in {output}: table.csv, table.md, results.json, figure.png, figure.svg")
    _warn_of_mixed_code(records)
    if _print_failures(records):
        raise typer.Exit(1)


def _print(grid: Grid) -> None:
    say("Accuracy in %: mean ± standard deviation over seeds")
    whole, screen = _table(grid, grid.columns), console()
    if screen.measure(whole, options=screen.options.update(max_width=10_000)).maximum <= screen.width:
        say(whole)
        return
    for name in dict.fromkeys(data for data, _ in grid.columns):  # too wide: one below the other
        say(_table(grid, [column for column in grid.columns if column[0] == name]))


def _table(grid: Grid, columns: list[tuple[str, int]]) -> Table:
    heads = [f"{data}\n{shots}-shot" for data, shots in columns]
    table = listing("method", *heads, right=heads)
    best = {column: grid.best(*column) for column in columns}
    for method in grid.methods:
        texts = {column: grid.cell(method, *column).text for column in columns}
        cells = [Text(text, style="bold" if method in best[column] else "") for column, text in texts.items()]
        table.add_row(method, *cells)
    return table


def _print_failures(records: list[dict[str, Any]]) -> bool:
    failed = [record for record in records if record["status"] == "failed"]
    if failed:
        table = listing("failed", "data", "shots", "seed", "reason", right=("shots", "seed"))
        for record in failed:
            run = record["run"]
            reason = " ".join(record["reason"].split())
            table.add_row(run["method"], run["data"], str(run["shots"]), str(run["seed"]), Text(reason))
        say(table)
        note(f"{len(failed)} of {len(records)} runs failed; the same command tries them again.")
    return bool(failed)


def _warn_of_mixed_code(records: list[dict[str, Any]]) -> None:
    """Kept results may come from another version; whoever compares them should know."""
    if len({record["code"]["source"] for record in records}) > 1:
        note("These results were made by different versions of the code. For a clean table choose a new folder.")


def _best_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _words(values: list[str] | tuple[str, ...] | None) -> list[str]:
    """``["a,b", "c"]`` as a, b, c."""
    return [word.strip() for value in values or () for word in value.split(",") if word.strip()]


def _paths(values: list[str]) -> list[str]:
    """Like `_words`, but the name of an existing folder may have commas."""
    return [path for value in values for path in ([value] if Path(value).exists() else _words([value]))]


def _integers(option: str, values: list[str] | tuple[str, ...]) -> list[int]:
    try:
        return [int(word) for word in _words(values)]
    except ValueError as error:
        raise ConfigError(
            f"--{option} takes whole numbers, such as --{option} 1,2,4, not {','.join(values)!r}."
        ) from error

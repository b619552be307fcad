"""``kalmanclip data``: the known data sets, whether they are here, and how to get them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kalmanclip.cli.arguments import Json
from kalmanclip.cli.command import register
from kalmanclip.cli.console import bars, command_line, facts, listing, note, say, suggest, waiting
from kalmanclip.errors import ConfigError

app = typer.Typer(
    name="data",
    help="Known data sets: list them, check the copies on this computer, get them.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Root = Annotated[Path | None, typer.Option(help="Where the data sets lie. By default $KALMANCLIP_DATA, else ./data.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="A name that `kalmanclip data list` shows.")]

_SHOWN = 20
_INCOMPLETE = 3
"""Exit code of `check` for a data set with problems: that of `DataError`."""


def list_(root: Root = None, as_json: Json = False) -> None:
    """List the known data sets and where they are."""
    with waiting("Looking for data sets"):
        from kalmanclip.data.catalog import DATA_SETS, PLUGINS, data_root, find_dataset

        place, known, broken = data_root(root), list(DATA_SETS.values()), []
        for name in PLUGINS.names():
            try:
                known.append(find_dataset(name))
            except ConfigError as problem:
                broken.append(str(problem))
        rows = [(dataset, dataset.find(place)) for dataset in known]
    for text in broken:
        note(text)
    if as_json:
        typer.echo(json.dumps([_row(dataset, folder) for dataset, folder in rows], indent=2))
        return
    table = listing("name", "title", "classes", "found in", "licence", right=("classes",))
    for dataset, folder in rows:
        where = str(folder) if folder else "- (get)" if dataset.download else "-"
        table.add_row(dataset.name, dataset.title, str(dataset.classes), where, dataset.licence)
    say(table)
    say(f"{sum(folder is not None for _, folder in rows)} of {len(rows)} were found under {place}.")


def check(
    name: Name,
    root: Root = None,
    variant: Annotated[
        str | None, typer.Option(help="Which version, where there are several: fog/3 for imagenet_c, for example.")
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="Look whether the images are there, without opening them.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Count the images of a data set and try to read every one."""
    with waiting("Reading lists"):
        from kalmanclip.data.check import check_dataset
    with bars() as progress:
        report = check_dataset(name, root, variant=variant, decode=not fast, progress=progress)
    if as_json:
        counts = {count.split: {"found": count.found, "expected": count.expected} for count in report.counts}
        result = {"name": report.name, "folder": str(report.folder), "split": report.origin, "classes": report.classes}
        typer.echo(json.dumps({**result, "counts": counts, "problems": list(report.problems)}, indent=2))
    else:
        facts(
            [
                ("folder", report.folder),
                ("split from", report.origin),
                ("classes", report.classes),
                *(
                    (c.split, f"{c.found} images" + ("" if c.ok else f" (expected {c.expected})"))
                    for c in report.counts
                ),
            ]
        )
        for problem in report.problems[:_SHOWN]:
            say(f"- {problem}")
        if len(report.problems) > _SHOWN:
            note(f"and {len(report.problems) - _SHOWN} more problems; --json lists all of them")
        say("Complete." if report.ok else f"{len(report.problems)} problems.")
    if not report.ok:
        raise typer.Exit(_INCOMPLETE)


def get(name: Name, root: Root = None) -> None:
    """Download a data set where that is possible, or say how to get it."""
    with waiting("Reading"):
        from kalmanclip.data.catalog import data_root, find_dataset
        from kalmanclip.data.check import get_dataset

        dataset = find_dataset(name)
    there = dataset.find(data_root(root))
    if there is not None:
        say(f"{dataset.title} is already in {there}.")
    else:
        note(f"{dataset.title}: {dataset.licence}.")
        say(f"{dataset.title} is now in {get_dataset(dataset, root)}.")
    elsewhere = () if root is None else ("--root", root)
    suggest((command_line("data", "check", dataset.name, *elsewhere), "count and read its images"))


def _row(dataset: Any, folder: Path | None) -> dict[str, Any]:
    names = ("name", "title", "classes", "folder", "licence", "download", "obtain", "templates", "variants")
    special = {"folder": None if folder is None else str(folder), "download": dataset.download is not None}
    return {name: special[name] if name in special else getattr(dataset, name) for name in names}


register(app, list_, "kalmanclip data list\nkalmanclip data list --root datasets --json", "list")
register(app, check, "kalmanclip data check eurosat\nkalmanclip data check imagenet_c --variant fog/3 --fast", "check")
register(app, get, "kalmanclip data get oxford_pets --root datasets", "get")

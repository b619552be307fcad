"""What `compare` and `paper` share: the options of many runs, doing the runs, and printing their tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import rich.table
import typer
from rich.text import Text

from kalmanclip.cli.arguments import Device, check_device, split_specs
from kalmanclip.cli.command import INTERRUPTED
from kalmanclip.cli.console import bars, console, listing, note, say, waiting
from kalmanclip.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pandas as pd

    from kalmanclip.experiments import Run, Source, Store
    from kalmanclip.experiments.paper.fill import Sheet
    from kalmanclip.experiments.render import Table


@dataclass(frozen=True)
class RunOptions:
    """How runs are done, as options of a command."""

    also: Annotated[
        list[str] | None,
        typer.Option(
            help="Further results, only read: runs in them are not done again. Folders, or files with one line per run "
            "(.jsonl), separated by commas."
        ),
    ] = None
    workers: Annotated[
        int,
        typer.Option(help="Processes here, each with its own copy of the model; with --ray the cluster counts.", min=1),
    ] = 1
    cache: Annotated[
        str | None,
        typer.Option(
            help="A folder for what the frozen model computes, shared by runs and commands; off: none. "
            "Default: $KALMANCLIP_CACHE, else your cache folder."
        ),
    ] = None
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try runs again that failed earlier.")] = False
    attempts: Annotated[int, typer.Option(help="How often a run is started whose worker process dies.", min=1)] = 3
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Do the runs on a Ray cluster: auto (the one this machine belongs to), HOST:PORT, or local "
            "(started here, for this command).",
        ),
    ] = None
    cpus_per_run: Annotated[
        int | None,
        typer.Option(help="Processor threads of a run. Default: all, divided among the workers; with --ray 1.", min=1),
    ] = None
    gpus_per_run: Annotated[
        float | None,
        typer.Option(help="With --ray: GPUs of a run, such as 0.5 for two runs per GPU. Default: 0, no GPU."),
    ] = None
    device: Device = None

    def check(self) -> None:
        """Refuse what cannot work, before data sets are read."""
        if self.ray is None:
            if self.gpus_per_run is not None:
                raise ConfigError("--gpus-per-run is for --ray. Without it, --device and --workers say what is used.")
            check_device(self.device)
            return
        if self.device is not None:
            raise ConfigError(
                "With --ray the nodes have the devices: instead of --device give --gpus-per-run, or none."
            )
        from kalmanclip.experiments.ray_workers import check_share, require_ray

        check_share(self.gpus_per_run or 0.0)
        require_ray()

    def further_results(self) -> list[Path]:
        """Return where the results of ``--also`` lie."""
        paths = [Path(path) for path in split_specs(self.also)]
        for path in paths:
            if not path.exists():
                raise DataError(f"There is no folder {path}. --also takes folders of results, or .jsonl files.")
        return paths


def run_planned(
    runs: Sequence[Run], sources: Sequence[Source], store: Store, model: str | None, options: RunOptions
) -> list[dict[str, Any]]:
    """Do the runs that the store does not have, with progress bars; return the records of all, in their order.

    ``model`` is the name of their backbone on this machine; None: as the runs name it.
    """
    from kalmanclip.encoders.backbone import usual_device
    from kalmanclip.experiments import run_all

    options.check()
    _note_finished(runs, store, options.retry_failed)
    device, cache = options.device or usual_device(), _cache(options.cache)
    if options.ray is None and any(store.record(run) is None for run in runs):
        from kalmanclip.experiments.run_one import backbone_of

        with waiting("Loading the model"):
            # weights that cannot be had are no result of any run; a single worker is this process, which keeps them
            here = device if options.workers == 1 else "cpu"
            backbone_of(model or runs[0].model, here, None if cache is None else str(cache))
    try:
        with bars() as show:
            return run_all(
                runs,
                sources,
                store,
                device=device,
                workers=options.workers,
                progress=lambda done, total: show("runs", done, total),
                cache=cache,
                retry=options.retry_failed,
                waiting=lambda count: show("runs of other processes", 0, count),
                model=model,
                within=lambda run, done, total: show("this run", done, total, run),
                attempts=options.attempts,
                cpus_per_run=options.cpus_per_run,
                gpus_per_run=options.gpus_per_run or 0.0,
                ray=options.ray,
            )
    except KeyboardInterrupt:
        done = sum(store.finished(run) is not None for run in runs)
        note(f"Stopped. {done} of {len(runs)} runs are kept in {store.folder}; the same command goes on.")
        raise typer.Exit(INTERRUPTED) from None


def print_plan(runs: Sequence[Run], store: Store, workers: int) -> None:
    """Print what is to be done, method by method, and how long it will take."""
    from kalmanclip.experiments.forecast import forecast, together

    table = listing("method", "runs", "done", "to do takes about", right=("runs", "done", "to do takes about"))
    parts = forecast(runs, store)
    for label, part in parts.items():
        table.add_row(Text(label), str(part.runs), str(part.runs - part.open), _duration(part.seconds))
    say(table)
    whole = together(parts.values())
    say(f"{whole.runs} different runs, {whole.open} of them to do.")
    if whole.open and whole.seconds is not None:
        share = f" with {workers} workers, if they do not slow each other down" if workers > 1 else ""
        say(f"About {_duration(whole.seconds / workers)}{share}, by the times of runs that are done.")
    elif whole.open:
        say("How long a method takes is known once it has done a run here.")


def _duration(seconds: float | None) -> str:
    """Return a time as people say it."""
    if seconds is None:
        return "?"
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _note_finished(runs: Sequence[Run], store: Store, retry: bool) -> None:
    from kalmanclip.experiments.store import remark_damaged

    if damaged := store.damaged(runs):
        note(remark_damaged(damaged))
    records = [record for run in runs if (record := store.record(run)) is not None]
    failed = sum(record["status"] == "failed" for record in records)
    before = len(records) - (failed if retry else 0)
    if before:
        more = f", {failed} of them failed (--retry-failed tries them again)" if failed and not retry else ""
        note(f"{before} of {len(runs)} runs are finished already{more}.")


def _cache(choice: str | None) -> Path | None:
    """Return the folder of the cache, after a note if nothing more fits there."""
    from kalmanclip.encoders import FeatureCache, cache_folder

    folder = cache_folder(choice)
    if folder is not None and (trouble := FeatureCache(folder).trouble()):
        note(f"{trouble} Images that are not in it are encoded for every run. Another place: --cache.")
    return folder


def print_report(frame: pd.DataFrame, folder: Path | None) -> bool:
    """Print the tables of a comparison, where ours is behind, and what failed; return whether every run is done.

    ``folder`` is where they also lie as files; None: nowhere.
    """
    from kalmanclip.experiments.report import make_tables, remark

    for model, part in frame.groupby("model", sort=False):
        for table in make_tables(part):
            say(f"{table.title}, {model}: mean ± standard deviation over seeds", style="bold")
            print_table(table)
            if said := remark(part, table):
                say(said)
            say()
    figures = "figure.png, figure.svg" if frame["model"].nunique() == 1 else "figures"
    if folder is not None:
        note(f"Also in {folder}: table.csv, table.md, results.jsonl, {figures}")
    runs = frame[frame["shift"] == ""]
    if runs["code"].nunique() > 1:
        note("These results were made by different versions of the code. For a clean table choose a new folder.")
    failed = runs[runs["status"] == "failed"]
    if len(failed):
        shown = listing("failed", "data", "shots", "seed", "reason", right=("shots", "seed"))
        for run in failed.itertuples():
            shown.add_row(Text(run.row), Text(run.data), str(run.shots), str(run.seed), Text(_one_line(run.reason)))
        say(shown)
        note(f"{len(failed)} of {len(runs)} runs failed; --retry-failed tries them again.")
    return not len(failed)


def print_sheet(sheet: Sheet) -> None:
    """Print a table of the paper: numbers (ours; the paper's in brackets), findings and what is missing."""
    say(sheet.study.title, style="bold")
    print_table(sheet.table)
    for finding in sheet.findings:
        say(f"- {finding}")
    for reason in sheet.reasons():
        say(f"- Missing: {_one_line(reason)}")
    say(f"{sheet.progress()}.")
    say()


def print_table(table: Table) -> None:
    """Print a table; one that is too wide for the screen goes on below, the columns of a data set together."""
    columns, screen = range(len(table.columns)), console()
    whole = _listing(table, columns)
    if screen.measure(whole, options=screen.options.update(max_width=10_000)).maximum <= screen.width:
        say(whole)
        return
    for name in dict.fromkeys(heads[0] for heads in table.columns):
        say(_listing(table, [column for column in columns if table.columns[column][0] == name]))


def _listing(table: Table, columns: Sequence[int]) -> rich.table.Table:
    heads = ["\n".join(table.columns[column]) for column in columns]
    shown = listing(*table.row_heads, *heads, right=heads)
    best = {column: table.best(column) for column in columns}
    for row, titles in enumerate(table.rows):
        cells: list[Any] = [
            Text(table.text(row, column), style="bold" if row in best[column] else "") for column in columns
        ]
        shown.add_row(*map(Text, titles), *cells)
    return shown


def _one_line(text: str) -> str:
    return " ".join(text.split())

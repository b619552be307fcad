"""The options that commands with many runs share, and doing the runs as they say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kalmanclip.cli.arguments import check_device, spellings
from kalmanclip.cli.console import bars, note, waiting
from kalmanclip.cli.errors import INTERRUPTED
from kalmanclip.errors import ConfigError, DataError

if TYPE_CHECKING:
    from kalmanclip.experiments import Run, Source, Store

ATTEMPTS = 3

Also = Annotated[
    list[str] | None,
    typer.Option(
        help="Further results, only read: runs in them are not done again. Folders, or files with one line per run "
        "(.jsonl), separated by commas."
    ),
]
Workers = Annotated[
    int, typer.Option(help="Processes here, each with its own copy of the model; with --ray the cluster counts.", min=1)
]
Cache = Annotated[
    str | None,
    typer.Option(
        help="A folder for what the frozen model computes, shared by runs and commands; off: none. "
        "Default: $KALMANCLIP_CACHE, else your cache folder."
    ),
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Try runs again that failed earlier.")]
Attempts = Annotated[int, typer.Option(help="How often a run is started whose worker process dies.", min=1)]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Do the runs on a Ray cluster: auto (the one this machine belongs to), HOST:PORT, or local "
        "(started here, for this command).",
    ),
]
CpusPerRun = Annotated[
    int | None,
    typer.Option(help="Processor threads of a run. Default: all, divided among the workers; with --ray 1.", min=1),
]
GpusPerRun = Annotated[
    float | None, typer.Option(help="With --ray: GPUs of a run, such as 0.5 for two runs per GPU. Default: 0, no GPU.")
]


def further_results(also: Sequence[str] | None) -> list[Path]:
    """Return where the results of ``--also`` lie.

    Raises:
        DataError: one of them is not there.
    """
    paths = [Path(path) for path in spellings(also)]
    for path in paths:
        if not path.exists():
            raise DataError(f"There is no folder {path}. --also takes folders of results, or .jsonl files.")
    return paths


@dataclass(frozen=True)
class RunOptions:
    """The values of those options, for `run_planned`.

    Attributes:
        device: where the backbones lie; None: a GPU if there is one.
        workers: processes on this computer.
        cache: the folder for products of the frozen backbone, as the user spelled it.
        ray: the address of a Ray cluster; None: the runs are done here.
        gpus_per_run: GPUs of a run on the cluster, perhaps a fraction of one; None: none.
        cpus_per_run: processor threads of a run; None: the usual number.
        attempts: how often a run is started whose worker dies.
        retry_failed: whether runs that failed earlier are tried again.
    """

    device: str | None = None
    workers: int = 1
    cache: str | None = None
    ray: str | None = None
    gpus_per_run: float | None = None
    cpus_per_run: int | None = None
    attempts: int = ATTEMPTS
    retry_failed: bool = False

    def check(self) -> None:
        """Refuse what cannot work, before data sets are read.

        Raises:
            ConfigError: options contradict each other, the device is not here, or Ray is not installed.
        """
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


def run_planned(
    runs: Sequence[Run], sources: Sequence[Source], store: Store, model: str | None, options: RunOptions
) -> list[dict[str, Any]]:
    """Do the runs with progress bars and return the records of all, in their order.

    Args:
        runs: what to do; those that the store has are not done again.
        sources: the data sets they name.
        store: where results are saved; its folder exists.
        model: how the runs' backbone is spelled here; None: as the runs name it.
        options: how.
    """
    import torch

    from kalmanclip.experiments import run_all

    options.check()
    _note_finished(runs, store, options.retry_failed)
    device, cache = options.device or ("cuda" if torch.cuda.is_available() else "cpu"), _cache(options.cache)
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
                within=lambda stage, done, total: show("this run", done, total),
                attempts=options.attempts,
                cpus_per_run=options.cpus_per_run,
                gpus_per_run=options.gpus_per_run or 0.0,
                ray=options.ray,
            )
    except KeyboardInterrupt:
        done = sum(store.finished(run) is not None for run in runs)
        note(f"Stopped. {done} of {len(runs)} runs are kept in {store.folder}; the same command goes on.")
        raise typer.Exit(INTERRUPTED) from None


def _note_finished(runs: Sequence[Run], store: Store, retry: bool) -> None:
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

"""``kalmanclip compare``: methods side by side on the same few images, resumable after every run."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kalmanclip.cli.common import Device, check_device, writable_folder
from kalmanclip.cli.guard import INTERRUPTED
from kalmanclip.cli.report import print_report
from kalmanclip.cli.screen import bars, note, waiting
from kalmanclip.cli.words import integers, spellings, words
from kalmanclip.errors import ConfigError, DataError
from kalmanclip.files import read_json

if TYPE_CHECKING:
    from kalmanclip.experiments import Contamination, Run, Store

EXAMPLES = """
kalmanclip compare --data photos/ -o results/
kalmanclip compare --data oxford_pets --shots 1 2 4 8 16 --seeds 1 2 3
kalmanclip compare --data oxford_pets,dtd --root ~/data --model ViT-B-16:openai --workers 2 -o results/
kalmanclip compare --data photos/ --methods kalman,gda --shots 1,2,4,8,16 --seeds 1,2,3 -o results/
kalmanclip compare --data photos/ --shift drawings=sketches/ --contamination 0,0.1,0.5 -o results/
kalmanclip compare --report-only -o results/
"""

SHOTS = ("1", "2", "4", "8", "16")
SEEDS = ("1", "2", "3")


def compare(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder for results; finished runs in it are kept.")
    ] = Path("comparison"),
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="A data set's name (kalmanclip data list); a folder with train/ and test/ (and val/, if any) of class "
            "folders, or two folders, train:test; a list (.csv, .json, .jsonl); hf:... Any of them may be named: "
            "NAME=... Several: one after the other, or separated by commas.",
        ),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(help="Which methods, or labels of --config; several like --data. Default: all."),
    ] = None,
    shots: Annotated[
        list[str] | None, typer.Option(help=f"Training images per class. Default: {','.join(SHOTS)}.")
    ] = None,
    seeds: Annotated[list[str] | None, typer.Option(help=f"One draw each. Default: {','.join(SEEDS)}.")] = None,
    model: Annotated[
        str | None, typer.Option(help="The CLIP: ViT-B-16:openai, RN50:openai, ... Default: tiny (embedded).")
    ] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(
            help='A prompt such as "a photo of a {}.", or, for one data set, "pets=a photo of a {}, a type of pet."; '
            "repeat to average several. Default: the data set's."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help='A JSON file with options by method, such as {"kalman": {"preset": "paper"}}, and further rows under '
            'labels of your own, such as {"paper": {"method": "kalman", "preset": "paper"}}.'
        ),
    ] = None,
    shift: Annotated[
        list[str] | None,
        typer.Option(
            help="Extra test images, spelled like --data or as a folder of class folders; measured for every data set "
            "that has their classes."
        ),
    ] = None,
    contamination: Annotated[
        list[str] | None,
        typer.Option(help="Shares of the training images to corrupt, such as 0,0.1,0.5. Default: 0."),
    ] = None,
    severities: Annotated[
        list[str] | None, typer.Option(help="How strongly, 1 to 5, several to choose from. Default: 1,2,3,4,5.")
    ] = None,
    contamination_seed: Annotated[int | None, typer.Option(help="Of that choice. Default: each run's seed.")] = None,
    root: Annotated[Path | None, typer.Option(help="Where the named data sets lie. Default: $KALMANCLIP_DATA.")] = None,
    workers: Annotated[int, typer.Option(help="Processes, each with its own copy of the model.", min=1)] = 1,
    cache: Annotated[
        str | None,
        typer.Option(
            help="A folder for what the frozen model computes, shared by runs and commands; off: none. "
            "Default: $KALMANCLIP_CACHE, else your cache folder."
        ),
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try runs again that failed earlier.")] = False,
    report_only: Annotated[
        bool,
        typer.Option(
            "--report-only",
            help="Run nothing: draw tables and figures of all results in the folder again, or of those that --data "
            "(by name), --methods, --shots, --seeds and --model choose.",
        ),
    ] = False,
    device: Device = None,
) -> None:
    """Compare methods on the same draws of the same data sets.

    Every run is kept as soon as it is finished: after an interruption the same command goes on, and with more shots,
    seeds or methods it only does what is new. Several such commands may share a folder, also at the same time. Methods
    that search options choose on at most four validation images per class; test images are only measured on.
    """
    with waiting("Loading"):
        from kalmanclip.experiments import Store, find_sources, plan, run_all, write_report
        from kalmanclip.experiments.models import model_name
        from kalmanclip.experiments.variants import all_labels

    if report_only:
        _draw_again(output, data, methods, shots, seeds, model)
        return
    if not data:
        raise ConfigError("There is nothing to compare on: give at least one data set with --data.")
    model = model or "tiny"
    options = {} if config is None else read_json(config, ConfigError)
    if not isinstance(options, dict):
        raise ConfigError(
            f"{config} must hold a table of options by method, such as {{'kalman': {{'preset': 'paper'}}}}."
        )
    backbone = model_name(model)  # a mistyped name is found before data sets are read
    check_device(device)
    chosen = words(methods) or all_labels(options)
    numbers = integers("shots", shots or SHOTS), integers("seeds", seeds or SEEDS)
    levels = _contaminations(contamination, severities, contamination_seed)
    with waiting("Looking for data sets"):
        plan([], chosen, *numbers, backbone, options, levels)  # as are other mistakes
        sources = find_sources(spellings(data), root, template, spellings(shift), list(product(*numbers)))
    runs = plan(sources, chosen, *numbers, backbone, options, levels)
    with writable_folder(output):
        store = Store(output)
        _tell_what_is_there(runs, store, retry_failed)
        try:
            with bars() as show:
                records = run_all(
                    runs,
                    sources,
                    store,
                    device or _best_device(),
                    workers,
                    lambda done, total: show("runs", done, total),
                    _cache(cache),
                    retry_failed,
                    lambda count: show("runs of other processes", 0, count),
                    model,
                    lambda stage, done, total: show("this run", done, total),
                )
        except KeyboardInterrupt:
            done = sum(store.finished(run) is not None for run in runs)
            note(f"Stopped. {done} of {len(runs)} runs are kept in {output}; the same command goes on.")
            raise typer.Exit(INTERRUPTED) from None
        with waiting("Drawing"):
            grids = write_report(output, records)
    if not print_report(grids, records, output):
        raise typer.Exit(1)


def _draw_again(
    folder: Path,
    data: list[str] | None,
    methods: list[str] | None,
    shots: list[str] | None,
    seeds: list[str] | None,
    model: str | None,
) -> None:
    """The report of what is in a folder, without any data set or model at hand."""
    from kalmanclip.experiments import Store, in_order, write_report

    if not folder.is_dir():
        raise DataError(f"There is no folder {folder}. Give the folder that an earlier comparison wrote.")
    names, labels = words(data), words(methods)
    numbers = integers("shots", shots), integers("seeds", seeds)

    def wanted(record: dict[str, Any]) -> bool:
        run = record["run"]
        return (
            (not names or run["data"] in names)
            and (not labels or (record.get("label") or run["method"]) in labels)
            and (not numbers[0] or run["shots"] in numbers[0])
            and (not numbers[1] or run["seed"] in numbers[1])
            and (model is None or run["model"] == model)
        )

    records = in_order([record for record in Store(folder).records() if wanted(record)])
    if not records:
        raise DataError(f"{folder} holds no such results. Run the comparison first, or choose less narrowly.")
    with waiting("Drawing"):
        grids = write_report(folder, records)
    print_report(grids, records, folder)


def _tell_what_is_there(runs: list[Run], store: Store, retry: bool) -> None:
    records = [record for run in runs if (record := store.record(run)) is not None]
    failed = sum(record["status"] == "failed" for record in records)
    before = len(records) - (failed if retry else 0)
    if before:
        more = f", {failed} of them failed (--retry-failed tries them again)" if failed and not retry else ""
        note(f"{before} of {len(runs)} runs are finished already{more}.")


def _cache(choice: str | None) -> Path | None:
    """The folder of the cache, and a note if nothing more can be kept there."""
    from kalmanclip.encoders import FeatureCache, cache_folder

    folder = cache_folder(choice)
    if folder is not None and (trouble := FeatureCache(folder).trouble()):
        note(f"{trouble} Images that are not in it are encoded for every run. Another place: --cache.")
    return folder


def _best_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _contaminations(shares: list[str] | None, severities: list[str] | None, seed: int | None) -> list[Contamination]:
    from kalmanclip.data.corruptions import SEVERITIES, require_package
    from kalmanclip.experiments import Contamination

    strengths = tuple(integers("severities", severities)) if severities else SEVERITIES
    try:
        numbers = [float(word) for word in words(shares or ["0"])]
    except ValueError as error:
        raise ConfigError(f"--contamination takes shares such as 0,0.1,0.5, not {','.join(shares or ())!r}.") from error
    levels = [Contamination(share, strengths, seed) for share in numbers]
    if any(numbers):
        require_package()
    return levels

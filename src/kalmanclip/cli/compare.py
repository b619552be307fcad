"""``kalmanclip compare``: methods side by side on the same few images, resumable after every run."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kalmanclip.cli.arguments import (
    Precision,
    check_device,
    integers,
    options_file,
    shares,
    split_specs,
    split_values,
    writable_folder,
)
from kalmanclip.cli.console import note, waiting
from kalmanclip.cli.results import RunFilter
from kalmanclip.cli.runs import RunOptions, print_plan, print_report, run_planned
from kalmanclip.errors import ConfigError

if TYPE_CHECKING:
    from kalmanclip.experiments.store import Selection

EXAMPLES = """
kalmanclip compare --data photos/ -o results/
kalmanclip compare --data oxford_pets,dtd --root ~/data --model ViT-B-16:openai --workers 2 -o results/
kalmanclip compare --data photos/ --methods kalman,gda --shots 1,2,4,8,16 --seeds 1,2,3 -o results/
kalmanclip compare --data oxford_pets,dtd --model ViT-B-16:openai --ray auto --gpus-per-run 0.5 -o results/
kalmanclip compare --data photos/ --shift drawings=sketches/ --contamination 0,0.1,0.5 -o results/
kalmanclip compare --data photos/ --base-to-new --methods class_residuals,coop,zero_shot -o new_classes/
kalmanclip compare --data photos/ --also results.jsonl -o more/
kalmanclip compare --data photos/ --plan -o results/
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
            "NAME=... Several: separated by commas.",
        ),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(help="Which methods, or labels of --config, separated by commas. Default: all."),
    ] = None,
    shots: Annotated[
        list[str] | None,
        typer.Option(help=f"Training images per class, separated by commas. Default: {','.join(SHOTS)}."),
    ] = None,
    seeds: Annotated[
        list[str] | None, typer.Option(help=f"One draw each, separated by commas. Default: {','.join(SEEDS)}.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The CLIP: ViT-B-16:openai, RN50:openai, ... Default: tiny (embedded).")
    ] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(
            help='A prompt such as "a photo of a {}.", or, for one data set, "pets=a photo of a {}, a type of pet."; '
            "repeat the option to average several (a prompt may have commas). Default: the data set's."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help='A JSON or YAML file with options by method, such as {"kalman": {"preset": "paper"}}, and further '
            'rows under labels of your own, such as {"paper": {"method": "kalman", "preset": "paper"}}.'
        ),
    ] = None,
    shift: Annotated[
        list[str] | None,
        typer.Option(
            help="Extra test images, spelled like --data or as a folder of class folders, separated by commas; "
            "measured for every data set that has their classes."
        ),
    ] = None,
    contamination: Annotated[
        list[str] | None,
        typer.Option(
            help="Shares of the training images to corrupt, separated by commas, such as 0,0.1,0.5. Default: 0."
        ),
    ] = None,
    severities: Annotated[
        list[str] | None,
        typer.Option(help="How strongly, 1 to 5, to choose from, separated by commas. Default: 1,2,3,4,5."),
    ] = None,
    contamination_seed: Annotated[int | None, typer.Option(help="Of that choice. Default: each run's seed.")] = None,
    base_to_new: Annotated[
        bool,
        typer.Option(
            "--base-to-new",
            help="Learn the first half of the classes, and measure on these and on the other half, by its text.",
        ),
    ] = False,
    root: Annotated[Path | None, typer.Option(help="Where the named data sets lie. Default: $KALMANCLIP_DATA.")] = None,
    *,
    running: RunOptions,
    report_only: Annotated[
        bool,
        typer.Option(
            "--report-only",
            help="Run nothing: draw tables and figures of all results in the folder and in --also again, or of those "
            "that --data (by name), --methods, --shots, --seeds and --model choose. A report of more runs is not "
            "replaced: the tables are then only printed.",
        ),
    ] = False,
    only_plan: Annotated[
        bool, typer.Option("--plan", help="Run nothing: say what would be run, and how long it would take.")
    ] = False,
    precision: Precision = None,
) -> None:
    """Compare methods on the same draws of the same data sets.

    Every run is kept as soon as it is finished: after an interruption the same command goes on, and with more shots,
    seeds or methods it only does what is new. Several such commands may share a folder, also at the same time. Methods
    that search options choose on at most four validation images per class; test images are only measured on.
    """
    with waiting("Loading"):
        from kalmanclip.data.corruptions import SEVERITIES, require_package
        from kalmanclip.experiments import Contamination, Store, find_sources, plan
        from kalmanclip.experiments.provenance import in_precision, model_name
        from kalmanclip.experiments.report import write_report
        from kalmanclip.experiments.spec import all_labels

    check_device(None, precision)
    if precision is not None:
        model = in_precision(model or "tiny", precision)
    earlier = running.further_results()
    if report_only:
        only = RunFilter(data, methods, shots, seeds, None if model is None else [model])
        _draw_again(output, earlier, only.selection())
        return
    if not data:
        raise ConfigError("There is nothing to compare on: give at least one data set with --data.")
    model = model or "tiny"
    options = options_file(config)
    backbone = model_name(model)  # a mistyped name is found before data sets are read
    running.check()
    chosen = split_values(methods) or all_labels(options)
    numbers = integers("shots", shots or SHOTS), integers("seeds", seeds or SEEDS)
    strengths = tuple(integers("severities", severities)) if severities else SEVERITIES
    corrupted = shares("contamination", contamination or ["0"])
    levels = [Contamination(share, strengths, contamination_seed) for share in corrupted]
    if any(corrupted):
        require_package()
    with waiting("Looking for data sets"):
        plan([], chosen, *numbers, backbone, options, levels)  # as are other mistakes
        sources = find_sources(split_specs(data), root, template, split_specs(shift), list(product(*numbers)))
    runs = plan(sources, chosen, *numbers, backbone, options, levels, base_to_new)
    if only_plan:
        print_plan(runs, Store(output, earlier), running.workers)
        return
    with writable_folder(output):
        records = run_planned(runs, sources, Store(output, earlier), model, running)
        with waiting("Drawing"):
            frame = write_report(output, records)
    if not print_report(frame, output):
        raise typer.Exit(1)


def _draw_again(folder: Path, also: list[Path], selection: Selection) -> None:
    """Draw the report of what is in a folder and further results, without any data set or model at hand."""
    from kalmanclip.experiments.aggregate import to_frame
    from kalmanclip.experiments.report import report_is_fuller, write_report
    from kalmanclip.experiments.store import find_results, in_order

    # with further results, the folder may have none of its own yet
    own = [] if also and not (folder.is_dir() and any(folder.glob("*.json"))) else [folder]
    found = [find_results(path, selection) for path in (*also, *own)]
    records = in_order({record["address"]: record for chosen in found for record in chosen.records}.values())
    if not records:
        raise found[-1].nothing()
    for chosen in found:
        for remark in chosen.remarks():
            note(remark)
    if others := report_is_fuller(folder, records):
        print_report(to_frame(records), None)
        note(
            f"The report in {folder} is of {others} more runs and stays as it is. For files of these alone: "
            f"--report-only --also {folder} -o NEW, and the same options."
        )
        return
    with writable_folder(folder), waiting("Drawing"):
        frame = write_report(folder, records)
    print_report(frame, folder)

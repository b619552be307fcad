"""``kalmanclip paper``: every table and figure of the paper, run and shown beside the printed numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from kalmanclip.cli.arguments import integers, options_file, split_specs, split_values, writable_folder
from kalmanclip.cli.console import listing, note, say, waiting
from kalmanclip.cli.runs import RunOptions, print_sheet, run_planned
from kalmanclip.errors import ConfigError, DataError

if TYPE_CHECKING:
    from kalmanclip.experiments import Run, Source, Store
    from kalmanclip.experiments.paper.fill import Sheet
    from kalmanclip.experiments.paper.plan import Found
    from kalmanclip.experiments.paper.study import Study

EXAMPLES = """
kalmanclip paper table1 --root ~/data
kalmanclip paper all --root ~/data --workers 4 -o paper/
kalmanclip paper all --model tiny --data eurosat=photos/eurosat,dtd=photos/dtd --seeds 1,2
kalmanclip paper table2 --model tiny --data pacs=photo_train:photo_test --shift sketch/,cartoon/
kalmanclip paper all --plan --root ~/data
kalmanclip paper all --report-only --root ~/data
"""

SEEDS = ("1", "2", "3")
MODEL = "RN50:openai"


def paper(
    which: Annotated[
        list[str],
        typer.Argument(
            metavar="WHICH...",
            help="table1, figure2, figure3, table2, table3, table4; what the paper says in words: observation, noise, "
            "regulation, belief; the filter against first-order optimisers: optimizer; or all.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder for results and pages; finished runs in it are kept.")
    ] = Path("paper"),
    model: Annotated[str, typer.Option(help="The CLIP. The paper's is RN50:openai; tiny is embedded.")] = MODEL,
    root: Annotated[Path | None, typer.Option(help="Where the data sets lie. Default: $KALMANCLIP_DATA.")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Where one of the paper's data sets lies, such as oxford_pets=FOLDER (kalmanclip data list has the "
            "names), or a further data set, spelled as for `kalmanclip compare`. Several: separated by commas.",
        ),
    ] = None,
    shift: Annotated[
        list[str] | None,
        typer.Option(help="Further test images for table2, of data sets that have their classes, separated by commas."),
    ] = None,
    seeds: Annotated[
        list[str] | None, typer.Option(help=f"One draw each, separated by commas. Default: {','.join(SEEDS)}.")
    ] = None,
    template: Annotated[
        list[str] | None, typer.Option(help="A prompt instead of the data set's; see `kalmanclip compare`.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help='A JSON or YAML file with other options by method, such as {"coop": {"crops": 10}}.'),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would be run, and what is missing.")] = False,
    report_only: Annotated[
        bool,
        typer.Option(
            "--report-only",
            help="Run nothing: draw again what the folder holds. The data sets must be there: their lists of files "
            "say which results are theirs.",
        ),
    ] = False,
    *,
    running: RunOptions,
) -> None:
    """Reproduce the paper: run what a table or figure needs, and show it beside the printed numbers.

    With the paper's model and its data sets in place this is the full reproduction. Without them, name another model
    and the data there are: what could not be run is shown as missing, with the reason. Every run is kept as soon as it
    is finished; after an interruption the same command goes on. The folder gets each table as Markdown and LaTeX,
    the figures, and results.jsonl with one line per run.
    """
    with waiting("Loading"):
        from kalmanclip.data.corruptions import require_package
        from kalmanclip.experiments import Store
        from kalmanclip.experiments.paper.plan import check_options, chosen_sets, find_sets, study_runs
        from kalmanclip.experiments.paper.studies import STUDIES
        from kalmanclip.experiments.provenance import model_name

    names = split_values(which)
    for name in names:
        if name not in STUDIES and name != "all":
            raise ConfigError(f"The paper has no {name!r}. There are: {', '.join(STUDIES)}, all.")
    asked = [study for name, study in STUDIES.items() if name in names or "all" in names]
    draws = integers("seeds", seeds or SEEDS)
    backbone = model_name(model)
    options = options_file(config)
    if foreign := check_options(STUDIES.values(), options):
        note(f"Not rows of the paper, and left out: {', '.join(foreign)}.")
    if not (plan or report_only):
        running.check()
        if any(any(study.shares) for study in asked):  # asked for now, not after hours of other runs
            require_package()
    earlier = running.further_results()
    if report_only and not output.is_dir():
        raise DataError(f"There is no folder {output}. Give the folder that an earlier `kalmanclip paper` wrote.")
    with waiting("Looking for data sets"):
        pairs = list(product(sorted({k for study in asked for k in study.shots}), draws))
        found = find_sets(asked, split_specs(data), root, template or (), split_specs(shift), pairs)
    planned = []
    for study in asked:
        sets = chosen_sets(study, found)
        runs = study_runs(study, [s for s in sets.values() if s], draws, backbone, options)
        planned.append(Planned(study, sets, runs))
    if plan:
        _print_plan(planned, Store(output, earlier), found)
        return
    with writable_folder(output):
        store = Store(output, earlier)
        if not report_only:
            for part in planned:
                _run(part, store, model, running)
        with waiting("Drawing"):
            sheets = [_sheet(part, store, found) for part in planned]
            _write(output, sheets, _records(planned, store), backbone, draws)
    for sheet in sheets:
        print_sheet(sheet)
    note(f"Also in {output}: every table as .md and .tex, every figure as .png and .svg, and results.jsonl.")
    if any(sheet.failed for sheet in sheets):
        note("Some runs failed: the tables say why; --retry-failed tries them again.")
        raise typer.Exit(1)


class Planned(NamedTuple):
    """A study with its data sets (None: not here) and runs."""

    study: Study
    sets: Mapping[str, Source | None]
    runs: Sequence[Run]


def _run(planned: Planned, store: Store, model: str, running: RunOptions) -> None:
    name, runs = planned.study.name, planned.runs
    if not runs:
        note(f"{name}: none of its data sets is here.")
        return
    note(f"{name}: {len(runs)} runs")
    shifted = any(run.shifts for run in runs)
    sources = [source if shifted else replace(source, shifts=()) for source in planned.sets.values() if source]
    run_planned(runs, sources, store, model, running)


def _sheet(planned: Planned, store: Store, found: Found) -> Sheet:
    from kalmanclip.experiments.paper.fill import fill
    from kalmanclip.experiments.runner import named

    study, sets, runs = planned
    records = [named(record, run) for run in runs if (record := store.record(run)) is not None]
    shifts = {name: [s.name for s in source.shifts] if source else list(study.shifts) for name, source in sets.items()}
    return fill(study, shifts, records, found.missing, runs)


def _records(planned: Sequence[Planned], store: Store) -> list[dict[str, Any]]:
    """Return every record once, with what each of the studies that show it calls it."""
    from kalmanclip.experiments.runner import named

    found: dict[str, dict[str, Any]] = {}
    for study, _, runs in planned:
        for run in runs:
            if (record := store.record(run)) is not None:
                found.setdefault(run.address, named(record, run) | {"studies": {}})["studies"][study.name] = run.label
    return list(found.values())


def _write(
    folder: Path, sheets: Sequence[Sheet], records: Sequence[dict[str, Any]], model: str, seeds: Sequence[int]
) -> None:
    import kalmanclip
    from kalmanclip.experiments.paper.fill import sheet_markdown
    from kalmanclip.experiments.render import escape, to_latex
    from kalmanclip.experiments.store import write_jsonl
    from kalmanclip.files import write_atomic

    other = "" if model == MODEL else f" (the paper's is {MODEL}: compare rows, not numbers with the paper's)"
    made = f"Model {model}{other}, seeds {', '.join(map(str, seeds))}, kalmanclip {kalmanclip.__version__}."
    write_jsonl(folder / "results.jsonl", records)
    for sheet in sheets:
        write_atomic(folder / f"{sheet.study.name}.md", f"{sheet_markdown(sheet)}\n{escape(made)}\n", DataError)
        caption = "measured here, with the paper's number in brackets. Needs booktabs."
        write_atomic(folder / f"{sheet.study.name}.tex", to_latex(sheet.table, caption), DataError)
        for stem, picture in zip(sheet.stems(), sheet.pictures, strict=True):
            picture.save(folder / stem)


def _print_plan(planned: Sequence[Planned], store: Store, found: Found) -> None:
    table = listing("study", "data sets", "missing", "runs", "done", right=("runs", "done"))
    seen: dict[str, Any] = {}
    for study, sets, runs in planned:
        here, away = (", ".join(name for name, s in sets.items() if bool(s) is present) for present in (True, False))
        plans = {run.address: store.finished(run) for run in runs}
        seen |= plans
        done = sum(record is not None for record in plans.values())
        table.add_row(study.name, here or "-", away or "-", str(len(plans)), str(done))
    say(table)
    open_runs = sum(record is None for record in seen.values())
    say(f"{len(seen)} different runs, {open_runs} of them to do.")
    wanted = {name for study, sets, _ in planned for name in (*sets, *study.shifts)}
    for name, reason in found.missing.items():
        if name in wanted:
            note(f"{name}: {reason}")

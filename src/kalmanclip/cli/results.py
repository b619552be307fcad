"""``kalmanclip results``: what is in a folder of results, as tables for elsewhere, and what differs between two."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kalmanclip.cli.arguments import Json, integers, shares, words
from kalmanclip.cli.console import listing, note, percent, say, waiting
from kalmanclip.cli.differing import as_json as difference_as_json
from kalmanclip.cli.differing import print_difference
from kalmanclip.cli.register import register
from kalmanclip.errors import ConfigError, DataError
from kalmanclip.files import write_atomic

if TYPE_CHECKING:
    from kalmanclip.experiments.select import Chosen, Selection
    from kalmanclip.experiments.store import Record

app = typer.Typer(
    name="results",
    help="Results of `compare` and `paper`: list them, export tables, compare two folders.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Store = Annotated[
    Path,
    typer.Argument(metavar="STORE", help="The folder that `kalmanclip compare` or `paper` wrote.", show_default=False),
]
Data = Annotated[list[str] | None, typer.Option(help="Only these data sets, by name. Several: separated by commas.")]
Methods = Annotated[list[str] | None, typer.Option(help="Only these methods, by label.")]
Shots = Annotated[list[str] | None, typer.Option(help="Only these numbers of training images per class.")]
Seeds = Annotated[list[str] | None, typer.Option(help="Only these seeds.")]
Model = Annotated[list[str] | None, typer.Option(help="Only these backbones.")]
Share = Annotated[list[str] | None, typer.Option(help="Only these shares of corrupted training images; 0: clean.")]
Status = Annotated[str | None, typer.Option(help="Only runs that are done, or that failed.", metavar="done|failed")]

_ENDINGS = (".csv", ".md", ".tex", ".json")
_DIFFERENT = 1
"""Exit code of `diff` for stores that differ, as that of the program of this name."""


def list_(
    store: Store,
    data: Data = None,
    methods: Methods = None,
    shots: Shots = None,
    seeds: Seeds = None,
    model: Model = None,
    share: Share = None,
    status: Status = None,
    as_json: Json = False,
) -> None:
    """List the runs in a folder of results, one per line.

    Options choose among them; each takes several values, separated by commas or by repeating it.
    """
    with waiting("Reading"):
        from kalmanclip.experiments.select import choose

        chosen = choose(store, _selection(data, methods, shots, seeds, model, share, status))
    rows = [_row(record) for record in chosen.records]
    if as_json:
        damaged = [path.name for path in chosen.damaged]
        typer.echo(json.dumps({"runs": rows, "damaged": damaged, "remarks": chosen.remarks()}, indent=2))
        return
    _tell(chosen)
    _print(rows)
    failed = sum(row["status"] == "failed" for row in rows)
    say(
        f"{len(rows)} runs, {len(rows) - failed} done, {failed} failed. Backbones: {_count(r['model'] for r in rows)}. "
        f"Code: {_count(r['code'] for r in rows)}."
    )


def export(
    store: Store,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output",
            "-o",
            help="FILE.csv: one line per cell. FILE.md, FILE.tex: tables. FILE.json: all runs with all metrics. "
            "Repeat for several. Default: the tables on the screen, as Markdown.",
        ),
    ] = None,
    data: Data = None,
    methods: Methods = None,
    shots: Shots = None,
    seeds: Seeds = None,
    model: Model = None,
    share: Share = None,
    status: Status = None,
) -> None:
    """Write tables of the results in a folder: CSV, Markdown, LaTeX or JSON, by the file's ending."""
    for path in output or ():
        if path.suffix.lower() not in _ENDINGS:
            raise ConfigError(f"Results cannot be written to {path}: its name must end in {', '.join(_ENDINGS)}.")
    with waiting("Reading"):
        from kalmanclip.experiments.select import choose

        chosen = choose(store, _selection(data, methods, shots, seeds, model, share, status))
    _tell(chosen)
    if len({_code(record) for record in chosen.records}) > 1:
        note("These results were made by different versions of the code; `kalmanclip results list` counts them.")
    if not output:
        typer.echo(_written(".md", chosen.records), nl=False)
    for path in output or ():
        write_atomic(path, _written(path.suffix.lower(), chosen.records), DataError)
        say(f"{len(chosen.records)} runs are in {path}.")


def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="A folder of results.", show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another; changes are from A to B.", show_default=False)],
    data: Data = None,
    methods: Methods = None,
    shots: Shots = None,
    seeds: Seeds = None,
    model: Model = None,
    share: Share = None,
    status: Status = None,
    tolerance: Annotated[
        float, typer.Option(help="Metrics that differ by no more count as the same (0.01 of accuracy: 1 %).", min=0)
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """Compare two folders of results: the same runs with other results, other options, and what one of them lacks.

    Seconds, code and packages are shown, but are no difference by themselves. Exit code 0: the same; 1: different; 2
    and 3: an option or a folder cannot be used.
    """
    selection = _selection(data, methods, shots, seeds, model, share, status)
    with waiting("Reading"):
        from kalmanclip.experiments.difference import Difference
        from kalmanclip.experiments.select import find_results

        first, second = find_results(a, selection), find_results(b, selection)
        if not first.records and not second.records:
            raise first.nothing()
        difference = Difference(first.records, second.records, tolerance)
    if as_json:
        damaged = {name: [path.name for path in found.damaged] for name, found in (("a", first), ("b", second))}
        remarks = first.remarks() + second.remarks()
        found = difference_as_json(difference) | {"damaged": damaged, "remarks": remarks}
        typer.echo(json.dumps(found, indent=2))
    else:
        _tell(first, second)
        print_difference(difference, a, b)
    if not difference.same:
        raise typer.Exit(_DIFFERENT)


def _selection(
    data: list[str] | None,
    methods: list[str] | None,
    shots: list[str] | None,
    seeds: list[str] | None,
    model: list[str] | None,
    share: list[str] | None,
    status: str | None,
) -> Selection:
    from kalmanclip.experiments.select import Selection

    if status not in (None, "done", "failed"):
        raise ConfigError(f"--status is done or failed, not {status!r}.")
    return Selection(
        data=tuple(words(data)),
        methods=tuple(words(methods)),
        shots=tuple(integers("shots", shots)),
        seeds=tuple(integers("seeds", seeds)),
        models=tuple(words(model)),
        shares=tuple(shares("share", share)),
        statuses=() if status is None else (status,),
    )


def _row(record: Record) -> dict[str, Any]:
    """A run in one line; metrics are None where it failed or they are not defined."""
    from kalmanclip.experiments.cells import METRICS, label_of, share_of

    run = record["run"]
    return {
        "label": label_of(record),
        "data": run["data"],
        "shots": run["shots"],
        "seed": run["seed"],
        "share": share_of(record),
        "model": run["model"],
        **{metric: record.get("metrics", {}).get(metric) for metric in METRICS},
        "seconds": sum(record["seconds"].values()) if "seconds" in record else None,
        "status": record["status"],
        "reason": record.get("reason"),
        "method": run["method"],
        "code": _code(record),
        "address": record["address"],
    }


def _print(rows: Sequence[dict[str, Any]]) -> None:
    # what is the same for all of them would only take room
    extra = [name for name in ("model", "share") if len({row[name] for row in rows}) > 1]
    numbers = ("shots", "seed", "accuracy", "NLL", "ECE", "seconds")
    heads = {"model": "backbone", "share": "corrupted"}
    table = listing(
        "method", "data", *(heads[n] for n in extra), *numbers, "status", right=(*numbers, *(heads[n] for n in extra))
    )
    for row in rows:
        shown = {"model": row["model"], "share": f"{100 * row['share']:g} %"}
        table.add_row(
            row["label"],
            row["data"],
            *(shown[name] for name in extra),
            str(row["shots"]),
            str(row["seed"]),
            percent(row["accuracy"]),
            _number(row["nll"], 3),
            percent(row["ece"]),
            _number(row["seconds"], 1),
            row["status"] if row["reason"] is None else f"{row['status']}: {' '.join(row['reason'].split())}",
        )
    say(table)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _code(record: Record) -> str:
    """The version of the code, and the beginning of the hash that tells two states of a version apart."""
    code = record.get("code", {})
    return f"{code.get('version', '?')} ({code.get('source', '?')[:8]})"


def _count(values: Iterable[str]) -> str:
    counted = Counter(values).most_common()
    return counted[0][0] if len(counted) == 1 else ", ".join(f"{value}: {count} runs" for value, count in counted)


def _tell(*chosen: Chosen) -> None:
    for one in chosen:
        for remark in one.remarks():
            note(remark)


def _written(ending: str, records: Sequence[Record]) -> str:
    """The contents of a file with this ending, one of `_ENDINGS`."""
    from kalmanclip.experiments.latex import to_latex
    from kalmanclip.experiments.report import by_backbone, shortened
    from kalmanclip.experiments.table import to_csv, to_markdown

    if ending == ".json":
        return json.dumps(shortened(records), indent=2, ensure_ascii=False) + "\n"
    return {".csv": to_csv, ".md": to_markdown, ".tex": to_latex}[ending](by_backbone(records))


register(
    app,
    list_,
    "kalmanclip results list results/\n"
    "kalmanclip results list results/ --methods kalman,gda --shots 1 --status done\n"
    "kalmanclip results list results/ --status failed --json",
    "list",
)
register(
    app,
    export,
    "kalmanclip results export results/ -o table.tex -o table.csv\n"
    "kalmanclip results export results/ --data pets,dtd --methods kalman,gda --shots 1,16 -o table.md",
    "export",
)
register(
    app,
    diff,
    "kalmanclip results diff before/ after/\n"
    "kalmanclip results diff before/ after/ --methods kalman --tolerance 0.001\n"
    "kalmanclip results diff laptop/ cluster/ --json > difference.json",
    "diff",
)

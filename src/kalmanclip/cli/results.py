"""``kalmanclip results``: what is in a folder of results, as tables for elsewhere, and what differs between two."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kalmanclip.cli.arguments import Json, integers, shares, split_values
from kalmanclip.cli.command import register
from kalmanclip.cli.console import listing, note, percent, say, some, waiting
from kalmanclip.errors import ConfigError, DataError
from kalmanclip.files import write_atomic

if TYPE_CHECKING:
    import pandas as pd

    from kalmanclip.experiments.difference import Difference
    from kalmanclip.experiments.store import Chosen, Record, Selection

app = typer.Typer(
    name="results",
    help="Results of `compare` and `paper`: list them, export tables or slim files, compare two sets of them.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Store = Annotated[
    Path,
    typer.Argument(
        metavar="STORE",
        help="The folder that `kalmanclip compare` or `paper` wrote, or a file with one line per run (.jsonl).",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class RunFilter:
    """Which runs of a store are meant, as options of a command."""

    data: Annotated[list[str] | None, typer.Option(help="Only these data sets, by name, separated by commas.")] = None
    methods: Annotated[list[str] | None, typer.Option(help="Only these methods, by label, separated by commas.")] = None
    shots: Annotated[
        list[str] | None, typer.Option(help="Only these numbers of training images per class, separated by commas.")
    ] = None
    seeds: Annotated[list[str] | None, typer.Option(help="Only these seeds, separated by commas.")] = None
    model: Annotated[list[str] | None, typer.Option(help="Only these backbones, separated by commas.")] = None
    share: Annotated[
        list[str] | None,
        typer.Option(help="Only these shares of corrupted training images, separated by commas; 0: clean."),
    ] = None
    status: Annotated[
        str | None, typer.Option(help="Only runs that are done, or that failed.", metavar="done|failed")
    ] = None

    def selection(self) -> Selection:
        """Return what the options choose."""
        from kalmanclip.experiments.store import Selection

        if self.status not in (None, "done", "failed"):
            raise ConfigError(f"--status is done or failed, not {self.status!r}.")
        return Selection(
            data=tuple(split_values(self.data)),
            methods=tuple(split_values(self.methods)),
            shots=tuple(integers("shots", self.shots)),
            seeds=tuple(integers("seeds", self.seeds)),
            models=tuple(split_values(self.model)),
            shares=tuple(shares("share", self.share)),
            statuses=() if self.status is None else (self.status,),
        )


_ENDINGS = (".csv", ".md", ".tex", ".jsonl")
_DIFFERENT = 1
"""Exit code of `diff` for stores that differ, as that of the program of this name."""
_SHOWN = 20
_CHANGES = {"accuracy": ("accuracy points", 100, 2), "nll": ("NLL change", 1, 4), "ece": ("ECE points", 100, 2)}
"""What `diff` shows of a change: by metric, its title, and as how many parts of one with how many digits."""


def list_(
    store: Store,
    only: RunFilter,
    show_all: Annotated[
        bool, typer.Option("--all", help="Also the calibration error, the seconds, and why a run failed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the runs in a folder of results, one per line.

    Options choose among them; each takes several values, separated by commas.
    """
    with waiting("Reading"):
        from kalmanclip.experiments.store import choose

        chosen = choose(store, only.selection())
    rows = [_row(record) for record in chosen.records]
    if as_json:
        found = {"runs": rows, "damaged": chosen.damaged, "remarks": chosen.remarks()}
        typer.echo(json.dumps(found, indent=2))
        return
    _note_remarks(chosen)
    _print(rows, show_all)
    failed = sum(row["status"] == "failed" for row in rows)
    why = " (--all says why)" if failed and not show_all else ""
    say(
        f"{len(rows)} runs, {len(rows) - failed} done, {failed} failed{why}. "
        f"Backbones: {_count(r['model'] for r in rows)}. "
        f"Code: {_count(r['code'] for r in rows)}."
    )


def export(
    store: Store,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            "-o",
            help="FILE.csv: one line per cell. FILE.md, FILE.tex: tables. FILE.jsonl: one slim line per run, for git. "
            "Several: separated by commas. Default: the tables on the screen, as Markdown.",
        ),
    ] = None,
    *,
    only: RunFilter,
) -> None:
    """Write the results of a folder as tables (CSV, Markdown, LaTeX) or as one slim line per run, by the file's ending.

    A .jsonl file is all that tables need: every command that reads results takes it instead of a folder.
    """
    files = [Path(name) for name in split_values(output)]
    for path in files:
        if path.suffix.lower() not in _ENDINGS:
            raise ConfigError(f"Results cannot be written to {path}: its name must end in {', '.join(_ENDINGS)}.")
    with waiting("Reading"):
        from kalmanclip.experiments.store import choose

        chosen = choose(store, only.selection())
    _note_remarks(chosen)
    if len({_code(record) for record in chosen.records}) > 1:
        note("These results were made by different versions of the code; `kalmanclip results list` counts them.")
    if not files:
        typer.echo(_written(".md", chosen.records), nl=False)
    for path in files:
        write_atomic(path, _written(path.suffix.lower(), chosen.records), DataError)
        say(f"{len(chosen.records)} runs are in {path}.")


def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="Results: a folder, or a .jsonl file.", show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another; changes are from A to B.", show_default=False)],
    *,
    only: RunFilter,
    tolerance: Annotated[
        float, typer.Option(help="Metrics that differ by no more count as the same (0.01 of accuracy: 1 %).", min=0)
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """Compare two sets of results: the same runs with other results, other options, and what one of them lacks.

    Seconds, code and packages are shown, but are no difference by themselves. Exit code 0: the same; 1: different; 2
    and 3: an option or a folder cannot be used.
    """
    selection = only.selection()
    with waiting("Reading"):
        from kalmanclip.experiments.difference import compare_results
        from kalmanclip.experiments.store import find_results

        first, second = find_results(a, selection), find_results(b, selection)
        if not first.records and not second.records:
            raise first.nothing()
        difference = compare_results(first.records, second.records, tolerance)
    if as_json:
        found = _difference_json(difference) | {"tolerance": tolerance}
        found |= {"damaged": {"a": first.damaged, "b": second.damaged}, "remarks": first.remarks() + second.remarks()}
        typer.echo(json.dumps(found, indent=2))
    else:
        _note_remarks(first, second)
        _print_difference(difference, a, b)
    if not difference.same:
        raise typer.Exit(_DIFFERENT)


def _row(record: Record) -> dict[str, Any]:
    """Return a run in one line; metrics are None where it failed or they are not defined."""
    from kalmanclip.experiments.aggregate import METRICS
    from kalmanclip.experiments.store import label_of, share_of

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


def _print(rows: Sequence[dict[str, Any]], everything: bool) -> None:
    def number(value: float | None, digits: int) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    # what is the same for all of them would only take space
    models, levels = (len({row[name] for row in rows}) > 1 for name in ("model", "share"))
    lines = []
    for row in rows:
        reason = f": {' '.join(row['reason'].split())}" if row["reason"] is not None and everything else ""
        line = {"method": row["label"], "data": row["data"]}
        line |= {"backbone": row["model"]} if models else {}
        line |= {"corrupted": f"{100 * row['share']:g} %"} if levels else {}
        line |= {"shots": row["shots"], "seed": row["seed"], "accuracy": percent(row["accuracy"])}
        line |= {"NLL": number(row["nll"], 3)}
        line |= {"ECE": percent(row["ece"]), "seconds": number(row["seconds"], 1)} if everything else {}
        lines.append(line | {"status": row["status"] + reason})
    _say_table(lines)


def _code(record: Record) -> str:
    """Return the version of the code, and the beginning of the hash that tells two states of a version apart."""
    code = record.get("code", {})
    return f"{code.get('version', '?')} ({code.get('source', '?')[:8]})"


def _count(values: Iterable[str]) -> str:
    counted = Counter(values).most_common()
    return counted[0][0] if len(counted) == 1 else ", ".join(f"{value}: {count} runs" for value, count in counted)


def _note_remarks(*chosen: Chosen) -> None:
    for one in chosen:
        for remark in one.remarks():
            note(remark)


def _written(ending: str, records: Sequence[Record]) -> str:
    """Return the contents of a file with this ending, one of `_ENDINGS`."""
    from kalmanclip.experiments.aggregate import to_csv, to_frame
    from kalmanclip.experiments.report import report_latex, report_markdown
    from kalmanclip.experiments.store import to_jsonl

    if ending == ".jsonl":
        return to_jsonl(records)
    return {".csv": to_csv, ".md": report_markdown, ".tex": report_latex}[ending](to_frame(records))


def _print_difference(difference: Difference, a: Path, b: Path) -> None:
    """Print what two stores have in common and what they have not, the most important first."""
    common, different = difference.common, difference.different()
    say(f"A is {a}, B is {b}. Changes are from A to B, means over runs.")
    equal = f"{len(common) - len(different)} of them" if len(different) else "all"
    say(f"{len(common)} runs are in both, {equal} with the same results." if len(common) else "No run is in both.")
    if made := difference.made_with():
        said = some([f"{name} ({count} runs)" for name, count in made.items()])
        say(f"They were not made with the same: {said}.")
    if len(different):
        _say_table(_summary(difference, common), "The same runs by method")
        pairs = [_pair(difference, pair) for pair in different.head(_SHOWN).itertuples()]
        _say_table(pairs, "The same runs with other results, largest first")
        if len(different) > _SHOWN:
            note(f"and {len(different) - _SHOWN} more; --json lists all of them")
    if len(difference.replaced):
        rows = _summary(difference, difference.replaced, by_run=True)
        _say_table(rows, "The same label, data set, shots and seed, run otherwise")
    for name, runs in (("A", difference.only_a), ("B", difference.only_b)):
        if len(runs):
            lines = [_unmatched(*group) for group in runs.groupby("label", sort=False)]
            _say_table(lines, f"Only in {name}: {len(runs)} runs")
    say("The same." if difference.same else "Different.")


def _summary(difference: Difference, pairs: pd.DataFrame, by_run: bool = False) -> list[dict[str, Any]]:
    """Return a line per method, and per change of options: how many runs, how many differ, mean and largest changes."""
    keys = [pairs["label"], pairs["run"].map(lambda run: repr(sorted(run.items())))]
    lines = []
    for (label, _), group in pairs.groupby(keys, sort=False):
        line: dict[str, Any] = {"method": label, "runs": len(group)}
        line |= {} if by_run else {"other results": int(group["differs"].sum())}
        for metric, (title, *_) in _CHANGES.items():
            line[title] = _change(difference.changes(group, metric).mean(), metric)
        accuracy = difference.changes(group, "accuracy").dropna()
        largest = accuracy.loc[accuracy.abs().idxmax()] if len(accuracy) else float("nan")
        line["largest accuracy points"] = _change(largest, "accuracy")
        if by_run:
            run = group["run"].iloc[0]
            line["what is not the same"] = some(
                [f"{name}: {_shortened(a)} → {_shortened(b)}" for name, (a, b) in run.items()]
            )
        else:
            line |= {f"seconds {side.upper()}": f"{group[f'seconds_{side}'].sum():.1f}" for side in "ab"}
        lines.append(line)
    return lines


def _pair(difference: Difference, pair: Any) -> dict[str, Any]:
    numbers, changed = difference.metrics_of(pair, all_of_them=True), difference.metrics_of(pair)
    line = {"method": pair.label, "data": pair.data, "shots": pair.shots, "seed": pair.seed}
    line["corrupted"] = f"{100 * pair.share:g} %"
    for side, status in enumerate((pair.status_a, pair.status_b)):
        accuracy = numbers.get("accuracy", (None, None))[side]
        line[f"accuracy {'AB'[side]}"] = status if accuracy is None else f"{100 * accuracy:.2f} %"
    for metric, (title, *_) in _CHANGES.items():
        a, b = numbers.get(metric, (None, None))
        line[title] = _change(float("nan") if a is None or b is None else b - a, metric)
    line["also different"] = some([name for name in changed if name not in (*_CHANGES, "status")])
    return line


def _unmatched(label: str, runs: pd.DataFrame) -> dict[str, Any]:
    values = {name: some([str(value) for value in sorted(runs[name].unique())]) for name in ("data", "shots", "seed")}
    shares = some([f"{100 * share:g} %" for share in sorted(runs["share"].unique())])
    return {"method": label, "runs": len(runs), **values, "corrupted": shares}


def _say_table(lines: Sequence[dict[str, Any]], title: str | None = None) -> None:
    texts = ("method", "data", "status", "also different", "what is not the same")
    table = listing(*lines[0], right=[head for head in lines[0] if head not in texts])
    for line in lines:
        table.add_row(*map(str, line.values()))
    if title is not None:
        say()
        say(title, style="bold")
    say(table)


def _change(value: float, metric: str) -> str:
    """Return a change with its sign; one too small for the usual digits is not shown as none."""
    if value != value:
        return "-"
    _, scale, digits = _CHANGES[metric]
    shown = f"{scale * value:+.{digits}f}"
    return f"{scale * value:+.1e}" if value and not float(shown) else shown


def _shortened(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _difference_json(difference: Difference) -> dict[str, Any]:
    """Return all of it as plain JSON values."""
    names = ["label", "data", "shots", "seed", "model", "share"]
    pair = [*names, "address_a", "address_b", "status_a", "status_b", "seconds_a", "seconds_b"]

    def runs(frame: pd.DataFrame, columns: list[str], **more: list[Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(frame[columns].assign(**more).to_json(orient="records"))
        return found

    def both(changes: dict[str, tuple[Any, Any]]) -> dict[str, Any]:
        return {name: {"a": a, "b": b} for name, (a, b) in changes.items()}

    different, replaced = difference.different(), difference.replaced
    changes = [both(difference.metrics_of(run)) for run in different.itertuples()]
    metrics = [both(difference.metrics_of(run, all_of_them=True)) for run in replaced.itertuples()]
    return {
        "same": difference.same,
        "common": len(difference.common),
        "different": runs(different, pair, changes=changes),
        "rows": _summary(difference, difference.common),
        "replaced": runs(replaced, pair, run=list(map(both, replaced["run"])), metrics=metrics),
        "only_in_a": runs(difference.only_a, [*names, "status", "address"]),
        "only_in_b": runs(difference.only_b, [*names, "status", "address"]),
        "made_with_other": difference.made_with(),
    }


_LIST = """
kalmanclip results list results/
kalmanclip results list results/ --methods kalman,gda --shots 1 --status done
kalmanclip results list results/ --status failed --json
"""
_EXPORT = """
kalmanclip results export results/ -o table.tex,table.csv
kalmanclip results export runs/ -o results/comparison.jsonl
kalmanclip results export results/ --data pets,dtd --methods kalman,gda --shots 1,16 -o table.md
"""
_DIFF = """
kalmanclip results diff before/ after/
kalmanclip results diff before/ after/ --methods kalman --tolerance 0.001
kalmanclip results diff laptop/ cluster/ --json > difference.json
"""
register(app, list_, _LIST, "list")
register(app, export, _EXPORT)
register(app, diff, _DIFF)

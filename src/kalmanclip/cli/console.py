"""Output for people: results on stdout, everything else on stderr, plain text where there is no terminal."""

from __future__ import annotations

import codecs
import copy
import csv
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.measure import measure_renderables
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from kalmanclip.prediction import ExpectedAccuracy

_PIPE_WIDTH = 1000
"""Columns where no terminal sets a limit: whoever reads a pipe wants whole paths."""

_muted = False


def mute() -> None:
    """Show nothing but errors from now on: of several processes that do the same, one prints."""
    global _muted
    _muted = True


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys instead of showing it, but tabs and line ends: control characters, what turns the direction of
a text, and bytes of file names that are no text."""


def printable(text: str, one_line: bool = False) -> str:
    """Return a text as it may be shown: names of files and classes come from anywhere."""
    shown = _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    return shown.replace("\n", "\\n") if one_line else shown


class _Console(Console):
    """Whatever is printed as a plain text is printable."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


def _as_bytes_or_number(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    try:
        return character.encode(error.encoding, "surrogateescape"), error.start + 1
    except UnicodeEncodeError:
        return character.encode("ascii", "backslashreplace"), error.start + 1


def show_anything() -> None:
    """Let characters that the terminal has not be written as their numbers.

    Bytes of file names that are no text stay as they are, for programs that read a table of them.
    """
    codecs.register_error("kalmanclip", _as_bytes_or_number)
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # whoever runs us may have put something else there
            stream.reconfigure(errors="kalmanclip")  # type: ignore[union-attr]


def console(stderr: bool = False, always: bool = False) -> Console:
    """Return a console for stdout or stderr as they are now. Names are printed with brackets and all."""
    made = _Console(stderr=stderr, markup=False, emoji=False, highlight=False, quiet=_muted and not always)
    if not made.is_terminal:
        made.width = _PIPE_WIDTH
    return made


def say(text: str | Text | Table = "", style: str | None = None) -> None:
    """Print a result to stdout. A table that is too wide for the screen goes on below."""
    screen = console()
    if isinstance(text, str):
        _wrap(screen, text, style)
        return
    for part in _parts(text, screen) if isinstance(text, Table) else [text]:
        screen.print(part, style=style)


def say_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Print rows as CSV to stdout: names as they are for a program, and printable on a screen."""
    if sys.stdout.isatty():
        rows = [{key: printable(v) if isinstance(v, str) else v for key, v in row.items()} for row in rows]
        columns = [printable(column) for column in columns]
    writer = csv.DictWriter(sys.stdout, fieldnames=list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _wrap(screen: Console, text: str, style: str | None = None) -> None:
    """Print lines of prose, wrapped at spaces. Longer words (paths) stay whole, and so does what is indented."""
    for line in printable(text).split("\n"):
        if not line.startswith("  "):  # commands and names, to be copied
            line = textwrap.fill(line, screen.width, break_long_words=False, break_on_hyphens=False)
        screen.print(line, style=style, soft_wrap=True)


def _parts(table: Table, screen: Console) -> list[Table]:
    """Return a table as one or several that the screen has room for without a break in any word.

    Every part begins with the first column, so that its rows can be told apart. A word that takes more than half of
    the screen is broken nevertheless: a path, mostly.
    """
    half, wide = screen.width // 2, screen.options.update(max_width=10_000)
    sizes = [measure_renderables(screen, wide, [column.header, *column.cells]) for column in table.columns]
    least = [min(size.minimum, half) for size in sizes]
    between = table.padding[1] + table.padding[3] + (table.box is not None)
    room, groups = screen.width - 2, [[0]]
    for i in range(1, len(sizes)):
        if len(groups[-1]) > 1 and sum(least[j] + between for j in (*groups[-1], i)) > room:
            groups.append([0])
        groups[-1].append(i)
    parts = [copy.copy(table) for _ in groups]
    for part, group in zip(parts, groups, strict=True):
        part.columns = [copy.copy(table.columns[i]) for i in group]
        left = room - sum(least[i] + between for i in group)
        # a column that wants little more than its words gets it, and the others share what is left
        order = sorted(range(len(group)), key=lambda at: sizes[group[at]].maximum - least[group[at]])
        for rank, at in enumerate(order):
            wanted = sizes[group[at]].maximum - least[group[at]]
            more = max(0, min(wanted, left // (len(group) - rank)))
            part.columns[at].width = least[group[at]] + more
            left -= more
    return parts


def note(text: str) -> None:
    """Print a remark to stderr."""
    _wrap(console(stderr=True), text, "yellow")


def complain(text: str) -> None:
    """Print an error to stderr."""
    _wrap(console(stderr=True, always=True), f"Error: {text}", "bold red")


def command_line(*words: str | Path) -> str:
    """Return a command to type, quoted for the shell where it must be."""
    return shlex.join(["kalmanclip", *map(str, words)])


def suggest(*lines: tuple[str, str]) -> None:
    """Print what to type next: pairs of a command and what it does."""
    say()
    say("What next:")
    lines = tuple((printable(command, one_line=True), meaning) for command, meaning in lines)
    width, screen = max(len(command) for command, _ in lines), console()
    below = any(width + len(meaning) + 5 > screen.width for _, meaning in lines)
    for command, meaning in lines:
        between = "\n      " if below else " " * (width - len(command) + 3)
        screen.print(Text(f"  {command}", style="cyan") + Text(between + meaning), soft_wrap=True)


def facts(rows: Iterable[tuple[str, Any]]) -> None:
    """Print names and values, one per line."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(printable(name, one_line=True), value if isinstance(value, Text) else str(value))
    say(table)


class _Listing(Table):
    """Every cell is one line, whatever is called so."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*(printable(c, one_line=True) if isinstance(c, str) else c for c in cells), **options)


def listing(*columns: str, right: Iterable[str] = ()) -> Table:
    """Return an empty table with these columns, those in ``right`` aligned to the right."""
    table = _Listing(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


def shortened(path: str) -> str:
    """Return the end of a path that takes at most half of the screen."""
    room = console().width // 2
    if len(path) <= room:
        return path
    end = path[1 - room :]
    return "…" + end[max(end.find("/"), 0) :]


def percent(share: float | None) -> str:
    """Return a share of one as people read it."""
    return "-" if share is None else f"{100 * share:.1f} %"


def some(names: list[str], limit: int = 8) -> str:
    """Return the first few names."""
    return ", ".join(names[:limit]) + (f", and {len(names) - limit} more" if len(names) > limit else "")


def size_of(path: Path) -> str:
    """Return the size of a file, or of all files in a folder."""
    files = [path] if path.is_file() else [f for f in path.rglob("*") if f.is_file() and not f.is_symlink()]
    size = float(sum(f.stat().st_size for f in files))
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if size >= 10 or unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


@contextmanager
def bars(before: str = "") -> Iterator[Callable[..., None]]:
    """Show progress bars on stderr, one per stage. Pipes get none.

    Yields what to call with (stage, done, total), and perhaps a title in place of the stage's name, which may change.
    """
    screen = console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as progress:
        tasks: dict[str, TaskID] = {}

        def show(stage: str, done: int, total: int, title: str | None = None) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(printable(f"{before}{stage}", True).capitalize(), total=total)
            progress.update(tasks[stage], completed=done, total=total, description=title and printable(title, True))

        yield show


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show a spinner on stderr while something has no measure of progress. Pipes get none."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield
        return
    with screen.status(text, spinner="dots" if screen.encoding.startswith("utf") else "line"):
        yield


def expected_facts(expected: ExpectedAccuracy | None) -> list[tuple[str, str]]:
    """Return what accuracy to expect as rows for `facts`; none where it is not known."""
    if expected is None:
        return []
    about, low, high = (round(100 * share) for share in (expected.accuracy, *expected.interval()))
    return [
        ("expected accuracy", f"about {about} of 100 new pictures like these should be right"),
        ("", f"(between {low} and {high}; by {expected.images} images, each held out once)"),
    ]


def calibrated_on(calibration: int, in_turn: bool) -> str:
    """Return what sets of classes are calibrated on."""
    return f"{calibration} images, each held out once" if in_turn else f"{calibration} images that were set aside"


def fit_facts(diagnostics: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what a fit has found (`KalmanCLIP.diagnostics_`) as rows for `facts`."""
    rows = []
    if "steps" in diagnostics:
        rows.append(("steps", f"{diagnostics['steps']}, of which {diagnostics['skipped']} skipped"))
    if "mean_regulation" in diagnostics:
        rows.append(("mean lambda", f"{diagnostics['mean_regulation']:.3f} (1: no batch surprised the filter)"))
    if "prior_std" in diagnostics:
        std, likelihood = diagnostics["prior_std"], diagnostics["held_out_log_likelihood"]
        chosen = "with one image per class there is nothing to choose it by"
        if likelihood:
            chosen = f"chosen among {len(likelihood)} on held-out training images"
        elif diagnostics["given_prior_std"] is not None:
            chosen = "as given"
        rows.append(("prior std", f"{std:.2f} of a similarity ({chosen})"))
        rows.append(("text's share", f"{percent(diagnostics['gain'])} of what it is zero-shot"))
    return rows

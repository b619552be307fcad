"""Output for people: results on stdout, everything else on stderr, plain text where there is no terminal."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

_PIPE_WIDTH = 1000
"""Columns where no terminal sets a limit: whoever reads a pipe wants whole paths."""

_muted = False


def mute() -> None:
    """Show nothing but errors from now on: of several processes that do the same, one prints."""
    global _muted
    _muted = True


def console(stderr: bool = False, always: bool = False) -> Console:
    """Return a console for stdout or stderr as they are now. File names are printed as they are, brackets and all."""
    made = Console(stderr=stderr, markup=False, emoji=False, highlight=False, quiet=_muted and not always)
    if not made.is_terminal:
        made.width = _PIPE_WIDTH
    return made


def say(text: str | Text | Table = "", style: str | None = None) -> None:
    """Print a result to stdout."""
    # Lines of prose wrap; lines without spaces to break at (paths) are never cut.
    console().print(text, style=style, overflow="fold")


def note(text: str) -> None:
    """Print a remark to stderr."""
    console(stderr=True).print(text, style="yellow", soft_wrap=True)


def complain(text: str) -> None:
    """Print an error to stderr."""
    console(stderr=True, always=True).print(Text(f"Error: {text}", style="bold red"), soft_wrap=True)


def command_line(*words: str | Path) -> str:
    """Return a command to type, quoted for the shell where it must be."""
    return shlex.join(["kalmanclip", *map(str, words)])


def suggest(*lines: tuple[str, str]) -> None:
    """Print what to type next: pairs of a command and what it does."""
    say()
    say("What next:")
    width = max(len(command) for command, _ in lines)
    for command, meaning in lines:
        console().print(Text(f"  {command:{width}}", style="cyan") + Text(f"   {meaning}"), soft_wrap=True)


def facts(rows: Iterable[tuple[str, Any]]) -> None:
    """Print names and values, one per line."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value if isinstance(value, Text) else str(value))
    say(table)


def listing(*columns: str, right: Iterable[str] = ()) -> Table:
    """Return an empty table with these columns, those in ``right`` aligned to the right."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


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
def bars(before: str = "") -> Iterator[Callable[[str, int, int], None]]:
    """Show progress bars on stderr, one per stage; yields what to call with (stage, done, total). Pipes get none."""
    screen = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as progress:
        tasks: dict[str, TaskID] = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(f"{before}{stage}".capitalize(), total=total)
            progress.update(tasks[stage], completed=done, total=total)

        yield show


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show a spinner on stderr while something has no measure of progress. Pipes get none."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield
        return
    with screen.status(text):
        yield


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
        if likelihood:
            best = likelihood[min(likelihood, key=lambda candidate: abs(candidate - std))]
            rows.append(("held out", f"log-likelihood {best:.2f} per image"))
        rows.append(("text's share", f"{percent(diagnostics['gain'])} of what it is zero-shot"))
    return rows

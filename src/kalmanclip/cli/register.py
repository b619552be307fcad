"""How a command is entered into its program: guarded, with help that fits any screen, and with examples."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import typer

from kalmanclip.cli.errors import guarded


def register(app: typer.Typer, command: Callable[..., None], examples: str, name: str | None = None) -> None:
    """Makes ``command`` a command of ``app``.

    Args:
        app: the program, or a part of it.
        command: its docstring is the help.
        examples: one per line.
        name: where it is not that of the function.
    """
    # typer keeps a docstring's line ends, which are those of the source file and not of the reader's screen
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    lines = "\n\n".join(f"  {line}" for line in examples.strip().splitlines())
    app.command(name, help=text, epilog=f"[bold]Examples[/bold]\n\n{lines}")(guarded(command))

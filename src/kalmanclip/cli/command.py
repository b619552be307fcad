"""How a command is registered: its options, help and examples, and what becomes of errors."""

from __future__ import annotations

import _thread
import copy
import functools
import inspect
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from kalmanclip.cli.console import complain, note
from kalmanclip.errors import KalmanClipError
from kalmanclip.files import explain
from kalmanclip.process import prepare_process

INTERRUPTED = 130
"""What shells report for a program that was stopped with Ctrl-C."""

_debug = False


def set_debug(wanted: bool) -> None:
    """Set whether errors come with their traceback, and libraries may warn and log."""
    global _debug
    _debug = wanted


def register(app: typer.Typer, command: Callable[..., None], examples: str, name: str | None = None) -> None:
    """Make ``command`` a command of ``app``: an error is one line on stderr and an exit code.

    A parameter whose type is a dataclass stands for a group of options, the fields of the dataclass.

    Args:
        app: the program, or a part of it.
        command: its docstring is the help.
        examples: one per line.
        name: where it is not that of the function.
    """
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {p.name: p.annotation for p in signature.parameters.values() if is_dataclass(p.annotation)}
    options: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        shown = [parameter.replace(kind=parameter.KEYWORD_ONLY)]
        if group := groups.get(parameter.name):
            hints = get_type_hints(group, include_extras=True)
            shown = [shown[0].replace(name=f.name, annotation=hints[f.name], default=f.default) for f in fields(group)]
        options += [option.replace(annotation=_named_path(option.annotation)) for option in shown]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        try:
            with _quiet(), _interruptible():
                command(**values)
        except KeyboardInterrupt:
            note("Stopped.")
            raise typer.Exit(INTERRUPTED) from None
        except KalmanClipError as error:
            _give_up(str(error), error.exit_code)
        except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
            raise  # the command line library's own business
        except Exception as error:
            _give_up(_unexpected(error), 1)

    run.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    # typer keeps a docstring's line ends, which are those of the source file and not of the reader's screen
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    lines = "\n\n".join(f"  {line}" for line in examples.strip().splitlines())
    app.command(name, help=text, epilog=f"[bold]Examples[/bold]\n\n{lines}")(run)


def path(value: Any) -> Path:
    """Return a path that is not empty: ``pathlib`` takes that for the current folder. Help shows the function's name.

    Raises:
        typer.BadParameter: it is, or no file can be called so.
    """
    if not os.fspath(value):
        raise typer.BadParameter("the path is empty; give one, or . for the current folder")
    if "\0" in os.fspath(value):
        raise typer.BadParameter("the path has a null character; check the spelling")
    return Path(value)


def _named_path(annotation: Any) -> Any:
    """Return the annotation of an option so that a path, or one of several, may not be empty."""
    kind, *details = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    if Path not in (kind, *get_args(kind)) or not details:
        return annotation
    detail = copy.copy(details[0])
    detail.parser = path
    return Annotated[kind, detail]


def _unexpected(error: Exception) -> str:
    # torch reports memory that it could not get as a RuntimeError
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "memory" in str(error)):
        return "Not enough memory. Try a smaller --batch-size or --rank, or --belief diagonal."
    if isinstance(error, OSError) and error.errno:  # the disk's or the path's trouble, not ours
        return explain("use", error.filename or "a file", error)
    return (
        f"unexpected {type(error).__name__}: {str(error).strip() or 'no details'}. This should not happen; "
        "please report it with the output of `kalmanclip --debug ...` and `kalmanclip info`."
    )


def _give_up(message: str, code: int) -> None:
    if _debug:
        raise  # the error that is being handled
    complain(message)
    raise typer.Exit(code) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the messages of libraries off the screen, and their threads and memory in order."""
    prepare_process()  # no command has imported torch yet
    if _debug:
        yield
        return
    root = logging.getLogger()  # open_clip logs there
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.setLevel(level)


def _interrupt() -> None:
    """Interrupt the main thread, also where it waits: a real signal wakes it, where there are such."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _thread.interrupt_main()


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C stop the command wherever it arrives.

    Python drops whatever is raised while an object is being deleted, and goes on; an interrupt that was dropped is
    sent again a moment later, when the main thread is elsewhere.
    """

    def send_again(dropped: sys.UnraisableHookArgs) -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            threading.Timer(0.01, _interrupt).start()
        else:
            before(dropped)

    before, sys.unraisablehook = sys.unraisablehook, send_again
    try:
        yield
    finally:
        sys.unraisablehook = before

"""Errors of commands: one line on stderr and an exit code; quiet libraries."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from kalmanclip.cli.console import complain, note
from kalmanclip.errors import KalmanClipError
from kalmanclip.process import prepare_process

INTERRUPTED = 130
"""What shells report for a program that was stopped with Ctrl-C."""

_debug = False


def set_debug(wanted: bool) -> None:
    """Set whether errors come with their traceback, and libraries may warn and log."""
    global _debug
    _debug = wanted


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with errors turned into one line on stderr and an exit code."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            with _quiet():
                command(*args, **kwargs)
        except KeyboardInterrupt:
            note("Stopped.")
            raise typer.Exit(INTERRUPTED) from None
        except KalmanClipError as error:
            _give_up(str(error), error.exit_code)
        except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
            raise  # the command line library's own business
        except Exception as error:
            _give_up(_unexpected(error), 1)

    return run


def _unexpected(error: Exception) -> str:
    # torch reports memory that it could not get as a RuntimeError
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "memory" in str(error)):
        return "Not enough memory. Try a smaller --batch-size or --rank, or --belief diagonal."
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

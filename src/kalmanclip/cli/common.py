"""What several commands share: arguments, loading, places to write to, images that cannot be read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kalmanclip.cli.screen import waiting
from kalmanclip.errors import AdapterError, ConfigError, ImageError
from kalmanclip.files import read_json

if TYPE_CHECKING:
    from kalmanclip.estimator import KalmanCLIP

Adapter = Annotated[
    Path, typer.Argument(metavar="ADAPTER", help="The folder that `kalmanclip fit` wrote.", show_default=False)
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps, ... By default a GPU if there is one.")]
Precision = Annotated[
    str | None,
    typer.Option(
        help="What the frozen model computes in: float32 (the default) or bfloat16, which takes half the memory and on "
        "a GPU less time. What is learned is float32 in any case, and an adapter goes with both."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def load(adapter: Path, device: str | None, precision: str | None = None) -> KalmanCLIP:
    """The adapter on its backbone."""
    with waiting("Loading the model"):
        from kalmanclip.adapter import read_description
        from kalmanclip.estimator import KalmanCLIP

        read_description(adapter)  # a mistyped path is no reason to build a model first
        check_device(device)
        check_precision(precision)
        return KalmanCLIP.load(adapter, device=device, precision=precision)


def check_device(device: str | None) -> None:
    """Refuses a device that this machine does not have, before images are read."""
    if device is not None:
        from kalmanclip.encoders.backbone import check_device

        check_device(device)


def check_precision(precision: str | None) -> None:
    """Refuses a precision that there is not, before images are read."""
    if precision is not None:
        from kalmanclip.encoders.backbone import check_precision

        check_precision(precision)


def options_file(path: Path | None) -> dict[str, Any]:
    """A JSON file with options by method; nothing without one."""
    options = {} if path is None else read_json(path, ConfigError)
    if not isinstance(options, dict):
        raise ConfigError(f"{path} must hold options by method, such as {{'kalman': {{'preset': 'paper'}}}}.")
    return options


@contextmanager
def writable_folder(folder: Path) -> Iterator[None]:
    """Makes sure, before the work, that its result can be written; an empty new folder does not outlive a failure."""
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        raise AdapterError(
            f"Cannot write to {folder}: {problem.strerror}. Choose a place you may write to."
        ) from problem
    try:
        yield
    finally:
        if new:
            with suppress(OSError):  # not empty: the work succeeded
                folder.rmdir()


def refuse_foreign(folder: Path, ours: Sequence[str]) -> None:
    """Refuses to mix output with somebody else's files; ``ours`` are the patterns of names that may be there."""
    if not folder.is_dir():
        return
    for entry in sorted(folder.iterdir()):
        if not entry.name.startswith(".") and not any(entry.match(pattern) for pattern in ours):
            raise ConfigError(
                f"{folder} is a folder with other things in it ({entry.name}). Choose a new folder for the output."
            )


@contextmanager
def naming_bad_images(sources: Sequence[Any]) -> Iterator[None]:
    """Turns the error about the first image that cannot be read into one about all of them."""
    try:
        yield
    except ImageError as first:
        bad = unreadable(sources)
        if len(bad) < 2:
            raise
        shown = "\n".join(f"  {problem}" for problem in list(bad.values())[:10])
        more = f"\n  and {len(bad) - 10} more" if len(bad) > 10 else ""
        raise ImageError(f"{len(bad)} of {len(sources)} images cannot be read:\n{shown}{more}") from first


def unreadable(sources: Sequence[Any]) -> dict[int, ImageError]:
    """Which images cannot be read, by position, and why."""
    from kalmanclip.data import load_image

    def problem(source: Any) -> ImageError | None:
        try:
            load_image(source)
        except ImageError as error:
            return error
        return None

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return {i: error for i, error in enumerate(pool.map(problem, sources)) if error is not None}

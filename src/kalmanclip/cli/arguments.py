"""What several commands share: arguments and their values, loading, output folders, unreadable images."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kalmanclip.cli.console import waiting
from kalmanclip.cli.lean import import_models, model_of
from kalmanclip.errors import AdapterError, ConfigError, ImageError
from kalmanclip.files import LOCK, check_path, read_options

if TYPE_CHECKING:
    from kalmanclip.estimator import KalmanCLIP
    from kalmanclip.methods import Classifier

Number = TypeVar("Number", int, float)

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
    """Return the adapter on its backbone."""
    with waiting("Loading the model"):
        import_models(model_of(adapter))
        from kalmanclip.adapter import read_description
        from kalmanclip.estimator import KalmanCLIP

        read_description(adapter)  # a mistyped path is no reason to build a model first
        check_device(device, precision)
        return KalmanCLIP.load(adapter, device=device, precision=precision)


def load_method(adapter: Path, device: str | None, precision: str | None = None) -> Classifier:
    """Return what an adapter holds without the estimator around it: scikit-learn takes half a second to import."""
    with waiting("Loading the model"):
        import_models(model_of(adapter))
        from kalmanclip.adapter import read_adapter, restore
        from kalmanclip.encoders.backbone import load_backbone, usual_device

        stored = read_adapter(check_path(adapter, AdapterError))  # a mistyped path is no reason to build a model first
        check_device(device, precision)
        name = stored.description["backbone"]["name"]
        return restore(stored, load_backbone(name, device or usual_device(), precision or "float32"))


def check_device(device: str | None, precision: str | None = None) -> None:
    """Refuse a device that this machine does not have, or an unknown precision, before images are read."""
    if device is not None or precision is not None:
        from kalmanclip.encoders import backbone

        if device is not None:
            backbone.check_device(device)
        if precision is not None:
            backbone.check_precision(precision)


def options_file(path: Path | None) -> dict[str, Any]:
    """Return the options by method of a JSON or YAML file; nothing without one."""
    return {} if path is None else read_options(path, ConfigError)


@contextmanager
def writable_folder(folder: Path) -> Iterator[None]:
    """Make sure, before the work, that its result can be written; an empty new folder does not outlive a failure."""
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
        with suppress(OSError):  # somebody else may be faster
            if new and {entry.name for entry in folder.iterdir()} <= {LOCK}:  # the work failed
                (folder / LOCK).unlink(missing_ok=True)
                folder.rmdir()


def refuse_foreign(folder: Path, ours: Sequence[str]) -> None:
    """Refuse to mix output with somebody else's files; ``ours`` are the patterns of names that may be there."""
    if not folder.is_dir():
        return
    for entry in sorted(folder.iterdir()):
        if not entry.name.startswith(".") and not any(entry.match(pattern) for pattern in ours):
            raise ConfigError(
                f"{folder} is a folder with other things in it ({entry.name}). Choose a new folder for the output."
            )


def earlier_adapter(output: Path, force: bool, resume: bool = False) -> dict[str, Any] | None:
    """Return the description of the adapter in ``output`` that a fit goes on with; None where a new one is written.

    Without --force an adapter is not replaced: it is the result of work. With it, what is there may be damaged.
    """
    refuse_foreign(output, ours=("adapter.json", "belief*.safetensors"))
    if force or not (output / "adapter.json").exists():
        return None
    from kalmanclip.adapter import read_description

    description = read_description(output)
    if resume:
        return description
    notes = description.get("notes", {})
    if notes.get("epochs_done", 0) < notes.get("epochs", 0):
        raise AdapterError(
            f"{output} holds an interrupted fit ({notes['epochs_done']} of {notes['epochs']} passes). "
            "Go on with --resume, or start again with --force."
        )
    raise AdapterError(f"{output} already holds an adapter. Choose another name, or replace it with --force.")


@contextmanager
def naming_bad_images(sources: Sequence[Any]) -> Iterator[None]:
    """Turn the error about the first image that cannot be read into one about all of them."""
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
    """Return which images cannot be read, by position, and why."""
    from kalmanclip.data import load_image

    def problem(source: Any) -> ImageError | None:
        try:
            load_image(source)
        except ImageError as error:
            return error
        return None

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return {i: error for i, error in enumerate(pool.map(problem, sources)) if error is not None}


def split_values(values: Sequence[str] | None) -> list[str]:
    """Return the values of an option that is repeated, or has commas: ``["a,b", "c"]`` as a, b, c."""
    return [part.strip() for value in values or () for part in value.split(",") if part.strip()]


def integers(option: str, values: Sequence[str] | None) -> list[int]:
    """Return the same as whole numbers."""
    return _numbers(int, values, f"--{option} takes whole numbers, such as --{option} 1,2,4")


def shares(option: str, values: Sequence[str] | None) -> list[float]:
    """Return the same as shares of one."""
    return _numbers(float, values, f"--{option} takes shares, such as --{option} 0,0.1,0.5")


def _numbers(kind: Callable[[str], Number], values: Sequence[str] | None, wanted: str) -> list[Number]:
    try:
        return [kind(value) for value in split_values(values)]
    except ValueError as error:
        raise ConfigError(f"{wanted}, not {','.join(values or ())!r}.") from error


def split_specs(values: Sequence[str] | None) -> list[str]:
    """Return the same for data sets; the name of an existing folder may have commas, and so may a name of the Hub."""
    from kalmanclip.data.resolve import HUB, split_name

    def whole(value: str) -> bool:
        place = split_name(value)[1]
        return place.startswith(HUB) or Path(place).expanduser().exists()

    return [path for value in values or () for path in ([value] if whole(value) else split_values([value]))]


def check_share(option: str, value: float | None) -> None:
    """Refuse what is not a share above 0 and below 1; None is not given."""
    if value is not None and not 0 < value < 1:
        raise ConfigError(f"--{option} is a share above 0 and below 1, not {value:g}.")


def save_adapter(clf: KalmanCLIP, output: Path, notes: dict[str, Any]) -> None:
    """Save what was learned; where that cannot be, keep it in a temporary folder that the error names."""
    try:
        clf.save(output, notes)
    except AdapterError as problem:  # a full disk is no reason to lose the work
        kept = Path(tempfile.mkdtemp(prefix="kalmanclip-fit-"))
        try:
            clf.save(kept, notes)
        except AdapterError:
            shutil.rmtree(kept, ignore_errors=True)
            raise problem from None
        raise AdapterError(f"{problem}. What was learned is kept in {kept}: move it to where there is room.") from None

"""When a fit may go on with what an earlier one left behind, and when it must not."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from kalmanclip.cli.screen import some
from kalmanclip.config import flatten, to_dict
from kalmanclip.errors import AdapterError, ConfigError, DataError

if TYPE_CHECKING:
    from kalmanclip.data import LabelledImages
    from kalmanclip.methods import MethodConfig


def find(output: Path) -> dict[str, Any] | None:
    """What the adapter in ``output`` says of itself; None where there is none."""
    if not (output / "adapter.json").exists():
        return None
    from kalmanclip.adapter import read_description

    return read_description(output)


def refuse_overwriting(output: Path, before: dict[str, Any]) -> NoReturn:
    """An adapter is the result of work: it is replaced only on request."""
    notes = before.get("notes", {})
    if notes.get("epochs_done", 0) < notes.get("epochs", 0):
        raise AdapterError(
            f"{output} holds an interrupted fit ({notes['epochs_done']} of {notes['epochs']} passes). "
            "Go on with --resume, or start again with --force."
        )
    raise AdapterError(f"{output} already holds an adapter. Choose another name, or replace it with --force.")


def refuse_beginning(output: Path) -> NoReturn:
    """Where nothing is, no options are remembered: going on would be a fit with other options than the first."""
    raise AdapterError(
        f"There is nothing in {output} to go on with: no pass was finished, or the name is another. "
        "Start again without --resume, with all options."
    )


def require_same_options(
    before: dict[str, Any],
    options: MethodConfig,
    model: str | None,
    template: list[str] | None,
    noted: dict[str, int | str | None],
) -> None:
    """A fit is resumed with the options it began with. Those not given now (None) are taken from there.

    ``noted`` are those that the adapter's notes have, by name.
    """
    notes = {"precision": "float32"} | before.get("notes", {})  # older adapters were all fitted in that
    if "epochs_done" not in notes:
        raise ConfigError(
            "This adapter does not say how far its fit came (it was not saved by `kalmanclip fit`). "
            "Start again with --force."
        )
    from kalmanclip.adapter import read_config

    old, new = (flatten(to_dict(c)) for c in (read_config(before), options))
    changed = [(name, old.get(name), new[name]) for name in new if old.get(name) != new[name]]
    given = {
        "model": (before["backbone"]["name"], model),
        "template": (before["templates"], template or None),
        **{name: (notes.get(name), value) for name, value in noted.items()},
    }
    changed += [(name, was, now) for name, (was, now) in given.items() if now is not None and now != was]
    if changed:
        name, was, now = changed[0]
        raise ConfigError(
            f"The interrupted fit began with other options ({name} was {was!r}, now {now!r}). "
            "Resume it without that option, or start again with --force."
        )


def require_same_images(before: dict[str, Any], images: LabelledImages, fingerprint: str) -> None:
    """A fit is resumed on the images it began with."""
    if images.class_names != before["class_names"]:
        raise DataError(
            f"The interrupted fit was about other classes ({some(before['class_names'])}; "
            f"now {some(images.class_names)}). Give its folder, or start again with --force."
        )
    if fingerprint != before["notes"].get("images"):
        raise DataError(
            "The images are not those that the interrupted fit began with: files were added, removed or changed. "
            "Restore them, or start again with --force."
        )


def fingerprint(folder: Path, images: LabelledImages) -> str:
    """A hash of the images' names and sizes, wherever the folder lies."""
    digest = hashlib.sha256()
    for source, label in zip(images.sources, images.labels, strict=True):
        path = Path(source)  # type: ignore[arg-type]
        size = path.stat().st_size if path.exists() else None  # a broken link is reported when it is read
        digest.update(f"{label} {path.relative_to(folder).as_posix()} {size}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()

"""The method's options on the command line: a preset, then a file, then flags."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kalmanclip.config import merge
from kalmanclip.errors import ConfigError
from kalmanclip.files import read_json

if TYPE_CHECKING:
    from kalmanclip.methods import MethodConfig


def build_config(
    flags: dict[str, Any],
    file: Path | None = None,
    start: MethodConfig | None = None,
    preset: str | None = None,
) -> MethodConfig:
    """The options of one run.

    Args:
        flags: by dotted name, ``{"noise.beta": 0.9}``; None means not given.
        file: JSON with any part of the options, ``{"noise": {"beta": 0.9}}``.
        start: all options to start from; None: those of the preset.
        preset: where to start from; wins over ``start``. A file may name one too.

    Raises:
        ConfigError: an option is unknown to the preset's method, or refused.
    """
    from kalmanclip.methods import with_options, with_preset

    given: dict[str, Any] = {}
    if file is not None:
        if file.suffix != ".json":
            raise ConfigError(f"The options file {file} must be a JSON file, with a name that ends in .json.")
        table = read_json(file, ConfigError)
        if not isinstance(table, dict):
            raise ConfigError(f'The options file {file} must hold a table of options, such as {{"seed": 3}}.')
        given = table
    for name, value in flags.items():
        if value is not None:
            for part in reversed(name.split(".")):
                value = {part: value}
            given = merge(given, value)
    if preset is not None:
        given["preset"] = preset
    return with_preset(given) if start is None or "preset" in given else with_options(start, given)

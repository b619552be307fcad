"""The method's options on the command line: the dataclass's defaults, then a file, then flags."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kalmanclip.config import from_dict, merge, to_dict
from kalmanclip.errors import ConfigError
from kalmanclip.files import read_json

if TYPE_CHECKING:
    from kalmanclip.methods import KalmanConfig


def build_config(flags: dict[str, Any], file: Path | None = None, start: dict[str, Any] | None = None) -> KalmanConfig:
    """The options of one run.

    Args:
        flags: by dotted name, ``{"noise.beta": 0.9}``; None means not given.
        file: JSON with any part of the options, ``{"noise": {"beta": 0.9}}``.
        start: all options to start from; default: the dataclass's defaults.
    """
    from kalmanclip.methods import KalmanConfig

    values = to_dict(KalmanConfig()) if start is None else start
    if file is not None:
        if file.suffix != ".json":
            raise ConfigError(f"The options file {file} must be a JSON file, with a name that ends in .json.")
        given = read_json(file, ConfigError)
        if not isinstance(given, dict):
            raise ConfigError(f'The options file {file} must hold a table of options, such as {{"epochs": 3}}.')
        values = merge(values, given)
    for name, value in flags.items():
        if value is not None:
            for part in reversed(name.split(".")):
                value = {part: value}
            values = merge(values, value)
    return from_dict(KalmanConfig, values)


def flatten(config: KalmanConfig) -> dict[str, Any]:
    """Options by dotted name."""
    flat: dict[str, Any] = {}

    def visit(prefix: str, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, dict) and value:
                visit(f"{prefix}{name}.", value)
            else:
                flat[prefix + name] = value

    visit("", to_dict(config))
    return flat

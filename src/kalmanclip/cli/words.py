"""Options that take several values, separated by commas."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kalmanclip.errors import ConfigError


def words(values: Sequence[str] | None) -> list[str]:
    """``["a,b", "c"]`` as a, b, c."""
    return [word.strip() for value in values or () for word in value.split(",") if word.strip()]


def integers(option: str, values: Sequence[str] | None) -> list[int]:
    """The same for whole numbers."""
    try:
        return [int(word) for word in words(values)]
    except ValueError as error:
        given = ",".join(values or ())
        raise ConfigError(f"--{option} takes whole numbers, such as --{option} 1,2,4, not {given!r}.") from error


def shares(option: str, values: Sequence[str] | None) -> list[float]:
    """The same for shares of one."""
    try:
        return [float(word) for word in words(values)]
    except ValueError as error:
        given = ",".join(values or ())
        raise ConfigError(f"--{option} takes shares, such as --{option} 0,0.1,0.5, not {given!r}.") from error


def spellings(values: Sequence[str] | None) -> list[str]:
    """The same for data sets, but the name of an existing folder may have commas, and so may what the hub is told."""
    from kalmanclip.data.resolve import HUB, split_name

    def whole(value: str) -> bool:
        place = split_name(value)[1]
        return place.startswith(HUB) or Path(place).expanduser().exists()

    return [path for value in values or () for path in ([value] if whole(value) else words([value]))]

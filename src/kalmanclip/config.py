"""Option dataclasses to plain dictionaries and back: the saved config, the command line and YAML are all the same."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from kalmanclip.errors import ConfigError, KalmanClipError

T = TypeVar("T")


def to_dict(config: Any) -> dict[str, Any]:
    """Return a (nested) option dataclass as plain JSON values."""
    return dataclasses.asdict(config)


def from_dict(cls: type[T], values: Any, error: type[KalmanClipError] = ConfigError) -> T:
    """Return the dataclass ``cls`` from plain values; missing options keep their defaults.

    Raises:
        error: an unknown option (the message lists the known ones) or a value that the dataclass refuses.
    """
    if not isinstance(values, dict):
        raise error(f"The options of {cls.__name__} must be a table of names and values, not {values!r}.")
    hints = typing.get_type_hints(cls)
    known = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise error(f"Unknown option {unknown[0]!r} for {cls.__name__}. Known options: {', '.join(known)}.")
    try:
        return cls(**{name: _revive(hints[name], value, error) for name, value in values.items()})
    except ConfigError as problem:
        raise error(str(problem)) from problem
    except (TypeError, ValueError) as problem:
        raise error(f"The options of {cls.__name__} are not valid: {problem}") from problem


def _revive(hint: Any, value: Any, error: type[KalmanClipError]) -> Any:
    """Return a plain value as its field wants it: nested dataclasses, and tuples that JSON turned into lists."""
    if dataclasses.is_dataclass(hint):
        return from_dict(hint, value, error)  # type: ignore[arg-type]
    if typing.get_origin(hint) is tuple and isinstance(value, list):
        return tuple(value)
    return value


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested options by dotted name, ``{"noise.beta": 0.9}``; an empty table stays one."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        nested = isinstance(value, dict) and value
        flat |= flatten(value, f"{prefix}{name}.") if nested else {prefix + name: value}
    return flat


def merge(old: Any, new: Any) -> Any:
    """Return ``new`` over ``old``, table by table, so that one option of a group may be given and the others left."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return old | {name: merge(old.get(name), value) for name, value in new.items()}

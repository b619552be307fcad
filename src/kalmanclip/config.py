"""Option dataclasses to plain dictionaries and back: the saved config, the command line and YAML are all the same."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, TypeVar

from kalmanclip.errors import ConfigError, KalmanClipError

T = TypeVar("T")


QUIET = {"quiet": True}
"""Metadata of an option that is written only where it is not the default: files from before it stay the same."""


def to_dict(config: Any) -> dict[str, Any]:
    """Return a (nested) option dataclass as plain JSON values."""
    values = dataclasses.asdict(config)
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if f.metadata.get("quiet") and value == f.default:
            del values[f.name]
        elif dataclasses.is_dataclass(value):
            values[f.name] = to_dict(value)
    return values


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
        given = {name: _revive(hints[name], value, error) for name, value in values.items()}
        for name, value in given.items():
            check_type(value, hints[name], name)
        return cls(**given)
    except ConfigError as problem:
        raise error(str(problem)) from problem
    except (TypeError, ValueError, OverflowError) as problem:
        raise error(f"The options of {cls.__name__} are not valid: {problem}") from problem


def _revive(hint: Any, value: Any, error: type[KalmanClipError]) -> Any:
    """Return a plain value as its field wants it: nested dataclasses, and tuples that JSON turned into lists."""
    if dataclasses.is_dataclass(hint):
        return from_dict(hint, value, error)  # type: ignore[arg-type]
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if isinstance(value, Integral) and not isinstance(value, int):
        return int(value)  # a number of numpy, which JSON does not take
    if isinstance(value, list) and any(typing.get_origin(option) is tuple for option in options):
        return tuple(value)
    return value


_KINDS: dict[Any, tuple[type, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "text"),
    bool: (bool, "true or false"),
    type(None): (type(None), "nothing"),
}


def check_type(value: Any, hint: Any, name: str) -> None:
    """Raise `ConfigError`, naming the place, unless a plain value is of the type that an annotation asks for.

    Understood are numbers, text, truth values, None, lists, tuples, tables, unions of these and `TypedDict`, whose
    unknown names are left alone. A value of any other type is not looked at.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if not any(_is_of(value, option, name) for option in arguments):
            raise ConfigError(f"{name} must be {' or '.join(map(_said, arguments))}, not {short(value)}.")
    elif typing.is_typeddict(hint):
        check_type(value, dict, name)
        hints = typing.get_type_hints(hint)
        if missing := sorted(hint.__required_keys__ - set(value)):
            raise ConfigError(f"{', '.join(missing)} missing in {name}.")
        for key in hints.keys() & value.keys():
            check_type(value[key], hints[key], f"{name}.{key}")
    elif hint in _KINDS:
        if not isinstance(value, _KINDS[hint][0]) or (isinstance(value, bool) and hint is not bool):
            raise ConfigError(f"{name} must be {_said(hint)}, not {short(value)}.")
    elif (origin or hint) in (list, tuple, dict):
        if not isinstance(value, origin or hint):
            raise ConfigError(f"{name} must be {_said(hint)}, not {short(value)}.")
        if origin is tuple and arguments[1:] != (...,) and len(value) != len(arguments):
            raise ConfigError(f"{name} must have {len(arguments)} members, not {len(value)}.")
        if origin in (list, tuple):
            kinds = arguments if origin is tuple and arguments[1:] != (...,) else arguments[:1] * len(value)
            for position, (member, kind) in enumerate(zip(value, kinds, strict=True)):
                check_type(member, kind, f"{name}[{position}]")
        elif origin is dict:
            for key, member in value.items():
                check_type(member, arguments[1], f"{name}.{key}")


def _is_of(value: Any, hint: Any, name: str) -> bool:
    try:
        check_type(value, hint, name)
    except ConfigError:
        return False
    return True


def _said(hint: Any) -> str:
    names = {list: "a list", tuple: "a list", dict: "a table of names and values"}
    known = _KINDS.get(hint)
    return known[1] if known else names.get(typing.get_origin(hint) or hint, "something else")


def short(value: Any) -> str:
    """Return a value as a message shows it."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or tables within tables
        return f"a value that is too large to show ({type(value).__name__})"
    return text if len(text) <= 60 else f"{text[:57]}..."


LARGEST_SEED = 2**63 - 1
"""What torch takes, and its negative."""


def check_whole(least: int | None = None, most: int | None = None, /, **values: Any) -> None:
    """Raise `ConfigError` for values, by name, that are not whole numbers from ``least`` to ``most``; None will do.

    Numbers of numpy count as they do in Python; true and false are no numbers.
    """
    for name, value in values.items():
        if value is None:
            continue
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise ConfigError(f"{name} must be a whole number, not {short(value)}.")
        value = int(value)
        if least is not None and value < least:
            raise ConfigError(f"{name} must be at least {least}, not {short(value)}.")
        if most is not None and value > most:
            raise ConfigError(f"{name} must be at most {most}, not {short(value)}.")


def check_seed(seed: Any) -> None:
    """Raise `ConfigError` for what no generator can start from."""
    check_whole(-LARGEST_SEED, LARGEST_SEED, seed=seed)


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

"""The rows of a table: methods, and methods with other options under labels of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kalmanclip.config import flatten, merge
from kalmanclip.errors import ConfigError
from kalmanclip.methods import CONTROLS, METHODS, check_method


@dataclass(frozen=True)
class Variant:
    """One row.

    Attributes:
        label: what tables call it; a method's name, or a name of one's own.
        method: a key of `kalmanclip.methods.METHODS`.
        options: what differs from the method's defaults.
        by_data: what differs from that on a data set, by its name.
    """

    label: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    by_data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def options_on(self, data: str) -> Mapping[str, Any]:
        """The options on the data set of that name."""
        found: Mapping[str, Any] = merge(dict(self.options), dict(self.by_data.get(data, {})))
        return found

    @property
    def set_by_data(self) -> tuple[str, ...]:
        """Dotted names of the options that are not the same on all data sets."""
        return tuple(sorted({name for table in self.by_data.values() for name in flatten(table)}))


def find_variants(labels: Iterable[str], options: Mapping[str, Any] | None = None) -> list[Variant]:
    """The rows of these labels, in their order.

    Args:
        labels: names of methods, and labels in ``options``.
        options: by label, a table of options. A table with the entry ``method`` describes a variant of that method,
            ``{"kalman one pass": {"method": "kalman", "epochs": 1}}``; one without is for the method of that name. The
            entry ``by_data`` has further tables, by the names of data sets (several with commas between them).

    Raises:
        ConfigError: a label that is neither, or a table that is none.
    """
    known = {label: _variant(label, table) for label, table in (options or {}).items()}
    found = []
    for label in labels:
        if label not in known:
            check_method(label)
        found.append(known.get(label) or Variant(label, label))
    return found


def all_labels(options: Mapping[str, Any] | None = None) -> list[str]:
    """Every method but the controls, the paper's first with its variants next to it, and so on."""
    variants = [_variant(label, table) for label, table in (options or {}).items()]
    rows = {
        name: [
            *([] if name in CONTROLS else [name]),
            *(v.label for v in variants if v.method == name and v.label != name),
        ]
        for name in METHODS
    }
    return [label for row in rows.values() for label in row]


def _variant(label: str, table: Any) -> Variant:
    if not label.strip() or label != label.strip() or "," in label:
        raise ConfigError(f"The label {label!r} cannot be used: it must not be empty, nor have commas or outer spaces.")
    if not isinstance(table, dict) or "method" not in table:
        check_method(label)
    if not isinstance(table, dict):
        raise ConfigError(f"The options of {label} must be a table of names and values, not {table!r}.")
    method = table.get("method", label)
    if not isinstance(method, str):
        raise ConfigError(f"The method of {label!r} must be a name, not {method!r}.")
    check_method(method)
    if label in METHODS and label != method:
        raise ConfigError(f"The label {label!r} is the name of another method than {method!r}. Choose another label.")
    options = {name: value for name, value in table.items() if name not in ("method", "by_data")}
    return Variant(label, method, options, _by_data(label, table.get("by_data", {})))


def _by_data(label: str, tables: Any) -> dict[str, Mapping[str, Any]]:
    """Options by the name of one data set each."""
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ConfigError(f"by_data of {label!r} must hold tables of options by the names of data sets.")
    found: dict[str, Mapping[str, Any]] = {}
    for names, table in tables.items():
        for name in (part.strip() for part in names.split(",")):
            if not name or name in found:
                raise ConfigError(f"by_data of {label!r} names the data set {name!r} twice, or has an empty name.")
            found[name] = table
    return found

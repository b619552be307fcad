"""Methods, data sets, observations and covariance structures of other packages, found by their names.

A name means, in this order: what the package itself has, what was given to `register`, what an installed package
declares as an entry point of the group, and ``module:object``, which is imported.

A file must never decide what is imported. Whoever reads names from a file does so under `installed_only`: then
``module:object`` counts only where the user has imported the module already.
"""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from kalmanclip.errors import ConfigError

_ADDRESS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)

_only_installed: ContextVar[bool] = ContextVar("only_installed", default=False)


def is_address(name: Any) -> bool:
    """Return whether a name is written as ``module:object``."""
    return isinstance(name, str) and _ADDRESS.fullmatch(name) is not None


@contextmanager
def installed_only() -> Iterator[None]:
    """Import nothing for a ``module:object`` that is named in here: the name may come from a file."""
    token = _only_installed.set(True)
    try:
        yield
    finally:
        _only_installed.reset(token)


@dataclass(eq=False)
class Plugins:
    """The plug-ins of one kind.

    Attributes:
        group: of the entry points.
        what: one of them in words, for messages.
        accepts: returns what is wrong with an object that is to be one, or nothing.
    """

    group: str
    what: str
    accepts: Callable[[Any], str]
    _known: dict[str, Any] = field(default_factory=dict)  # registered, or found before

    def register(self, name: str, thing: Any) -> None:
        """Make an object known under a name, in this process."""
        self._check(name, thing)
        self._known[name] = thing

    def names(self) -> list[str]:
        """Return the names that are registered or declared by installed packages; nothing is imported."""
        return sorted({*self._known, *(entry.name for entry in self._entries())})

    def found(self) -> dict[str, Any]:
        """Return what was registered or found so far, by name."""
        return dict(self._known)

    def get(self, name: str, own: Mapping[str, Any]) -> Any:
        """Return what a name means.

        Args:
            name: of one of ours, of a plug-in, or ``module:object``.
            own: what the package itself has, by name.

        Raises:
            ConfigError: it means nothing, cannot be imported, or is something else; the message says which.
        """
        if name in own:
            return own[name]
        if name not in self._known:
            thing = self._find(name, own)
            self._check(name, thing)
            self._known[name] = thing
        return self._known[name]

    def has(self, name: str) -> bool:
        """Return whether a name may be that of a plug-in; nothing is imported."""
        return is_address(name) or name in self._known or any(entry.name == name for entry in self._entries())

    def _entries(self) -> tuple[EntryPoint, ...]:
        return tuple(entry_points(group=self.group))

    def _find(self, name: str, own: Mapping[str, Any]) -> Any:
        for entry in self._entries():
            if entry.name == name:
                try:
                    return entry.load()
                except Exception as problem:  # other people's code raises whatever it likes
                    raise ConfigError(
                        f"The {self.what} {name!r} could not be loaded from {entry.value}: {_said(problem)}. Repair or "
                        "uninstall the package that declares it."
                    ) from problem
        if is_address(name):
            return self._from_address(name)
        known = [*own, *self.names()]
        near = difflib.get_close_matches(str(name), known, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ConfigError(f"Unknown {self.what} {name!r}{hint}. There are: {', '.join(known)}; or write module:object.")

    def _from_address(self, name: str) -> Any:
        module_name, _, attribute = name.partition(":")
        if _only_installed.get():
            # of a module that is there already, and without its __getattr__, which might import
            there = vars(sys.modules[module_name]) if module_name in sys.modules else {}
            if attribute not in there:
                raise ConfigError(
                    f"The {self.what} {name!r} is named in a file, and files decide nothing about what is imported: "
                    f"`import {module_name}` first, or install it as an entry point of {self.group!r}."
                )
            return there[attribute]
        try:
            return getattr(importlib.import_module(module_name), attribute)
        except AttributeError as problem:
            raise ConfigError(f"The module {module_name} has no {attribute!r}: {_said(problem)}.") from problem
        except Exception as problem:
            raise ConfigError(
                f"The {self.what} {name!r} could not be imported: {_said(problem)}. Check the spelling, and that the "
                "module is installed or its folder is in PYTHONPATH."
            ) from problem

    def _check(self, name: str, thing: Any) -> None:
        wrong = self.accepts(thing)
        if wrong:
            raise ConfigError(f"{name!r} is no {self.what}: {wrong}.")


def subclass_of(parent: type) -> Callable[[Any], str]:
    """Return a check that an object is a subclass."""

    def wrong(thing: Any) -> str:
        is_one = isinstance(thing, type) and issubclass(thing, parent)
        return "" if is_one else f"it is not a subclass of {parent.__module__}.{parent.__qualname__}"

    return wrong


def _said(problem: BaseException) -> str:
    first = (str(problem).strip().splitlines() or [""])[0][:200]
    return f"{type(problem).__name__}: {first}".rstrip(": ").rstrip(".")

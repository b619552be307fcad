"""Import a library without the large libraries that it imports in turn, until one of those is used.

open_clip can build any tower of timm and transformers, torchvision can compile its operators, scikit-learn can check
distributions: importing them imports all that, several times what a prediction with a plain CLIP takes. While
`deferred` is active, stand-ins take the places of the modules named. What is used later is imported then.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


@contextmanager
def deferred(*names: str) -> Iterator[None]:
    """Import the named modules, and those inside them, when they are used; those that are imported already stay."""
    absent = [name for name in names if name not in sys.modules and _installed(name)]
    finder = _Finder(absent)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        finder.importing = False
        for name, module in list(sys.modules.items()):
            if isinstance(module, _Module) and module._finder is finder:
                del sys.modules[name]


def _installed(name: str) -> bool:
    """Return whether there is such a library; without it, importing it is to fail as always."""
    return find_spec(name.partition(".")[0]) is not None


class _Module(ModuleType):
    """A module in whose place another will be imported."""

    _finder: _Finder

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._finder.importing:
            return _Later(self.__name__, name)
        return getattr(importlib.import_module(self.__name__), name)


class _Later:
    """Something of a module that is imported once it is called, asked for an attribute, or inherited from."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def _found(self) -> Any:
        return getattr(importlib.import_module(self._module), self._name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._found()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found(), name)

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (self._found(),)

    def __instancecheck__(self, instance: object) -> bool:
        # nothing is an instance of what was never imported
        return self._module in sys.modules and isinstance(instance, self._found())

    def __or__(self, other: Any) -> Any:
        return Any  # in an annotation

    __ror__ = __or__


class _Finder(MetaPathFinder, Loader):
    """Finds stand-ins for modules, and for all that is inside them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.importing = names, True

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return what imports the stand-in; None for other modules."""
        if not any(f"{fullname}.".startswith(f"{name}.") for name in self.names):
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the stand-in."""
        module = _Module(spec.name)
        module._finder = self
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Execute nothing."""

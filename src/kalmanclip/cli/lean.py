"""What a command about one plain CLIP need not import.

open_clip imports timm and transformers for towers of theirs, and torchvision imports torch's compiler for an operator
of its own: together they take longer than torch. Where open_clip builds the whole model itself, a process that is a
command's own leaves them out. Whoever imports kalmanclip in Python gets these libraries as they are.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

_COMPILER = "torch._dynamo.utils"
_OF_OTHERS = ("timm_", "hf_", "multimodal_")
"""How options begin, in open_clip's configurations, of models that need timm or transformers."""

_own = False


def own_process() -> None:
    """Note that this process runs one command and nothing else."""
    global _own
    _own = True


def import_models(name: str | None) -> None:
    """Import torch and open_clip for a model, by its name; None: it is not known.

    Nothing that is imported here is ever collected, and looking through it takes up to a fifth of the time: the
    collector pauses.
    """
    if not _own or "open_clip" in sys.modules:
        return
    gc.disable()
    try:
        with _left_out() if name is not None and _is_plain(name) else nullcontext():
            importlib.import_module("open_clip")
    finally:
        gc.freeze()
        gc.enable()


def model_of(adapter: Path) -> str | None:
    """Return the name of an adapter's model; None where it does not say, which is for others to complain about."""
    try:
        return str(json.loads((adapter / "adapter.json").read_text(encoding="utf-8"))["backbone"]["name"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _is_plain(name: str) -> bool:
    """Return whether open_clip builds this model without timm and transformers, as far as its configuration tells."""
    architecture, _, weights = name.partition(":")
    if name == "tiny":
        return True
    spec = find_spec("open_clip")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    files = [Path(folder) / "model_configs" / f"{architecture.replace('/', '-')}.json" for folder in folders]
    found = [file.read_text(encoding="utf-8") for file in files if weights and file.is_file()]
    return bool(found) and not any(f'"{option}' in text for text in found for option in _OF_OTHERS)


@contextmanager
def _left_out() -> Iterator[None]:
    """Import as if timm and transformers were not installed, and torch's compiler once it is used."""
    places: dict[str, Any] = {"timm": None, "transformers": None, _COMPILER: _Compiler(_COMPILER)}
    places = {name: place for name, place in places.items() if name not in sys.modules}
    sys.modules.update(places)
    try:
        yield
    finally:
        for name, place in places.items():
            if sys.modules.get(name, ...) is place:
                del sys.modules[name]


class _Compiler(ModuleType):
    """In the place of a module of torch's compiler, which is imported when anything of it is used."""

    @staticmethod
    def is_compile_supported(device_type: str) -> bool:
        """Ask the module itself: torchvision takes this function by its name, and calls it to compile."""
        return bool(importlib.import_module(_COMPILER).is_compile_supported(device_type))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(_COMPILER) is self:
            del sys.modules[_COMPILER]
        return getattr(importlib.import_module(_COMPILER), name)

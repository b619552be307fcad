"""Covariance structures of the Gaussian belief, one per file.

Every module of this folder is imported, so that a structure registers itself: `make_belief` finds it by its ``kind``.
"""

from importlib import import_module
from pkgutil import iter_modules

from kalmanclip.filtering.beliefs.base import Belief, belief_structure, make_belief, restore_belief

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["Belief", "belief_structure", "make_belief", "restore_belief"]

"""Comparisons: which runs make a table; running, resuming, storing, drawing. No method's inside is known here.

Reports (`aggregate`, `render`, `report`, `figure`) are imported where they are made: workers need neither pandas nor
matplotlib.
"""

from kalmanclip.experiments.run_one import run_one
from kalmanclip.experiments.runner import run_all
from kalmanclip.experiments.sources import Source, find_sources
from kalmanclip.experiments.spec import CLEAN, Contamination, Run, Variant, find_variants, plan
from kalmanclip.experiments.store import Store

__all__ = [
    "CLEAN",
    "Contamination",
    "Run",
    "Source",
    "Store",
    "Variant",
    "find_sources",
    "find_variants",
    "plan",
    "run_all",
    "run_one",
]

"""Comparisons: which runs make a table; running, resuming, storing, drawing. No method's inside is known here."""

from kalmanclip.experiments.cells import Cell, Grid, Place
from kalmanclip.experiments.contamination import CLEAN, Contamination
from kalmanclip.experiments.report import in_order, write_report
from kalmanclip.experiments.run import Run, plan
from kalmanclip.experiments.run_one import run_one
from kalmanclip.experiments.runner import run_all
from kalmanclip.experiments.sources import Source, find_sources
from kalmanclip.experiments.store import Store
from kalmanclip.experiments.table import Table, make_tables, to_csv, to_markdown
from kalmanclip.experiments.variants import Variant, find_variants

__all__ = [
    "CLEAN",
    "Cell",
    "Contamination",
    "Grid",
    "Place",
    "Run",
    "Source",
    "Store",
    "Table",
    "Variant",
    "find_sources",
    "find_variants",
    "in_order",
    "make_tables",
    "plan",
    "run_all",
    "run_one",
    "to_csv",
    "to_markdown",
    "write_report",
]

"""Comparisons: which runs make a table; running, resuming, storing, drawing. No method's inside is known here."""

from kalmanclip.experiments.execute import execute
from kalmanclip.experiments.report import write_report
from kalmanclip.experiments.run import Run, plan
from kalmanclip.experiments.runner import run_all
from kalmanclip.experiments.sources import Source, find_sources
from kalmanclip.experiments.store import Store
from kalmanclip.experiments.table import Cell, Grid, to_csv, to_markdown

__all__ = [
    "Cell",
    "Grid",
    "Run",
    "Source",
    "Store",
    "execute",
    "find_sources",
    "plan",
    "run_all",
    "to_csv",
    "to_markdown",
    "write_report",
]

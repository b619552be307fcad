"""What a comparison leaves for people and programs: table.csv, table.md, results.json, figure.png, figure.svg."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kalmanclip.errors import DataError
from kalmanclip.experiments.cells import Grid, label_of, share_of
from kalmanclip.experiments.figure import draw_figure
from kalmanclip.experiments.table import to_csv, to_markdown
from kalmanclip.files import write_atomic, write_json_atomic
from kalmanclip.methods import METHODS

LEFT_OUT = ("task", "environment")
"""Parts of a record that results.json leaves to the run's own file: they are long, and the same again and again."""


def write_report(folder: Path, records: Sequence[dict[str, Any]]) -> dict[str, Grid]:
    """Writes all files of the report into ``folder`` and returns the cells, by backbone.

    With several backbones each has figures of its own, such as figure_RN50-openai.png.
    """
    grids = by_backbone(records)
    write_json_atomic(folder / "results.json", shortened(records), DataError)
    write_atomic(folder / "table.csv", to_csv(grids), DataError)
    write_atomic(folder / "table.md", to_markdown(grids), DataError)
    for model, grid in grids.items():
        name = "figure" if len(grids) == 1 else "figure_" + re.sub(r"[^\w.-]+", "-", model)
        draw_figure([folder / f"{name}.png", folder / f"{name}.svg"], grid)
    return grids


def by_backbone(records: Sequence[dict[str, Any]]) -> dict[str, Grid]:
    """The cells of records with any backbones, by backbone."""
    models = dict.fromkeys(record["run"]["model"] for record in records)
    return {model: Grid([r for r in records if r["run"]["model"] == model]) for model in models}


def shortened(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What results.json holds: the records without `LEFT_OUT`."""
    return {"runs": [{name: value for name, value in r.items() if name not in LEFT_OUT} for r in records]}


def in_order(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records of unknown order as a comparison would have planned them: the paper's method first."""
    methods = list(METHODS)

    def key(record: dict[str, Any]) -> tuple[Any, ...]:
        run, label = record["run"], label_of(record)
        rank = methods.index(run["method"]) if run["method"] in methods else len(methods)
        return (
            run["model"],
            run["data"],
            share_of(record),
            run["shots"],
            rank,
            label != run["method"],
            label,
            run["seed"],
        )

    return sorted(records, key=key)

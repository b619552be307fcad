"""Figures of the paper's tables for the docs, from results/paper.jsonl or another file that `kalmanclip paper` made.

``store`` names the file, without .jsonl: `paper` has what was measured with `tiny`, `paper-vitb16` (docs/paper.md) what
was measured on a real image tower.
"""

from __future__ import annotations

from functools import cache

from benchmarks import table as files
from kalmanclip.experiments.figure import Picture
from kalmanclip.experiments.paper.fill import Sheet, fill
from kalmanclip.experiments.paper.studies import STUDIES
from kalmanclip.experiments.render import to_markdown
from kalmanclip.experiments.store import read_results


def table(name: str, store: str = "paper") -> str:
    """A study with the paper's numbers beside ours; data sets that were not run are left out."""
    return to_markdown(sheet(name, store, whole=False).table)


def findings(name: str, store: str = "paper") -> str:
    """What a study finds, as a list."""
    return "\n".join(f"- {finding}" for finding in sheet(name, store).findings)


def pictures() -> dict[str, Picture]:
    """All pictures of all files, by the names of theirs in docs/assets."""
    stores = sorted(path.stem for path in files.RESULTS.glob("paper*.jsonl"))
    sheets = [(store, sheet(name, store)) for store in stores for name in STUDIES]
    return {
        f"{store}-{stem}": picture
        for store, found in sheets
        for stem, picture in zip(found.stems(), found.pictures, strict=True)
    }


@cache
def sheet(name: str, store: str = "paper", whole: bool = True) -> Sheet:
    """A study, filled from the runs that say that they belong to it; ``whole``: with all data sets of the paper."""
    study = STUDIES[name]
    records, _ = read_results(files.RESULTS / f"{store}.jsonl")
    shown = [r | {"label": r["studies"][name]} for r in records if name in r.get("studies", {})]
    run = {record["run"]["data"]: list(record["run"].get("shifts", {})) for record in shown}
    own = {data: list(study.shifts) for data in study.sets if whole or data in run}
    return fill(study, own | run, shown)

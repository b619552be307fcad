"""``kalmanclip demo``: the whole path on handwritten digits, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kalmanclip.cli.arguments import writable_folder
from kalmanclip.cli.console import waiting

EXAMPLES = """
kalmanclip demo
kalmanclip demo --out somewhere/else --seed 1
"""


def demo(
    out: Annotated[Path, typer.Option(help="The folder for what it makes.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Draws the images it learns from.")] = 0,
    tests: Annotated[int, typer.Option(hidden=True, min=1)] = 50,
) -> None:
    """See it work: learn handwritten digits from 16 examples each, offline, in less than a minute."""
    with writable_folder(out):
        with waiting("Loading"):
            from kalmanclip.demo import run
        run(out, seed, tests)

"""The figures in the docs, drawn from the files in results/.

    python -m benchmarks.figures            writes them into README.md and docs/, and the pictures into docs/assets/
    python -m benchmarks.figures --check    changes nothing; shows what differs, and fails if anything does

In a page a figure stands between two comments, as a block or inside a sentence (not at the beginning of a line):

    <!-- figures: comparison.means accuracy -->

    (a table)

    <!-- end -->

    It gains <!-- figures: comparison.gain accuracy class_residuals zero_shot -->10.4 to 34.5<!-- end --> points.

The words are a function of this folder and its arguments: ``means("accuracy")`` in ``benchmarks/comparison.py``. What
has no file in results/ by its nature, such as a time, stands between ``<!-- by hand: COMMAND -->`` and
``<!-- end -->``; whole pages of that kind are in `BY_HAND`. Tests refuse tables of numbers that are neither. Figures of
studies that have yet to write their files (`benchmarks.table.NOT_YET`) are left as they are.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import re
import shlex
import sys
from pathlib import Path

from benchmarks import comparison, optimizers, paper, suggest
from benchmarks.table import NOT_YET, ROOT, NotYet
from kalmanclip.errors import DataError
from kalmanclip.experiments.figure import Picture
from kalmanclip.files import write_atomic

FIGURE = re.compile(r"(<!-- figures: (?P<call>[^>]+?) -->)(?P<text>.*?)(<!-- end -->)", re.DOTALL)
KEPT = re.compile(r"<!-- by hand: (?P<command>[^>]+?) -->.*?<!-- end -->", re.DOTALL)

BY_HAND = {
    "docs/performance.md": "make bench; python -m benchmarks.fit DATA; python -m benchmarks.precision DATA",
    "docs/parallel.md": "python -m benchmarks.parallel",
    "docs/pairs.md": "python -m benchmarks.pairs DATA",
    "docs/scale.md": "a design on paper: assumptions, and what follows from them",
    "docs/baselines.md": "options, no measurements: methods/*.py and benchmarks/comparison.json",
}
"""Pages whose tables are timings, options, or of single studies, with where they come from."""


def pages() -> list[Path]:
    """All pages that may show figures."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def draw(call: str) -> str:
    """What a figure's words stand for, such as 'comparison.means accuracy'."""
    name, *arguments = shlex.split(call)
    module, _, function = name.partition(".")
    try:
        drawer = getattr(importlib.import_module(f"benchmarks.{module}"), function)
    except (ImportError, AttributeError) as error:
        raise DataError(f"There is no figure {name!r}: {error}. Figures are functions in benchmarks/.") from error
    drawn: str = drawer(*arguments)
    return drawn


def redrawn(page: str) -> str:
    """The text of a page with all its figures drawn again."""

    def replace(found: re.Match[str]) -> str:
        try:
            drawn = draw(found["call"])
        except NotYet:
            return found[0]
        return found[1] + (f"\n\n{drawn}\n\n" if found["text"].startswith("\n") else drawn) + found[4]

    return FIGURE.sub(replace, page)


def difference(path: Path) -> str:
    """What drawing a page again would change, as a diff; empty if nothing."""
    name, old = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    lines = (text.splitlines(keepends=True) for text in (old, redrawn(old)))
    return "".join(difflib.unified_diff(*lines, f"{name} as it is", f"{name} by results/", n=0))


def _pictures() -> dict[str, Picture]:
    """All pictures, by the names of their files in docs/assets."""
    own = {"suggest": suggest.figure()}
    return comparison.pictures() | paper.pictures() | optimizers.pictures() | own


def main(arguments: list[str] | None = None) -> None:
    """Draws all figures, or checks them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if anything would change")
    options = parser.parse_args(arguments)
    found = {path: diff for path in pages() if (diff := difference(path))}
    for path, diff in found.items():
        print(diff)
        if not options.check:
            write_atomic(path, redrawn(path.read_text(encoding="utf-8")), DataError)
    if not options.check:
        for name, picture in (_pictures()).items():
            write_atomic(ROOT / "docs" / "assets" / f"{name}.png", picture.png, DataError)
    for name, command in NOT_YET.items():
        print(f"left as they are, until results/{name}.json is made: {command}")
    if options.check and found:
        sys.exit("The docs do not show what is in results/. Draw them again: python -m benchmarks.figures")


if __name__ == "__main__":
    main()

"""What two commands cost now, and in an older checkout: `fit` of the default preset, and `predict` of one image.

Both run as processes of their own, once from the older checkout and once from this one, in turn; what counts is the
processor time of the process, all threads together, which other processes change little. Features are not cached.

    git worktree add ../before da86bad
    python -m benchmarks.commands --before ../before [--data ../shared/data] [--rounds 3] [--out results/commands.json]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.one_pass import HERE, processor_seconds
from benchmarks.table import Row, only, read_rows
from kalmanclip.files import write_json_atomic

SHOTS = 16


def ratio(command: str) -> str:
    """The median of a command's ratios, for the docs."""
    return f"{_row(command)['ratio']:.2f}"


def details(command: str) -> str:
    """The same with the range of the ratios, and the medians of the seconds."""
    row = _row(command)
    after, before = (statistics.median(row[side]) for side in ("after", "before"))
    span = f"{min(row['ratios']):.2f} to {max(row['ratios']):.2f}"
    return f"{ratio(command)} ({span}; {after:.1f} and {before:.1f} s in {len(row['ratios'])} pairs)"


def _row(command: str) -> Row:
    (row,) = only(read_rows("commands"), command=command)
    return row


def measure(before: Path, data: Path, rounds: int, threads: int) -> list[dict[str, object]]:
    """Return one row per command: processor seconds before and after, and after / before within each round."""
    sides = {"before": before, "after": HERE}
    image = next(file for file in sorted((data / "test").rglob("*")) if file.is_file())
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as name:

        def taken(side: str, *words: str | Path) -> float:
            return round(processor_seconds(sides[side], "off", *words, threads=threads), 2)

        def adapter(side: str) -> Path:
            return Path(name) / f"{side}.adapter"

        def fit(side: str) -> float:
            options = ("--shots", str(SHOTS), "--device", "cpu", "--force")
            return taken(side, "fit", data / "train", "-o", adapter(side), *options)

        def predict(side: str) -> float:
            return taken(side, "predict", adapter(side), image, "--device", "cpu")

        for title, command, pairs in (("fit", fit, rounds), ("predict", predict, 3 * rounds)):
            found: dict[str, list[float]] = {side: [] for side in sides}
            for _ in range(pairs):
                for side in sides:
                    found[side].append(command(side))
            ratios = [round(after / old, 3) for old, after in zip(*found.values(), strict=True)]
            rows.append({"command": title, **found, "ratios": ratios, "ratio": statistics.median(ratios)})
            Console().print(rows[-1])
    return rows


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="an older checkout")
    parser.add_argument("--data", type=Path, default=HERE.parent / "shared" / "data" / "pets", help="train/ and test/")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of fits; of predictions three times as many")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "commands.json")
    given = parser.parse_args(arguments)
    rows = measure(given.before.resolve(), given.data.resolve(), given.rounds, given.threads)
    what = f"processor seconds of commands, tiny backbone, {SHOTS} shots; ratio: median over rounds of after / before"
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=given.before, capture_output=True, text=True)
    machine = {"threads": given.threads, "torch": torch.__version__, "before": commit.stdout.strip()}
    write_json_atomic(given.out, {"what": what, **machine, "rows": rows})


if __name__ == "__main__":
    main()

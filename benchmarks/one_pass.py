"""What one pass over the images saves: `predict --uncertainty` and `evaluate --unknown` before and after it.

Both commands run as processes of their own, once from an older checkout and once from this one, in turn; what counts is
the processor time of the process, which other processes hardly change. *no cache*: every pass decodes and encodes.
*new cache*: features are stored on disk in an empty folder, as at the first use of new images.

    git worktree add ../before da86bad
    python -m benchmarks.one_pass --before ../before [--data ../shared/data] [--rounds 2] [--out results/one_pass.json]
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from kalmanclip.files import write_json_atomic

HERE = Path(__file__).parents[1]
KNOWN, UNKNOWN = 20, 7  # images of each of the 37 classes of pets, and of textures; the first 1,000 are taken
IMAGES = 1000


def processor_seconds(checkout: Path, cache: str, *words: str | Path, threads: int = 1) -> float:
    """Run a command of a checkout, and return the processor time of its process."""
    given = os.environ | {"PYTHONPATH": str(checkout / "src"), "KALMANCLIP_CACHE": cache}
    given |= {"OMP_NUM_THREADS": str(threads)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "kalmanclip", *map(str, words)]
    subprocess.run(command, check=True, env=given, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def copy_images(source: Path, target: Path, per_class: int, limit: int) -> None:
    """Copy the first images of each class folder, in all at most ``limit``."""
    files = [file for folder in sorted(source.iterdir()) for file in sorted(folder.iterdir())[:per_class]]
    for file in files[:limit]:
        place = target / file.parent.name
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)


def measure(before: Path, data: Path, rounds: int) -> list[dict[str, object]]:
    """Return one row per command and cache: processor seconds before and after, and their ratio."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_images(data / "pets" / "test", folder / "images", 30, IMAGES)
        copy_images(data / "pets" / "test", folder / "known", KNOWN, IMAGES)
        copy_images(data / "dtd37" / "test", folder / "unknown", UNKNOWN + 1, IMAGES - KNOWN * 37)
        copy_images(data / "pets" / "train", folder / "train", 4, IMAGES)
        sides = {"before": before, "after": HERE}
        for side, checkout in sides.items():
            processor_seconds(checkout, "off", "fit", folder / "train", "-o", folder / f"{side}.adapter")
        commands = {
            "predict --uncertainty": ("predict", (folder / "images", "--uncertainty", "--json")),
            "evaluate --unknown": ("evaluate", (folder / "known", "--unknown", folder / "unknown", "--json")),
        }
        for title, (command, words) in commands.items():
            for cache in ("no cache", "new cache"):
                taken: dict[str, list[float]] = {side: [] for side in sides}
                for number in range(rounds):
                    for side, checkout in sides.items():
                        place = "off" if cache == "no cache" else str(folder / f"cache-{command}-{side}-{number}")
                        seconds = processor_seconds(checkout, place, command, folder / f"{side}.adapter", *words)
                        taken[side].append(round(seconds, 2))
                medians = {side: statistics.median(values) for side, values in taken.items()}
                ratio = round(medians["before"] / medians["after"], 2)
                rows.append({"command": title, "cache": cache, "images": IMAGES, **taken, "ratio": ratio})
                Console().print(f"{title}, {cache}: {medians} s, ratio {ratio}")
    return rows


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="an older checkout")
    parser.add_argument("--data", type=Path, default=HERE.parent / "shared" / "data")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "one_pass.json")
    given = parser.parse_args()
    rows = measure(given.before.resolve(), given.data, given.rounds)
    what = "processor seconds of the process, tiny backbone, one thread; ratio: median before / median after"
    write_json_atomic(given.out, {"what": what, "rows": rows})


if __name__ == "__main__":
    main()

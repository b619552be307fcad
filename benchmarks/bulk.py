"""`kalmanclip predict --ray`: throughput by number of workers, and the memory of the driver by length of the list.

Made-up pictures are predicted by ``tiny`` in a plain loop without Ray, and by one and by two workers with a thread
each, in turn within each round; of the rounds the fastest counts, since other programs can only slow one down.
*Throughput* is counted from when every worker has delivered a part: the model is loaded then. *Processor time* of an
image is that of the driver and of all processes of the cluster meanwhile: it tells what Ray costs on a busy machine,
too. *Memory* is what the driver grows by, in a process of its own for each length: by listing files (empty ones), by
streaming the list through a worker that predicts nothing, and by taking up a job of which all parts but three are done.

    python -m benchmarks.bulk [--pictures 768] [--rounds 2] [--names 1000 10000 100000 1000000] --json results/bulk.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.pictures import make_pictures
from benchmarks.table import Row, add_file, markdown, only, read_rows, write_rows
from kalmanclip import KalmanCLIP, bulk
from kalmanclip.bulk import Parts, Task, predict_on_ray, predict_rows
from kalmanclip.data import read_images
from kalmanclip.experiments.ray_workers import RayPool
from kalmanclip.experiments.workers import prepare_worker

WORKERS = (1, 2)
LOOP = 0  # workers: no Ray
PART = 16  # pictures of a part
SIZE = (320, 240)
SKIPPED = 8  # parts at the beginning that are not counted
FILES = 100_000  # at most so many are made to be listed
LEFT = 3  # parts that a job has still to do, when it is taken up


def loop(adapter: Path, files: list[Path], task: Task) -> Row:
    """Predict in a plain loop, part by part."""
    begin = time.perf_counter()
    classifier = KalmanCLIP.load(adapter, device="cpu")
    predict_rows(classifier, list(map(str, files[:PART])), task)  # not counted, as the first parts of workers
    rest, processor, loaded = files[PART:], time.process_time(), time.perf_counter()
    for i in range(0, len(rest), PART):
        predict_rows(classifier, list(map(str, rest[i : i + PART])), task)
    end = time.perf_counter()
    taken = {"per_s": len(rest) / (end - loaded), "cpu_s": (time.process_time() - processor) / len(rest)}
    return taken | {"total_s": end - begin}


def on_ray(workers: int, files: list[Path], task: Task) -> Row:
    """Predict with so many workers, on a cluster that is there."""
    marks: list[tuple[float, float, int]] = []

    def mark(stage: str, done: int, total: int) -> None:
        marks.append((time.perf_counter(), processor_seconds(), done))

    with tempfile.TemporaryDirectory() as folder:
        parts = Parts(Path(folder), lambda: files, task.describe(), PART)
        begin = time.perf_counter()
        predict_on_ray(parts, task, "local", workers=workers, progress=mark)
    (loaded, before, first), (end, after, last) = marks[SKIPPED - 1], marks[-1]
    count = last - first
    return {"per_s": count / (end - loaded), "cpu_s": (after - before) / count, "total_s": end - begin}


def processor_seconds() -> float:
    """Processor time so far of this process and of all that descend from it and live."""
    found: dict[int, tuple[int, int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        found[int(place.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    own = {os.getpid()}
    while more := {pid for pid, (parent, _) in found.items() if parent in own} - own:
        own |= more
    return sum(found[pid][1] for pid in own) / os.sysconf("SC_CLK_TCK")


def throughput(pictures: int, rounds: int) -> list[Row]:
    """One row for each number of workers."""
    prepare_worker(1)
    best: dict[int, Row] = {}
    with tempfile.TemporaryDirectory() as place:
        files = make_pictures(Path(place), pictures, 2, SIZE)
        adapter = Path(place) / "adapter"
        labels = [file.parent.name for file in files[:8]]
        KalmanCLIP("tiny", options={"crops": 0}).fit(list(map(str, files[:8])), labels).save(adapter)
        task = Task(str(adapter), options={"how": "mean"})
        with RayPool("local", 1):
            for number in range(rounds):
                for workers in (LOOP, *WORKERS) if number % 2 == 0 else (*WORKERS[::-1], LOOP):
                    found = on_ray(workers, files, task) if workers else loop(adapter, files, task)
                    print(f"round {number + 1}, {workers or 'no'} workers: {found}", flush=True)
                    known = best.setdefault(workers, found)
                    best[workers] = {
                        name: (max if name == "per_s" else min)(known[name], value) for name, value in found.items()
                    }
    named = {"what": "throughput", "pictures": pictures, "part": PART, "rounds": rounds, "processors": os.cpu_count()}
    return [{**named, "workers": workers, **row} for workers, row in best.items()]


class Nothing:
    """A worker that predicts nothing, in place of `kalmanclip.bulk.Predictor`."""

    def __init__(self, task: Task, threads: int, gpus: float) -> None:
        pass

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"part": row["part"], "rows": row["images"], "failure": ""}


def memory(names: int) -> Row:
    """What this process grows by with that many names, in MB, and what time of the processor it takes."""
    row: Row = {"what": "memory", "names": names}
    made = [Path(f"/archive/of/pictures/{i // 1000:06d}/{i:09d}.jpg") for i in range(2)]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if names <= FILES:
            for i in range(names):
                if i % 1000 == 0:
                    (folder / "files" / f"{i // 1000:06d}").mkdir(parents=True)
                (folder / "files" / f"{i // 1000:06d}" / f"{i:09d}.jpg").touch()
            with _grown(row, "list"):
                Parts(folder / "listed", lambda: read_images([folder / "files"]), {}, 1000)

        def paths() -> Iterator[Path]:
            return (made[0].with_name(f"{i:09d}.jpg") for i in range(names))

        with RayPool("local", 1):
            predict_on_ray(Parts(folder / "warm", lambda: made, {}, 1), Task(""), "local")  # what Ray takes for itself
            parts = Parts(folder / "streamed", paths, {}, min(1000, names // 10))
            with _grown(row, "stream"):
                predict_on_ray(parts, Task(""), "local", workers=1)
        if names <= FILES:
            parts = Parts(folder / "done", paths, {}, 1)
            for number in range(names - LEFT):
                parts.path(number).touch()
            with _grown(row, "resume"):
                again = Parts(folder / "done", lambda: [], {}, 1)
                missing = again.missing()
                assert [len(own) for own in again.images(missing)] == [1] * LEFT
    return row


@contextmanager
def _grown(row: Row, what: str) -> Iterator[None]:
    """Note by how many MB the process grows at most, and its processor time."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the most so far
    before, begin = _status("VmRSS"), time.process_time()
    yield
    row |= {f"{what}_mb": (_status("VmHWM") - before) / 1e6, f"{what}_cpu_s": time.process_time() - begin}


def _status(name: str) -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) << 10


def table(rows: list[Row] | None = None) -> str:
    """Throughput, total and processor time, by workers."""
    rows = only(rows or read_rows("bulk"), what="throughput")
    one, plain = (only(rows, workers=workers)[0] for workers in (1, LOOP))
    lines = []
    for workers in sorted(row["workers"] for row in rows):
        (row,) = only(rows, workers=workers)
        lines.append(
            [
                str(workers) if workers else "none: a plain loop",
                f"{row['per_s']:.0f}",
                f"{row['per_s'] / one['per_s']:.2f}",
                f"{row['per_s'] / plain['per_s']:.2f}",
                f"{1e3 * row['cpu_s']:.1f} ms",
                f"{row['cpu_s'] / plain['cpu_s']:.2f}",
                f"{row['total_s']:.0f} s",
            ]
        )
    heads = ["workers", "images a second", "/ one worker", "/ plain loop", "processor time of an image"]
    return markdown([*heads, "/ plain loop", "total, with loading"], lines)


def gain() -> str:
    """How many times as many images a second two workers do as one."""
    one, two = (only(read_rows("bulk"), what="throughput", workers=number)[0]["per_s"] for number in WORKERS)
    return f"{two / one:.2f}"


def cost(workers: str) -> str:
    """Processor time of an image with so many workers, as a multiple of a plain loop's."""
    rows = only(read_rows("bulk"), what="throughput")
    own, plain = (only(rows, workers=number)[0]["cpu_s"] for number in (int(workers), LOOP))
    return f"{own / plain:.2f}"


def memory_table(rows: list[Row] | None = None) -> str:
    """What the driver grows by, and its processor time, by number of names."""
    lines = []
    for row in sorted(only(rows or read_rows("bulk"), what="memory"), key=lambda row: int(row["names"])):
        cells: Callable[[str], str] = lambda what, row=row: (  # noqa: E731
            f"{row[f'{what}_mb']:.0f} MB, {row[f'{what}_cpu_s']:.1f} s" if f"{what}_mb" in row else "not measured"
        )
        lines.append([f"{row['names']:,}", *map(cells, ("list", "stream", "resume"))])
    return markdown(["names", "listing the files", "streaming the list", "resuming; a picture a part"], lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=768, help="0: no throughput")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--names", nargs="*", type=int, default=[1000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--driver", type=int, metavar="NAMES", help="measure the memory of this process, and print it")
    add_file(parser)
    options = parser.parse_args(arguments)
    if options.driver:
        bulk.Predictor = Nothing  # type: ignore[misc, assignment]
        print(json.dumps(memory(options.driver)))
        return
    rows = throughput(options.pictures, options.rounds) if options.pictures else []
    for names in options.names:
        command = [sys.executable, "-m", "benchmarks.bulk", "--driver", str(names)]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        rows.append(json.loads(said.splitlines()[-1]))
        print(rows[-1], flush=True)
    del options.driver
    write_rows(options, rows)
    if options.pictures:
        print(table(rows))
    if options.names:
        print(memory_table(rows))


if __name__ == "__main__":
    main()

"""Where the preset `paper` departs from the letter of the paper, and what each departure is worth.

    python -m benchmarks.departures ../shared/data/eurosat ../shared/data/dtd37 [--shots 16] [--seeds 1 2 3]
        [--json results/departures.json] [--only ...]

One departure at a time is taken back, and everything at once. Learns one seed's shots and measures on the training
images that this seed does *not* use: no test image is opened, so the preset may be chosen by this table. A difference
is paired, the same shots and the same images; it counts if it is more than twice its standard error over the data sets
and seeds.
"""

import argparse
import dataclasses
import json
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.development import development, scores
from kalmanclip.encoders import Backbone, FeatureCache, load_backbone
from kalmanclip.errors import NumericalError
from kalmanclip.files import write_atomic
from kalmanclip.methods import Kalman, KalmanConfig, preset

PAPER = "paper"
LETTER = preset("paper-literal")


def configurations() -> dict[str, KalmanConfig]:
    """The preset, and with one departure (or several) taken back to the letter."""
    paper = preset(PAPER)

    def but(**options: Any) -> KalmanConfig:
        return dataclasses.replace(paper, **options)

    filtering: dict[str, Any] = {
        name: getattr(LETTER, name) for name in ("noise", "belief", "belief_options", "filter")
    }
    return {
        PAPER: paper,
        "observation: similarities (letter)": but(observation="cosine"),
        "observation: similarities, prior 0.01": but(observation="cosine", prior_std=0.01),
        "observation: both directions (Eq. 1)": but(observation="symmetric"),
        "observation: both directions, shared texts once": but(
            observation="symmetric", observation_options={"distinct": True}
        ),
        "R by position (letter)": but(noise=LETTER.noise),
        "covariance update (letter)": but(belief_options=LETTER.belief_options),
        "lambda on mean and R (letter)": but(filter=LETTER.filter),
        "prior 0.03": but(prior_std=0.03),
        "prior 0.3": but(prior_std=0.3),
        "all of the filter to the letter": but(**filtering),
        "all of the filter to the letter, Eq. 1": but(**filtering, observation="symmetric"),
        "paper-literal": LETTER,
    }


def measure(backbone: Backbone, config: KalmanConfig | None, folder: Path, shots: int, seed: int) -> dict[str, Any]:
    """Accuracy in %, NLL and seconds of learning; nothing but the reason if it broke down. Without options: zero-shot."""
    task, rest = development(folder, shots, seed)
    method = Kalman(backbone, None if config is None else dataclasses.replace(config, seed=seed))
    begin = time.perf_counter()
    try:
        if config is None:
            method.set_classes(task.class_names, task.templates)
        else:
            method.fit(task)
    except NumericalError as problem:
        return {"broke down": str(problem)}
    seconds = time.perf_counter() - begin
    accuracy, nll = scores(method, rest)
    return {"accuracy": round(accuracy, 3), "nll": round(nll, 4), "seconds": round(seconds, 2), "images": len(rest)}


def difference(rows: list[dict[str, Any]], name: str, what: str) -> tuple[float, float] | None:
    """Mean of a configuration minus `paper` over the same shots, and its standard error; None where it broke down."""
    cells = {(row["configuration"], row["data"], row["seed"]): row.get(what) for row in rows}
    pairs = [(value, cells[PAPER, *key[1:]]) for key, value in cells.items() if key[0] == name]
    if any(a is None or b is None for a, b in pairs):
        return None
    apart = [a - b for a, b in pairs]
    error = statistics.stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else math.nan
    return statistics.mean(apart), error


def table(rows: list[dict[str, Any]]) -> Table:
    """One line per configuration: a cell per data set, then the paired difference from `paper`."""
    names, places = (list(dict.fromkeys(row[key] for row in rows)) for key in ("configuration", "data"))
    drawn = Table(title="accuracy in % / NLL on training images outside the shots; difference from `paper`: mean ± s.e.")
    drawn.add_column("configuration")
    for column in (*places, "accuracy", "NLL"):
        drawn.add_column(column, justify="right")
    for name in names:
        cells = []
        for place in places:
            own = [row for row in rows if (row["configuration"], row["data"]) == (name, place)]
            if all("accuracy" in row for row in own):
                means = (statistics.mean(row[what] for row in own) for what in ("accuracy", "nll"))
                cells.append("{:.1f} / {:.3f}".format(*means))
            else:
                cells.append("broke down")
        for what, form in (("accuracy", "{:+.1f} ± {:.1f}"), ("nll", "{:+.3f} ± {:.3f}")):
            apart = None if name == PAPER else difference(rows, name, what)
            cells.append("" if apart is None else form.format(*apart))
        drawn.add_row(name, *cells)
    return drawn


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--shots", type=int, default=16)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", help="these rows, and `paper`")
    parser.add_argument("--json", type=Path, help="where the rows go")
    options = parser.parse_args(arguments)
    chosen: dict[str, KalmanConfig | None] = {"zero-shot": None, **configurations()}
    if options.only:
        chosen = {name: config for name, config in chosen.items() if name == PAPER or name in options.only}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        backbone = dataclasses.replace(load_backbone(options.model), cache=FeatureCache(Path(folder)))
        for name, config in chosen.items():
            for place in options.folders:
                for seed in options.seeds:
                    found = measure(backbone, config, place, options.shots, seed)
                    key = {"configuration": name, "data": place.name, "shots": options.shots, "seed": seed}
                    rows.append({**key, "model": options.model, **found})
            Console(stderr=True).print(name, style="dim")
    if options.json is not None:
        lines = ",\n".join(json.dumps(row) for row in rows)
        write_atomic(options.json, f"[\n{lines}\n]\n".encode())
    Console(width=150).print(table(rows))


if __name__ == "__main__":
    main()

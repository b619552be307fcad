"""What each departure from the letter of the paper is worth: the ground on which the preset `paper` stands.

    python -m benchmarks.departures ../shared/data/eurosat ../shared/data/dtd37 --json results/departures.json
        [--shots 16] [--seeds 1 2 3] [--only ...]

A filter that departs from the letter in five things, and with one of them at a time taken back; then several. Learns
one seed's shots and measures on the training images that this seed does *not* use: no test image is opened, so the
preset may be chosen by this table. A difference is paired, the same shots and the same images; it counts if it is more
than twice its standard error over the data sets and seeds. Rows that the file has already are not measured again,
unless their options have changed.
"""

import argparse
import dataclasses
import hashlib
import itertools
import json
import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.development import development, scores
from benchmarks.table import RESULTS
from kalmanclip.config import to_dict
from kalmanclip.encoders import Backbone, FeatureCache, load_backbone
from kalmanclip.errors import NumericalError
from kalmanclip.files import write_atomic
from kalmanclip.methods import Kalman, KalmanConfig, preset

ALL = "all departures"
PROMPTS = "prompts of the paper"
PRINTED = {"eurosat": "a centered satellite photo of a {}"}
"""As the paper prints them; "a photo of a {}" for all other data sets."""

KEY = ("configuration", "data", "shots", "seed", "model", "options")
LETTER = preset("paper-literal")


def configurations() -> dict[str, KalmanConfig | None]:
    """The filter with all departures, and with one or several taken back to the letter; None: zero-shot."""
    departing = dataclasses.replace(
        LETTER,
        observation="contrastive",
        noise=dataclasses.replace(LETTER.noise, structure="exchangeable"),
        belief_options={"update": "precision"},
        filter=dataclasses.replace(LETTER.filter, regulate=("mean", "covariance", "noise")),
        prior_std=0.1,
    )

    def but(**options: Any) -> KalmanConfig:
        return dataclasses.replace(departing, **options)

    filtering: dict[str, Any] = {name: getattr(LETTER, name) for name in ("noise", "belief_options", "filter")}
    once: dict[str, Any] = {"observation": "symmetric", "observation_options": {"distinct": True}}
    return {
        "zero-shot": None,
        ALL: departing,
        "similarities as observation": but(observation=LETTER.observation),
        "R by position": but(noise=LETTER.noise),
        "covariance update": but(belief_options=LETTER.belief_options),
        "lambda on mean and R only": but(filter=LETTER.filter),
        "these three (the preset paper)": but(**filtering),
        "both directions": but(observation="symmetric"),
        "both directions, shared texts once": but(**once),
        "these three, both directions": but(**filtering, observation="symmetric"),
        "these three, both directions, shared texts once": but(**filtering, **once),
        "prior 0.03": but(prior_std=0.03),
        "prior 0.3": but(prior_std=0.3),
        PROMPTS: departing,
        "paper-literal": LETTER,
    }


def measure(
    backbone: Backbone, config: KalmanConfig | None, folder: Path, shots: int, seed: int, printed: bool = False
) -> dict[str, Any]:
    """Accuracy in % and NLL; only the reason if it broke down.

    Args:
        backbone: the frozen CLIP.
        config: the options; None: zero-shot.
        folder: the data set.
        shots: images per class.
        seed: of the draw and of the method.
        printed: prompts as the paper prints them, not those of the comparison.
    """
    task, rest = development(folder, shots, seed)
    if printed:
        task = dataclasses.replace(task, templates=(PRINTED.get(folder.name, "a photo of a {}"),))
    method = Kalman(backbone, None if config is None else dataclasses.replace(config, seed=seed))
    try:
        if config is None:
            method.set_classes(task.class_names, task.templates)
        else:
            method.fit(task)
    except NumericalError as problem:
        return {"broke down": str(problem)}
    accuracy, nll = scores(method, rest)
    return {"accuracy": round(accuracy, 3), "nll": round(nll, 4), "images": len(rest)}


def difference(rows: list[dict[str, Any]], name: str, what: str) -> tuple[float, float, int] | None:
    """Mean of a configuration minus `all departures` over the same shots, its standard error, and of how many pairs.

    None where it broke down, or was not measured; one pair has no standard error (NaN).
    """
    own, base = (
        {(row["data"], row["seed"]): row.get(what) for row in rows if row["configuration"] == which}
        for which in (name, ALL)
    )
    pairs = [(own[at], base[at]) for at in own.keys() & base.keys()]
    apart = [a - b for a, b in pairs if a is not None and b is not None]
    if len(apart) < max(len(pairs), 1):
        return None
    error = statistics.stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else math.nan
    return statistics.mean(apart), error, len(apart)


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Heads, then a line per configuration: the mean of each data set, and the paired difference from `ALL`."""
    names, places = (list(dict.fromkeys(row[key] for row in rows)) for key in ("configuration", "data"))
    lines = [["configuration", *places, "accuracy: mean ± s.e.", "NLL: mean ± s.e.", "pairs"]]
    for name in names:
        cells = [name]
        for place in places:
            own = [row for row in rows if (row["configuration"], row["data"]) == (name, place)]
            if all("accuracy" in row for row in own):
                means = (statistics.mean(row[what] for row in own) for what in ("accuracy", "nll") if own)
                cells.append("{:.1f} / {:.3f}".format(*means) if own else "")
            else:
                cells.append("broke down")
        apart = [None if name == ALL else difference(rows, name, what) for what in ("accuracy", "nll")]
        forms = ("{:+.1f} ± {:.1f}", "{:+.3f} ± {:.3f}", "{2}")
        texts = ["" if f is None else form.format(*f) for f, form in zip([*apart, apart[0]], forms, strict=True)]
        cells += [text.removesuffix(" ± nan") for text in texts]
        lines.append(cells)
    return lines


def markdown(rows: list[dict[str, Any]]) -> list[str]:
    """The lines of the table in docs/method.md."""
    heads, *lines = table(rows)
    return [f"| {' | '.join(cells)} |" for cells in (heads, ["---", *["---:"] * (len(heads) - 1)], *lines)]


def drawn() -> str:
    """The table of docs/method.md, from results/departures.json."""
    return "\n".join(markdown(json.loads((RESULTS / "departures.json").read_text(encoding="utf-8"))))


def digest(config: KalmanConfig | None) -> str:
    """Of the options: a row that was measured with others is measured again."""
    words = "" if config is None else json.dumps(to_dict(config), sort_keys=True)
    return hashlib.sha256(words.encode()).hexdigest()[:12]


def main(arguments: list[str] | None = None) -> None:
    """Measure what the file does not have yet, write it after each row, and print all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="none: print what the file has")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--shots", type=int, default=16)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", help="these rows")
    parser.add_argument("--json", type=Path, help="where the rows go, and where rows that are there stay")
    options = parser.parse_args(arguments)
    now = {name: digest(config) for name, config in configurations().items()}
    rows = json.loads(options.json.read_text()) if options.json is not None and options.json.exists() else []
    rows = [row for row in rows if now.get(row["configuration"]) == row["options"]]
    done = {tuple(row[key] for key in KEY): row for row in rows}
    chosen = {name: c for name, c in configurations().items() if not options.only or name in options.only}
    with tempfile.TemporaryDirectory() as folder:
        backbone = dataclasses.replace(load_backbone(options.model), cache=FeatureCache(Path(folder)))
        for place, seed, name in itertools.product(options.folders, options.seeds, chosen):
            values = (name, place.name, options.shots, seed, options.model, now[name])
            if values in done:
                continue
            found = measure(backbone, chosen[name], place, options.shots, seed, name == PROMPTS)
            done[values] = dict(zip(KEY, values, strict=True)) | found
            rows = sorted(done.values(), key=lambda r: ([*now].index(r["configuration"]), *(r[k] for k in KEY[1:])))
            if options.json is not None:
                lines = ",\n".join(json.dumps(row) for row in rows)
                write_atomic(options.json, f"[\n{lines}\n]\n".encode())
            Console(stderr=True).print(*values[:4], found, style="dim")
    print(*markdown(rows), sep="\n")


if __name__ == "__main__":
    main()

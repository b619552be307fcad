r"""Which power of the covariance within classes is the metric of the class residuals' prior?

    python -m benchmarks.metric ../shared/data/{eurosat,pets,dtd37} --json results/metric.json
    python -m benchmarks.metric ../shared/data/{eurosat,pets,dtd37} --json results/metric-vitb16.json \
        --model local-dir:vitb16 --precision bfloat16 --crops 0

*Held out* is the mean log-probability of shots that were held out in turn, with the prior that was chosen: training
shots only. Accuracy and NLL are measured on training images outside the shots. No test image is opened.
"""

import argparse
from pathlib import Path
from unittest.mock import patch

from rich.progress import track

from benchmarks.development import cached_backbone, development, scores
from benchmarks.table import Row, add_file, markdown, mean, only, read_rows, shots_head, values, write_rows
from kalmanclip.methods import ClassResiduals, ClassResidualsConfig

POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)


def table(name: str = "metric", rows: list[Row] | None = None) -> str:
    """Held-out log-probability / accuracy in % / NLL, means over data sets and seeds, by power and shots."""
    rows = read_rows(name) if rows is None else rows
    shots = sorted(values(rows, "shots"))

    def text(own: list[Row]) -> str:
        return f"{mean(own, 'held_out'):.3f} / {mean(own, 'accuracy'):.1f} / {mean(own, 'nll'):.3f}"

    powers = sorted(values(rows, "power"))
    lines = [[f"{power:g}", *(text(only(rows, power=power, shots=k)) for k in shots)] for power in powers]
    return markdown(["power", *map(shots_head, shots)], lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--crops", type=int, default=ClassResidualsConfig().crops)
    parser.add_argument("--shots", nargs="+", type=int, default=[2, 4, 16])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    add_file(parser)
    options = parser.parse_args(arguments)
    backbone = cached_backbone(options.model, precision=options.precision)
    rows: list[Row] = []
    places = [(folder, k, seed) for folder in options.folders for k in options.shots for seed in options.seeds]
    for folder, k, seed in track(places, "fits", transient=True):
        task, rest = development(folder, k, seed)
        config = ClassResidualsConfig(crops=options.crops, seed=seed)
        for power in POWERS:
            method = ClassResiduals(backbone, config)
            with patch("kalmanclip.methods.statistics._POWER", power):
                method.fit(task)
            std = method.residuals.prior_std
            held_out = min(
                method.residuals.held_out_log_likelihood.items(), key=lambda known: abs(known[0] - (std or 0))
            )[1]
            accuracy, nll = scores(method, rest)
            place = {"data": folder.name, "shots": k, "seed": seed, "power": power}
            rows.append({**place, "prior_std": std, "held_out": held_out, "accuracy": accuracy, "nll": nll})
    write_rows(options, rows)
    print(table(rows=rows))


if __name__ == "__main__":
    main()

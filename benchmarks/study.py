"""What does each part of the default bring? Configurations ranked by what the training images alone say.

    python -m benchmarks.study ../shared/data/eurosat ../shared/data/pets ../shared/data/dtd37 --seeds 1 \\
        --json results/study.json
    python -m benchmarks.study ../shared/data/eurosat --low-rank --seeds 1 2 --json results/study-low-rank.json

The held-out log-likelihood is the mean log-probability of shots that were held out in turn and predicted from the
others: it uses the training shots only and is what configurations are ranked by. Accuracy and NLL are measured on
training images outside the shots, as a check that the ranking means something. No test image is opened.
"""

import argparse
import dataclasses
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

from rich.progress import track

from benchmarks.development import cached_backbone, development, scores
from benchmarks.table import SETS, Row, add_file, markdown, mean, only, read_rows, values, write_rows
from kalmanclip.data import FewShotTask
from kalmanclip.encoders import Backbone, LowRankConfig
from kalmanclip.methods import (
    Classifier,
    ClassResidualsConfig,
    KalmanConfig,
    MethodConfig,
    make_classifier,
    preset,
    with_options,
)
from kalmanclip.observation import LIKELIHOODS

PLAIN = "prior the same in all directions"
MEASURES = ("foreseen", "accuracy", "nll")


def table(name: str = "study", rows: list[Row] | None = None) -> str:
    """Held-out log-likelihood / accuracy in % / NLL of every configuration by data set, the most likely first."""
    rows = read_rows(name) if rows is None else rows
    sets = values(rows, "data")

    def likelihood(configuration: str) -> float:
        return mean(only(rows, configuration=configuration), "foreseen")

    lines = []
    for configuration in sorted(values(rows, "configuration"), key=likelihood, reverse=True):
        found = only(rows, configuration=configuration)
        parts = [only(found, data=data) for data in sets] + ([found] if len(sets) > 1 else [])
        bold = "**" if configuration in ("default", "head") else ""
        lines.append([f"{bold}{configuration}{bold}", *map(_text, parts)])
    heads = [SETS.get(data, data) for data in sets] + (["mean"] if len(sets) > 1 else [])
    return markdown(["configuration", *heads], lines)


def cell(name: str, configuration: str, data: str) -> str:
    """One cell of the table."""
    return _text(only(read_rows(name), configuration=configuration, data=data))


def _text(rows: list[Row]) -> str:
    return "{:.3f} / {:.1f} / {:.3f}".format(*(mean(rows, measure) for measure in MEASURES))


def configurations() -> dict[str, MethodConfig]:
    default, head, towers = preset("default"), preset("head"), preset("paper")

    def residuals(**options: object) -> ClassResidualsConfig:
        return dataclasses.replace(ClassResidualsConfig(), **options)  # type: ignore[arg-type]

    return {
        "default": default,
        "no crops": residuals(crops=0),
        "crops count as much as the centre": residuals(centre_weight=1 / 6),
        "small crops too (area 0.08 to 1)": residuals(crop_scale=(0.08, 1.0)),
        "ten crops": residuals(crops=10),
        PLAIN: default,
        "text's share fixed": residuals(gain_std=1e-3),
        "no generative classifier": residuals(generative=0.0),
        "generative 12.5": residuals(generative=12.5),
        "generative 50": residuals(generative=50.0),
        "generative 200": residuals(generative=200.0),
        "prior std 0.05": residuals(prior_std=0.05),
        "prior std 0.14": residuals(prior_std=0.14),
        "prior std 0.5": residuals(prior_std=0.5),
        "alpha 0": residuals(alpha=0.0),
        "alpha 1": residuals(alpha=1.0),
        "low-rank head": head,
        "low-rank towers": towers,
        "filter in the image tower, and residuals": preset("joint"),
        "low-rank towers, matched pairs": preset("paper-literal"),
    }


def low_rank_configurations() -> dict[str, KalmanConfig]:
    """One choice at a time about the low-rank parameters, from the preset `head`."""
    head = preset("head")

    def but(**options: object) -> KalmanConfig:
        return dataclasses.replace(head, **options)  # type: ignore[arg-type]

    def placed(**options: object) -> KalmanConfig:
        return but(low_rank=LowRankConfig(placement="towers", rank=4, **options), prior_std=0.1)  # type: ignore[arg-type]

    return {
        "head": head,
        **{f"observation {name}": but(observation=name, prior_std=0.1) for name in LIKELIHOODS if name != "bounded"},
        "belief block": but(belief="block", low_rank=LowRankConfig(rank=1)),
        "belief low_rank": but(belief="low_rank", belief_options={"rank": 20}),
        "prior std 0.1": but(prior_std=0.1),
        "prior std 1": but(prior_std=1.0),
        "one pass": but(epochs=1),
        "twenty passes": but(epochs=20),
        "alpha 0": but(filter=dataclasses.replace(head.filter, alpha=0.0)),
        "alpha 1": but(filter=dataclasses.replace(head.filter, alpha=1.0)),
        "q 1e-4": but(filter=dataclasses.replace(head.filter, q=1e-4)),
        "rank 4": but(low_rank=LowRankConfig(rank=4)),
        "image embedding only": but(low_rank=LowRankConfig(towers=("image",))),
        "text embedding only": but(low_rank=LowRankConfig(towers=("text",))),
        "towers, last two blocks": placed(last_blocks=2),
        "towers, last block": placed(last_blocks=1),
        "image tower, last two blocks": placed(last_blocks=2, towers=("image",)),
        "text tower, last two blocks": placed(last_blocks=2, towers=("text",)),
    }


def fitted(backbone: Backbone, config: MethodConfig, task: FewShotTask) -> Classifier:
    method = make_classifier(backbone, with_options(config, {"seed": task.seed}))
    method.fit(task)
    return method


def held_out_log_likelihood(backbone: Backbone, config: MethodConfig, task: FewShotTask, folds: int) -> float:
    """Mean log-probability of the training images, each predicted from the other folds."""
    seen: dict[int, int] = {}
    fold = []
    for label in task.train.labels:
        fold.append(seen.get(label, 0) % folds)
        seen[label] = seen.get(label, 0) + 1
    total = 0.0
    for number in range(folds):
        kept = task.train.subset(i for i, own in enumerate(fold) if own != number)
        held = task.train.subset(i for i, own in enumerate(fold) if own == number)
        _, loss = scores(fitted(backbone, config, dataclasses.replace(task, train=kept)), held)
        total -= loss * len(held)
    return total / len(task.train)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--shots", type=int, default=4)
    parser.add_argument("--folds", type=int, default=2)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--low-rank", action="store_true", help="choices about the low-rank parameters")
    parser.add_argument("--only", nargs="+", help="these rows")
    add_file(parser)
    options = parser.parse_args(arguments)
    backbone = cached_backbone(options.model)
    rows_of = low_rank_configurations if options.low_rank else configurations
    chosen = {name: config for name, config in rows_of().items() if not options.only or name in options.only}
    rows: list[Row] = []
    for name, config in track(chosen.items(), "configurations", transient=True):
        with patch("kalmanclip.methods.statistics._POWER", 0.0) if name == PLAIN else nullcontext():
            for place in options.folders:
                for seed in options.seeds:
                    task, rest = development(place, options.shots, seed)
                    before = held_out_log_likelihood(backbone, config, task, options.folds)
                    numbers = (before, *scores(fitted(backbone, config, task), rest))
                    run = {"configuration": name, "data": place.name, "seed": seed}
                    rows.append({**run, **dict(zip(MEASURES, numbers, strict=True))})
    write_rows(options, rows)
    print(
        f"{options.model}, {options.shots} shots, seeds {options.seeds}: held-out log-likelihood / accuracy in % / NLL"
    )
    print(table(rows=rows))


if __name__ == "__main__":
    main()

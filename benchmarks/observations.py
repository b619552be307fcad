"""Which observation learns? Every one, on the embeddings and inside the towers, at several prior scales.

    python -m benchmarks.observations ../shared/data/eurosat --json results/observations.json

Trains on one seed's shots and measures on the training images that this seed does *not* use, so that choosing by this
table does not touch the test images. The observation of the preset `head` was chosen so.
"""

import argparse
from pathlib import Path

from rich.progress import track

from benchmarks.development import cached_backbone, development, scores
from benchmarks.table import Row, add_file, markdown, only, read_rows, write_rows
from kalmanclip.encoders import LowRankConfig
from kalmanclip.errors import NumericalError
from kalmanclip.methods import Kalman, KalmanConfig
from kalmanclip.observation import LIKELIHOODS

PLACEMENTS = {
    "head": LowRankConfig(),
    "towers": LowRankConfig(placement="towers", rank=4, last_blocks=2),
}
PRIORS = (0.01, 0.1, 0.3)
START = "zero-shot"


def table(rows: list[Row] | None = None) -> str:
    """Accuracy in % / NLL of every observation, by where the parameters are and by the prior; the best bold."""
    rows = read_rows("observations") if rows is None else rows
    places = [(placement, prior) for placement in PLACEMENTS for prior in PRIORS]
    learned = [row for row in rows if row["observation"] != START and row["accuracy"] is not None]
    best = {(placement, max(row["accuracy"] for row in only(learned, placement=placement))) for placement in PLACEMENTS}

    def text(row: Row) -> str:
        if row["accuracy"] is None:
            return "broke down"
        bold = "**" if (row["placement"], row["accuracy"]) in best else ""
        return f"{bold}{row['accuracy']:.1f} / {row['nll']:.2f}{bold}"

    lines = []
    for name in LIKELIHOODS:
        found = {(row["placement"], row["prior"]): row for row in only(rows, observation=name)}
        if found:
            lines.append([f"`{name}`", *(text(found[place]) for place in places)])
    heads = [f"{placement}, prior {prior}" for placement, prior in places]
    return markdown(["observation", *heads], lines)


def start() -> str:
    """Accuracy in % / NLL before learning."""
    (row,) = only(read_rows("observations"), observation=START)
    return f"{row['accuracy']:.1f} / {row['nll']:.2f}"


def images() -> str:
    """How many images it is measured on."""
    (row,) = only(read_rows("observations"), observation=START)
    return str(row["images"])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--shots", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=3)
    add_file(parser)
    options = parser.parse_args(arguments)
    backbone = cached_backbone(options.model)
    task, held_out = development(options.folder, options.shots, options.seed)
    start = Kalman(backbone)
    start.set_classes(task.class_names, task.templates)
    accuracy, nll = scores(start, held_out)
    rows: list[Row] = [{"observation": START, "accuracy": accuracy, "nll": nll, "images": len(held_out)}]
    for name in LIKELIHOODS:
        for placement, low_rank in PLACEMENTS.items():
            for prior in track(PRIORS, f"{name}, {low_rank.placement}", transient=True):
                config = KalmanConfig(
                    low_rank=low_rank,
                    observation=name,
                    prior_std=prior,
                    epochs=options.epochs,
                    seed=options.seed,
                )
                method = Kalman(backbone, config)
                try:
                    method.fit(task)
                    accuracy, nll = scores(method, held_out)
                except NumericalError:  # it broke down
                    accuracy = nll = None
                place = {"observation": name, "placement": placement, "prior": prior}
                rows.append({**place, "accuracy": accuracy, "nll": nll})
    write_rows(options, rows)
    print(f"{options.folder.name}, {options.shots} shots, {options.epochs} epochs, {len(held_out)} held-out training")
    print("images: accuracy in % / NLL (zero-shot {accuracy:.1f} / {nll:.2f})".format(**rows[0]))
    print(table(rows))


if __name__ == "__main__":
    main()

"""Which observation learns? Every one, on the embeddings and inside the towers, at several prior scales.

    python -m benchmarks.observations ../shared/data/eurosat [--shots 16] [--seed 1] [--epochs 3]

Trains on one seed's shots and measures on the training images that this seed does *not* use, so that choosing by this
table does not touch the test images. The observation of the preset `head` was chosen so.
"""

import argparse
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.development import development, scores
from kalmanclip.encoders import LowRankConfig, load_backbone
from kalmanclip.errors import NumericalError
from kalmanclip.methods import Kalman, KalmanConfig
from kalmanclip.observation import LIKELIHOODS

PLACEMENTS = {
    "head": LowRankConfig(),
    "towers": LowRankConfig(placement="towers", rank=4, last_blocks=2),
}
PRIORS = (0.01, 0.1, 0.3)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--shots", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args(arguments)
    backbone = load_backbone(options.model)
    task, held_out = development(options.folder, options.shots, options.seed)
    start = Kalman(backbone)
    start.set_classes(task.class_names, task.templates)
    accuracy, nll = scores(start, held_out)
    table = Table(
        title=f"{options.folder.name}, {options.shots} shots, {options.epochs} epochs, {len(held_out)} held-out "
        f"training images: accuracy in % / NLL (zero-shot {accuracy:.1f} / {nll:.2f})"
    )
    table.add_column("observation")
    for placement in PLACEMENTS:
        for prior in PRIORS:
            table.add_column(f"{placement}, prior std {prior}", justify="right")
    for name in LIKELIHOODS:
        cells = []
        for low_rank in PLACEMENTS.values():
            for prior in track(PRIORS, f"{name}, {low_rank.placement}", transient=True):
                config = KalmanConfig(
                    parameters=("low_rank",),
                    low_rank=low_rank,
                    observation=name,
                    prior_std=prior,
                    epochs=options.epochs,
                    seed=options.seed,
                )
                method = Kalman(backbone, config)
                try:
                    method.fit(task)
                    cells.append("{:.1f} / {:.2f}".format(*scores(method, held_out)))
                except NumericalError:
                    cells.append("broke down")
        table.add_row(name, *cells)
    Console(width=130).print(table)


if __name__ == "__main__":
    main()

"""Which observation learns? Every one, on the embeddings and inside the towers, at several prior scales.

    python -m benchmarks.observations ../shared/data/eurosat [--shots 16] [--seed 1] [--epochs 3]

Trains on one seed's shots and measures on the training images that this seed does *not* use, so that choosing by this
table does not touch the test images. The default observation was chosen so.
"""

import argparse
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.accuracy import TEMPLATES
from kalmanclip.data import FewShotTask, LabelledImages, few_shot_task, read_folder, read_shot_lists
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
    templates = (TEMPLATES.get(options.folder.name, "a photo of a {}."),)
    everything = read_folder(options.folder / "train")
    lists = read_shot_lists(options.folder, everything)

    def shots(count: int) -> LabelledImages:
        return few_shot_task(everything, None, None, count, options.seed, shot_lists=lists).train

    used = set(shots(16).sources)
    held_out = everything.subset([i for i, path in enumerate(everything.sources) if path not in used])
    labels = torch.tensor(held_out.labels)
    task = FewShotTask(shots(options.shots), templates=templates)

    def scores(method: Kalman) -> tuple[float, float]:
        logits = method.logits(held_out.sources)
        nll = torch.nn.functional.cross_entropy(logits, labels).item()
        return 100 * (logits.argmax(dim=1) == labels).float().mean().item(), nll

    start = Kalman(backbone)
    start.set_classes(task.class_names, templates)
    accuracy, nll = scores(start)
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
                    low_rank=low_rank, observation=name, prior_std=prior, epochs=options.epochs, seed=options.seed
                )
                method = Kalman(backbone, config)
                try:
                    method.fit(task)
                    cells.append("{:.1f} / {:.2f}".format(*scores(method)))
                except NumericalError:
                    cells.append("broke down")
        table.add_row(name, *cells)
    Console(width=130).print(table)


if __name__ == "__main__":
    main()

"""Learning from image-text pairs: recall@k on held-out images, with the phrasings of training and with new ones.

    python -m benchmarks.pairs ../shared/data/eurosat [--part val] [--seeds 1 2 3] [--observations contrastive bounded]

The pairs are made of class folders (``train/`` and ``test/``): 16 images of each class, each with one caption in one of
three phrasings, drawn with the seed. A held-out image is matched with all its true captions: those in the phrasings of
training, or those in two others that training never showed. Options are chosen on ``--part val`` (images that training
leaves over), and reported on ``--part test``.
"""

import argparse
import random
import statistics
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from kalmanclip.data import CaptionedImages
from kalmanclip.data.folder import image_files
from kalmanclip.encoders import load_backbone
from kalmanclip.metrics import RetrievalRecall
from kalmanclip.retrieval import RECALL_AT, fit_pairs, measure_recall, pair_config

SHOTS, VALIDATION = 16, 10
SEEN = ("a centered satellite photo of {}.", "an aerial view of {}.", "{} seen from space.")
NEW = ("{} from above.", "this satellite image shows {}.")


def training(root: Path, seed: int) -> CaptionedImages:
    """One caption per image."""
    draw = random.Random(seed)
    shown = [(file, folder.name) for folder in _classes(root) for file in image_files(folder)[:SHOTS]]
    return CaptionedImages([file for file, _ in shown], [_say(draw.choice(SEEN), name) for _, name in shown])


def measuring(root: Path, part: str, phrasings: tuple[str, ...]) -> CaptionedImages:
    """All captions of every image."""
    rows: list[tuple[Path, str]] = []
    for folder in _classes(root):
        left = image_files(folder)[SHOTS : SHOTS + VALIDATION]
        files = left if part == "val" else image_files(root / "test" / folder.name)
        rows += [(file, _say(phrasing, folder.name)) for file in files for phrasing in phrasings]
    return CaptionedImages([file for file, _ in rows], [caption for _, caption in rows])


def main(arguments: list[str] | None = None) -> dict[tuple[str, str], list[float]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--part", choices=["val", "test"], default="test")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--observations", nargs="+", default=["contrastive"])
    options = parser.parse_args(arguments)
    backbone = load_backbone(options.model)
    questions = {f"{name} phrasings": measuring(options.root, options.part, p) for name, p in _PHRASINGS.items()}
    found: dict[tuple[str, str], list[list[float]]] = {}
    for question, pairs in questions.items():
        before = measure_recall(pairs, backbone)
        found[question, "guessing"], found[question, "zero-shot"] = [_row(before.guessing)], [_row(before.zero_shot)]
    runs = [(observation, seed) for observation in options.observations for seed in options.seeds]
    for observation, seed in track(runs, "fitting", transient=True):
        clf = fit_pairs(training(options.root, seed), backbone, pair_config(observation=observation, seed=seed))
        for question, pairs in questions.items():
            tuned = measure_recall(pairs, clf).tuned
            assert tuned is not None
            found.setdefault((question, observation), []).append(_row(tuned))
    means = {key: [statistics.mean(column) for column in zip(*rows, strict=True)] for key, rows in found.items()}
    title = f"{options.root.name}: recall in % on {options.part}, {options.model}, mean over seeds {options.seeds}"
    _show(title, means)
    return means


def _show(title: str, means: dict[tuple[str, str], list[float]]) -> None:
    table = Table(title=title)
    columns = [f"{way}@{k}" for way in ("image→text", "text→image") for k in RECALL_AT]
    for name in ("measured on", "model", *columns):
        table.add_column(name, justify="right" if "@" in name else "left")
    for (question, model), row in sorted(means.items(), key=lambda item: item[0][0], reverse=True):
        table.add_row(question, model, *(f"{mean:.1f}" for mean in row))
    Console(width=150).print(table)


_PHRASINGS = {"seen": SEEN, "new": NEW}


def _classes(root: Path) -> list[Path]:
    return sorted(folder for folder in (root / "train").iterdir() if folder.is_dir())


def _say(phrasing: str, name: str) -> str:
    return phrasing.format(name.lower())


def _row(recall: RetrievalRecall) -> list[float]:
    return [100 * way[k] for way in (recall.image_to_text, recall.text_to_image) for k in RECALL_AT]


if __name__ == "__main__":
    main()

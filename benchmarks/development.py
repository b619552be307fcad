"""Where choices are made: shots to learn from, other training images to measure on, never a test image."""

import argparse
import dataclasses
from pathlib import Path

import torch

from kalmanclip.data import FewShotTask, LabelledImages, few_shot_task, read_folder, read_shot_lists
from kalmanclip.encoders import Backbone, FeatureCache, cache_folder, load_backbone
from kalmanclip.methods import Method

TEMPLATES = {
    "pets": "a photo of a {}, a type of pet.",
    "eurosat": "a centered satellite photo of {}.",
    "dtd37": "{} texture.",
}
MOST_SHOTS = 16


def add_model(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `cached_backbone` takes."""
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32")


def cached_backbone(model: str, device: str = "cpu", precision: str = "float32") -> Backbone:
    """The frozen model with the user's cache (``$KALMANCLIP_CACHE``): no image is encoded again by the next study."""
    folder = cache_folder()
    cache = None if folder is None else FeatureCache(folder)
    return dataclasses.replace(load_backbone(model, device, precision), cache=cache)


def development(folder: Path, shots: int, seed: int) -> tuple[FewShotTask, LabelledImages]:
    """The task with so many shots, and the training images that even the largest task of this seed does not use."""
    everything = read_folder(folder / "train")
    lists = read_shot_lists(folder, everything)

    def draw(count: int) -> LabelledImages:
        return few_shot_task(everything, None, None, count, seed, shot_lists=lists).train

    used = set(draw(MOST_SHOTS).sources)
    rest = everything.subset(i for i, path in enumerate(everything.sources) if path not in used)
    template = TEMPLATES.get(folder.name, "a photo of a {}.")
    return FewShotTask(draw(shots), templates=(template,), seed=seed), rest


def scores(method: Method, images: LabelledImages) -> tuple[float, float]:
    """Accuracy in %, and the mean negative log-likelihood of the true class."""
    logits = method.logits(images.sources)
    labels = torch.tensor(images.labels)
    loss = torch.nn.functional.cross_entropy(logits, labels).item()
    return 100 * (logits.argmax(dim=1) == labels).float().mean().item(), loss

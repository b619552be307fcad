"""What averaging over the belief costs: a prediction with ``J Sigma J^T`` against a plain one, of the same images.

A plain prediction is the whole image tower and the product with the texts. *Linearised* is the same with the logits'
covariance and the draws of logits; decoding is not counted, and the texts' part, once for all images, is not either.
All are timed in turn within each round; what is printed is the median over rounds of the ratio in the same round.

    python -m benchmarks.averaging [--models tiny ViT-B-32:random] [--rounds 9] [--device cpu]
"""

import argparse
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.step import measure
from kalmanclip.encoders import load_backbone
from kalmanclip.methods import Kalman, preset
from kalmanclip.methods.predictive import linearised
from kalmanclip.prediction import expected_softmax

BATCH, CLASSES = 16, 37


def contestants(model: str, name: str, device: str) -> dict[str, Callable[[], None]]:
    """A plain prediction and a linearised one; the belief is the prior's: what it costs does not depend on it."""
    method = Kalman(load_backbone(model, device), preset(name))
    method.set_classes([f"number {i}" for i in range(CLASSES)], ("a photo of a {}.",))
    encoder, size = method.encoder, method.backbone.image_size
    torch.manual_seed(0)
    pictures = torch.randn(BATCH, 3, size, size, device=device)
    if method.classes is None:
        method.filter = method.begin(1e-8)
    else:
        features = encoder.encode_images(encoder.image.prefix(pictures)).detach().unsqueeze(1)
        method.classes.learn(features, torch.arange(BATCH, device=device))
    with torch.no_grad():
        score, gaussian = method._scorer(encoder), linearised(method)

    @torch.no_grad()
    def plain() -> None:
        score(encoder.image.prefix(pictures)).softmax(dim=1)

    @torch.no_grad()
    def averaged() -> None:
        expected_softmax(gaussian(encoder.image.prefix(pictures)))

    return {"plain": plain, "linearised": averaged}


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["tiny", "ViT-B-32:random"])
    parser.add_argument("--presets", nargs="+", default=["default", "head", "paper"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)
    table = Table(title=f"Ratio to a plain prediction ({options.device}, batch {BATCH}, {CLASSES} classes)")
    for column in ("model", "preset", "ratio (median)", "quartiles", "plain prediction"):
        table.add_column(column, justify="right" if column not in ("model", "preset") else "left")
    result = {}
    for model in options.models:
        for name in options.presets:
            seconds = measure(contestants(model, name, options.device), options.rounds, options.device)
            plain = torch.tensor(seconds["plain"])
            ratios = torch.tensor(seconds["linearised"]) / plain
            low, median, high = ratios.quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
            result[f"{model}: {name}"] = median
            milliseconds = f"{1000 * plain.median().item():.0f} ms"
            table.add_row(model, name, f"{median:.2f}", f"{low:.2f} to {high:.2f}", milliseconds)
    Console().print(table)
    return result


if __name__ == "__main__":
    main()

"""What a prediction costs beside the bare open_clip model, and what averaging over the belief adds.

- *predict*: the image tower, the product with the texts and the softmax of pictures that lie decoded on the device,
  against `encode_image` alone. The throughput's share: 0.9 means that nine images are done where ten could be.
- *from files*: `KalmanCLIP.predict_proba` on JPEG files, against a plain loop over open_clip (open, preprocess, stack,
  encode), in batches of the same size.
- *linearised*: the same with the logits' covariance ``J Sigma J^T`` and the draws of logits, over the bare tower.
  The texts' part, once for all images, is not counted.

The belief is the prior's: what it costs does not depend on it.

    python -m benchmarks.predict [--models tiny ViT-B-32:random] [--rounds 15] [--device cpu]
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from benchmarks.fit import make_pictures
from benchmarks.measure import Options, Row, main, row, seconds
from kalmanclip import KalmanCLIP
from kalmanclip.encoders import Backbone, load_backbone
from kalmanclip.encoders.features import ENCODE_BATCH
from kalmanclip.methods import ClassResiduals, Kalman, make_classifier, preset
from kalmanclip.prediction import expected_softmax

BATCH, CLASSES, FILES = 16, 37, 64
PRESETS = ("default", "head", "paper")
SHARE, AVERAGED = 0.9, 3.0
TEMPLATES = ("a photo of a {}.",)


def rows(options: Options) -> list[Row]:
    """Predictions over the bare model, model by model and preset by preset."""
    lines = []
    for model in options.backbones(["tiny", "ViT-B-32:random"]):
        backbone = load_backbone(model, options.device)
        batch = 2 if options.quick else BATCH
        for name in PRESETS:
            taken = seconds(contestants(backbone, name, batch), options)
            bare = taken["bare"]
            note = f"bare forward of {batch} images {1000 * bare.median():.1f} ms"
            what = f"{model}, {name}: throughput of predict / bare forward"
            lines.append(row("predict", what, bare / taken["predict"], "", SHARE, at_least=True, note=note))
            what = f"{model}, {name}: linearised / bare forward"
            lines.append(row("predict", what, taken["linearised"] / bare, bound=AVERAGED))
        with tempfile.TemporaryDirectory() as folder:
            files = make_pictures(Path(folder), 2 if options.quick else FILES, 1, (400, 300))
            taken = seconds(_from_files(backbone, files), options)
        note = f"{len(files) / taken['plain loop'].median():,.0f} images a second in the plain loop"
        what = f"{model}, default, from files: throughput of predict / plain loop over open_clip"
        lines.append(
            row("predict", what, taken["plain loop"] / taken["predict"], bound=SHARE, at_least=True, note=note)
        )
    return lines


def contestants(backbone: Backbone, name: str, batch: int) -> dict[str, Callable[[], object]]:
    """The bare image tower, a plain prediction and a linearised one."""
    method = make_classifier(backbone, preset(name))
    method.set_classes([f"number {i:04d}" for i in range(CLASSES)], TEMPLATES)
    encoder, size = method.encoder, backbone.image_size
    pictures = torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(0))
    pictures = pictures.to(backbone.device, backbone.dtype)
    if isinstance(method, Kalman):
        method.filter = method.begin(1e-8)
    elif isinstance(method, ClassResiduals):
        crops = encoder.encode_images(encoder.image.prefix(pictures)).detach().unsqueeze(1)
        crops = crops.expand(-1, len(method.config.weights), -1)
        method.residuals.learn(crops, torch.arange(batch, device=backbone.device) % CLASSES)
    with torch.no_grad():
        score, gaussian = method._scorer(), method.linearized()

    @torch.no_grad()
    def bare() -> Tensor:
        embedding: Tensor = backbone.model.encode_image(pictures)
        return embedding

    @torch.no_grad()
    def predict() -> Tensor:
        return score(encoder.image.prefix(pictures)).softmax(dim=1)

    @torch.no_grad()
    def averaged() -> object:
        return expected_softmax(gaussian(encoder.image.prefix(pictures)))

    return {"bare": bare, "predict": predict, "linearised": averaged}


def _from_files(backbone: Backbone, files: list[Path]) -> dict[str, Callable[[], object]]:
    classifier = KalmanCLIP(backbone, templates=TEMPLATES)
    classifier.set_classes([f"number {i:04d}" for i in range(CLASSES)])
    tokens = backbone.tokenizer([TEMPLATES[0].format(name) for name in classifier.class_names_]).to(backbone.device)
    with torch.no_grad():
        T = torch.nn.functional.normalize(backbone.model.encode_text(tokens), dim=-1)

    @torch.no_grad()
    def plain() -> Tensor:
        probabilities = []
        for start in range(0, len(files), ENCODE_BATCH):
            pictures = [backbone.preprocess(_opened(file)) for file in files[start : start + ENCODE_BATCH]]
            f = backbone.model.encode_image(torch.stack(pictures).to(backbone.device), normalize=True)
            probabilities.append((backbone.logit_scale * f @ T.mT).softmax(dim=1).cpu())
        return torch.cat(probabilities)

    return {"plain loop": plain, "predict": lambda: classifier.predict_proba(files)}


def _opened(file: Path) -> Image.Image:
    with Image.open(file) as image:
        return image.convert("RGB")


if __name__ == "__main__":
    main(rows, __doc__)

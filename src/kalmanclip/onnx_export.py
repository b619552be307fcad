"""A fitted classifier as one ONNX graph: pictures in, probabilities and out-of-distribution score out.

The graph takes bytes, so that all that is left to whoever runs it is to resize a picture and to cut out its centre;
``classifier.json`` says how, and what the outputs mean. ``examples/onnx_predict.py`` does it without PyTorch.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

import kalmanclip
from kalmanclip.encoders import Backbone
from kalmanclip.encoders.backbone import copy_licences
from kalmanclip.errors import AdapterError, ConfigError, ModelError
from kalmanclip.files import update_folder, write_json_atomic
from kalmanclip.methods import Classifier

GRAPH, DESCRIPTION = "classifier.onnx", "classifier.json"
FORMAT, VERSION = "kalmanclip-onnx", 1
TOLERANCE = 1e-4
"""How far the outputs of an exported graph may be from PyTorch's; otherwise nothing is written."""

_RATES = (0.01, 0.05, 0.1)  # of false alarms, whose thresholds are written down
_ONE_FILE = 1.8e9  # bytes of weights: larger ones lie beside the graph, whose format ends at 2 GB
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


class ImageClassifier(nn.Module):
    """From the bytes of prepared pictures to the outputs of the graph.

    Args:
        method: with classes; it stays as it is.
    """

    def __init__(self, method: Classifier) -> None:
        super().__init__()
        models, weights = zip(*method.exported(), strict=True)
        self.models = nn.ModuleList(model.cpu().float().eval().requires_grad_(False) for model in models)
        self.scale = method.backbone.logit_scale
        self.mean, self.std = _normalization(method.backbone)
        self.weights = [each.float() for each in weights]
        self.ood_score = _ood_score(method)

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Return probabilities (N, C), and an out-of-distribution score (N,) if there is one, of bytes (N, h, w, 3)."""
        x = (pixels.permute(0, 3, 1, 2).float() / 255 - self.mean) / self.std
        models: Any = self.models
        features = [F.normalize(model.encode_image(x), dim=-1) for model in models]
        logits = [self.scale * f @ W.mT for f, W in zip(features, self.weights, strict=True)]
        probabilities = sum(logits[1:], start=logits[0]).softmax(dim=-1)
        return (probabilities,) if self.ood_score is None else (probabilities, self.ood_score(features[-1]))


def _ood_score(method: Classifier) -> Callable[[Tensor], Tensor] | None:
    """Return what turns unit-length features (N, d) into scores (N,); None: the graph can have no such score.

    The score is about frozen features, which the graph has only if one of its towers is untouched. All that an exported
    graph knows about it is here: whatever its formula, its operations are recorded.
    """
    if method.ood is None or (method.encoder.n and len(method.exported()) == 1):
        return None
    parts = {field.name: getattr(method.ood, field.name) for field in fields(method.ood)}
    on_cpu: dict[str, Any] = {name: part.cpu() for name, part in parts.items() if isinstance(part, Tensor)}
    detector = replace(method.ood, **on_cpu)
    detector.score(torch.zeros(1, method.backbone.width))  # what follows from training images alone is computed now
    return detector.score


def export_onnx(folder: Path, method: Classifier) -> float:
    """Write a fitted method as ``classifier.onnx`` with ``classifier.json``.

    Returns:
        The largest difference between its outputs and PyTorch's, which is at most `TOLERANCE`.

    Raises:
        ConfigError: a package is missing, or PyTorch is too old.
        ModelError: the backbone cannot be exported, or its preparation of pictures cannot be described.
        AdapterError: the graph says something else than PyTorch.
    """
    _require_packages()
    preparation = describe_preparation(method.backbone)
    model = ImageClassifier(method).eval()
    scored = model.ood_score is not None
    names = ["probabilities", "ood_score"] if scored else ["probabilities"]
    description = {
        "format": FORMAT,
        "version": VERSION,
        "kalmanclip": kalmanclip.__version__,
        "backbone": method.backbone.name,
        "class_names": list(method.class_names),
        "preparation": preparation,
        "input": {"name": "pixels", "type": "uint8", "shape": ["N", *preparation["size"], 3]},
        "outputs": names,
        # by the share of pictures of known classes that may lie above
        "ood_thresholds": {str(rate): t for rate in _RATES if scored and (t := method.ood_threshold(rate)) is not None},
    }
    with update_folder(folder, AdapterError, last=DESCRIPTION, obsolete=f"{GRAPH}.data") as draft:
        _write_graph(draft / GRAPH, model, preparation["size"], names)
        difference = _difference(draft / GRAPH, model, preparation["size"], names)
        if not difference <= TOLERANCE:
            raise AdapterError(
                f"The exported graph differs from PyTorch by {difference:.1g}, more than {TOLERANCE:g}: it was not "
                "written. Another version of onnxruntime or torch may do better."
            )
        copy_licences(method.backbone.name, draft)
        write_json_atomic(draft / DESCRIPTION, description, AdapterError)
    return difference


def describe_preparation(backbone: Backbone) -> dict[str, Any]:
    """Return what is done with a picture before the graph: JSON values, in the order of the steps.

    Raises:
        ModelError: it is something else than resizing and cutting out the centre.
    """
    steps = {type(step).__name__: step for step in getattr(_transform(backbone), "transforms", [])}
    resize, crop = steps.get("Resize"), steps.get("CenterCrop")
    probe = getattr(backbone.preprocess, "pixels", backbone.preprocess)(Image.new("RGB", (300, 200)))
    other = steps.keys() - {"Resize", "CenterCrop", "MaybeConvertMode", "MaybeToTensor", "ToTensor", "Normalize"}
    if resize is None or other or probe.dtype != torch.uint8:
        raise ModelError(
            f"The backbone {backbone.name!r} prepares pictures in a way that cannot be described for ONNX: a picture "
            "must be resized and its centre cut out."
        )
    size = list(probe.shape[:2])
    whole = isinstance(resize.size, (tuple, list)) and len(resize.size) == 2
    short = resize.size if isinstance(resize.size, int) else resize.size[0]
    return {
        "colours": "turned as the EXIF orientation says, what is transparent on white, then RGB",
        "resize": [int(side) for side in resize.size] if whole else None,  # height and width
        "resize_short_side": None if whole else int(short),  # the long side is rounded down
        "interpolation": str(resize.interpolation.value),
        "center_crop": None if crop is None else size,  # height and width
        "size": size,
    }


def _normalization(backbone: Backbone) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of the colours (3, 1, 1)."""
    step = _transform(backbone).transforms[-1]
    mean, std = (torch.tensor(values, dtype=torch.float32).view(-1, 1, 1) for values in (step.mean, step.std))
    return mean, std


def _transform(backbone: Backbone) -> Any:
    return getattr(backbone.preprocess, "transform", None)


def _require_packages() -> None:
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(f"For ONNX {', '.join(missing)} must be installed: pip install 'kalmanclip[onnx]'.")
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
        raise ConfigError(f"For ONNX torch 2.6 or newer must be installed; this is {torch.__version__}.")


def _pictures(count: int, size: list[int]) -> Tensor:
    """Return bytes (count, h, w, 3) of blurred noise."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, 8, 8, generator=generator)
    fine = F.interpolate(coarse, size=size, mode="bilinear") + 0.1 * torch.rand(count, 3, *size, generator=generator)
    return (fine / 1.1 * 255).byte().permute(0, 2, 3, 1).contiguous()


def _write_graph(path: Path, model: ImageClassifier, size: list[int], names: list[str]) -> None:
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
            torch.onnx.export(
                model,
                (_pictures(2, size),),
                path,
                input_names=["pixels"],
                output_names=names,
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("N")},),
                external_data=weights > _ONE_FILE,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as problem:
        first = (str(problem).strip().splitlines() or [""])[0][:200]
        raise ModelError(f"PyTorch cannot export this backbone to ONNX ({first}).") from problem
    finally:
        logger.setLevel(level)


@torch.no_grad()
def _difference(path: Path, model: ImageClassifier, size: list[int], names: list[str]) -> float:
    """Return the largest difference between the outputs of a graph and PyTorch's, of another number of pictures.

    Of numbers larger than one it is the relative difference.
    """
    import onnxruntime

    pixels = _pictures(5, size)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found = session.run(names, {"pixels": pixels.numpy()})
    expected = [output.numpy() for output in model(pixels)]
    return max(float((np.abs(a - b) / np.abs(b).clip(1)).max()) for a, b in zip(found, expected, strict=True))

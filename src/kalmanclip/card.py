"""The model card of an adapter: metadata that the Hugging Face Hub reads, and a page that people read."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import EvalResult, ModelCard, ModelCardData

import kalmanclip
from kalmanclip.encoders.backbone import TINY
from kalmanclip.encoders.wrap import IN_MEMORY
from kalmanclip.methods import Classifier, method_name

LIBRARY = "kalmanclip"
UNKNOWN: Mapping[str, str] = {"license": "unknown"}
"""Metadata of a licence that nobody has named."""

_TINY_LICENCE = {"license": "other", "license_name": "research-use"}  # models/tiny/README.md
_SHOWN = 200  # classes on the page


class Measured(NamedTuple):
    """What was measured on labelled images, for the card.

    Attributes:
        data: what the images are called.
        images: how many.
        accuracy: top-1, in 0..1.
        zero_shot: that of the untouched model.
    """

    data: str
    images: int
    accuracy: float
    zero_shot: float


def base_model(backbone: str) -> str | None:
    """Return the repository on the Hub that a backbone comes from; None: there is none, or it is not known."""
    if backbone == TINY or backbone.startswith((IN_MEMORY, "local-dir:")) or Path(backbone).exists():
        return None
    if backbone.startswith("hf-hub:"):
        return backbone.removeprefix("hf-hub:")
    architecture, colon, weights = backbone.partition(":")
    if not colon:
        return backbone if "/" in backbone else None
    from open_clip.pretrained import get_pretrained_cfg  # not above: `kalmanclip.encoders` has to be the first

    repository = get_pretrained_cfg(architecture, weights).get("hf_hub", "")
    return "/".join(repository.split("/")[:2]) or None


def known_licence(backbone: str) -> Mapping[str, str]:
    """Return the metadata of a backbone's licence, as far as it is known without asking the Hub."""
    return _TINY_LICENCE if backbone == TINY else UNKNOWN


def model_card(
    method: Classifier,
    notes: Mapping[str, Any],
    licence: Mapping[str, str],
    measured: Measured | None = None,
    has_peft: bool = False,
) -> ModelCard:
    """Return the card of a fitted classifier.

    Args:
        method: fitted.
        notes: of the adapter.
        licence: metadata: ``license``, and where that is 'other' ``license_name`` and ``license_link``.
        measured: on images that were not learned from.
        has_peft: whether the low-rank parameters lie beside in peft's layout.
    """
    base = base_model(method.backbone.name)
    tags = ["clip", "few-shot", "kalman-filter", "model_hub_mixin", *(["lora", "peft"] if has_peft else [])]
    data = ModelCardData(
        library_name=LIBRARY,
        pipeline_tag="image-classification",
        tags=tags,
        base_model=base,
        base_model_relation="adapter" if base else None,
        model_name=f"{LIBRARY} adapter",
        eval_results=None if measured is None else [_result(measured)],
        **licence,  # type: ignore[arg-type]
    )
    parts = (_facts(method, notes), _accuracy(measured), _use(method, has_peft), _contents(method), _licence(licence))
    return ModelCard("\n\n".join((f"---\n{data.to_yaml()}\n---", _title(method), *parts)) + "\n")


def _result(measured: Measured) -> EvalResult:
    slug = re.sub(r"[^a-z0-9]+", "-", measured.data.lower()).strip("-") or "images"
    return EvalResult(
        task_type="image-classification",
        dataset_type=slug,
        dataset_name=measured.data,
        metric_type="accuracy",
        metric_value=round(measured.accuracy, 4),
    )


def _title(method: Classifier) -> str:
    names = method.class_names
    shown = ", ".join(map(_plain, names[:_SHOWN])) + (f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else "")
    return (
        f"# A classifier of {len(names)} classes from few images\n\nAn adapter of a CLIP model, learned by "
        f"{LIBRARY}: the weights of the CLIP itself are not in it.\n\n"
        f"**Classes:** {shown}."
    )


def _facts(method: Classifier, notes: Mapping[str, Any]) -> str:
    backbone = method.backbone
    rows = {
        "backbone": f"`{_plain(backbone.name)}` (weights {backbone.hash[:12]})",
        "classes": str(len(method.class_names)),
        "learned from": images_per_class(method, notes),
        "method": method_name(method.config),
        "prompts": " / ".join(f"`{_plain(template)}`" for template in method.templates),
        "sets of classes": "not calibrated" if method.calibration is None else "calibrated (`predict_sets`)",
        "written by": f"{LIBRARY} {kalmanclip.__version__}",
    }
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows.items())])


def images_per_class(method: Classifier, notes: Mapping[str, Any]) -> str:
    """Return how many images of each class were learned from, in words."""
    counts, known = notes.get("learned_from"), method.training_images
    if known is not None:
        found = Counter(known.labels)
        counts = [found[label] for label in range(len(method.class_names))]
    if not counts or len(counts) != len(method.class_names):
        return "images that were not counted"
    low, high = min(counts), max(counts)
    return f"{sum(counts)} images, {low if low == high else f'{low} to {high}'} per class"


def _accuracy(measured: Measured | None) -> str:
    if measured is None:
        return "## Accuracy\n\nNot measured when this card was written."
    return (
        f"## Accuracy\n\n{measured.accuracy:.1%} on {measured.images} labelled images ({_plain(measured.data)}); the "
        f"untouched backbone with the same prompts: {measured.zero_shot:.1%}."
    )


def _use(method: Classifier, has_peft: bool) -> str:
    given = ", model=model" if method.backbone.name.startswith(IN_MEMORY) else ""
    code = (
        f"from kalmanclip import KalmanCLIP\n\nclf = KalmanCLIP.from_pretrained(REPOSITORY{given})\n"
        'clf.predict(["new.jpg"])'
    )
    text = f"## Use\n\n```python\n{code}\n```\n\n`REPOSITORY` is the name of this one, or a folder with its files."
    if has_peft:
        text += (
            " The low-rank parameters lie beside in peft's layout: `PeftModel.from_pretrained(clip, REPOSITORY)` gives "
            "the same embeddings without kalmanclip. The belief about them, and so the uncertainty, is in ours alone."
        )
    return text


def _contents(method: Classifier) -> str:
    known = method.training_images
    if known is None:
        return "## What is in it\n\nNo images, no embeddings of images, no file names."
    return (
        f"## What is in it\n\nNo images, but the embeddings and the file names of {len(known.names)} training images, "
        "by which unknown images are told."
    )


def _licence(licence: Mapping[str, str]) -> str:
    if licence["license"] == "unknown":
        return "## Licence\n\nNot stated. The adapter works with its backbone alone, whose licence applies to its use."
    name = licence.get("license_name", licence["license"])
    return f"## Licence\n\n{_plain(name)}. The adapter works with its backbone alone, whose licence applies to its use."


def _plain(text: str) -> str:
    """Return text that a table of Markdown shows as it is."""
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|").replace("`", "'")

"""``kalmanclip export``: a plain open_clip model or an ONNX graph, for programs without kalmanclip."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kalmanclip.cli.arguments import Adapter, Device, load, refuse_foreign, writable_folder
from kalmanclip.cli.console import say, size_of, waiting

if TYPE_CHECKING:
    from kalmanclip.estimator import KalmanCLIP

EXAMPLES = """
kalmanclip export pets.adapter -o pets-clip/
kalmanclip export pets.adapter -o pets-onnx/ --format onnx
"""


class Format(str, Enum):
    """What is written."""

    open_clip = "open_clip"
    onnx = "onnx"


OURS = {
    Format.open_clip: (
        *("open_clip_model.safetensors", "open_clip_config.json", "classes.json", "classifier.safetensors", "LICENSE*"),
        # transformers
        *("config.json", "model*.safetensors*", "*processor_config.json", "*token*", "vocab.*", "merges.txt"),
        "untouched",  # the second model of the preset 'joint'
    ),
    Format.onnx: ("classifier.onnx", "classifier.onnx.data", "classifier.json", "LICENSE*"),
}
"""Patterns of the names of the files that are written."""


def export(
    adapter: Adapter,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder for the model.", show_default=False)],
    kind: Annotated[
        Format,
        typer.Option(
            "--format",
            help="An ordinary model and a classifier, to go on with in Python; or one graph for any ONNX runtime, from "
            "a picture to probabilities and out-of-distribution score.",
        ),
    ] = Format.open_clip,
    device: Device = None,
) -> None:
    """Write an ordinary open_clip model and a classifier, or an ONNX graph, for programs without kalmanclip.

    Low-rank parameters are folded into the model's weights; what was learned about single classes is in the classifier
    alone. Together they keep the mean of the belief, so they give the same probabilities; they drop the covariance,
    and with it the uncertainty.
    """
    refuse_foreign(output, ours=OURS[kind])
    from kalmanclip.adapter import UNTOUCHED

    with writable_folder(output):
        clf = load(adapter, device)
        if kind is Format.onnx:
            _write_onnx(clf, output)
            _say_licence(clf, output)
            return
        with waiting("Merging"):
            clf.export(output)
    if not (output / "open_clip_config.json").exists():
        say(f"Saved in {output} ({size_of(output)}). In Python, with transformers alone:")
        say(f"  AutoModel.from_pretrained({str(output)!r})", style="cyan")
        say("classifier.safetensors has one row of weights per class, in the order of classes.json.")
        if (output / UNTOUCHED).is_dir():
            say(f"The same is in {output / UNTOUCHED}; the logits are the sum of both.")
        _say_licence(clf, output)
        return
    say(f"Saved in {output} ({size_of(output)}). In Python, with open_clip alone:")
    say()
    name = f"local-dir:{output}"
    opening = [
        "import open_clip",
        "from PIL import Image, ImageOps",
        "from safetensors.torch import load_file",
        "",
    ]
    one = [
        f"model, _, preprocess = open_clip.create_model_and_transforms({name!r})",
        "model.eval().requires_grad_(False)",
        f"weight = load_file({str(output / 'classifier.safetensors')!r})['weight']  # one row per class",
        "photo = ImageOps.exif_transpose(Image.open('new.jpg'))  # upright",
        "features = model.encode_image(preprocess(photo).unsqueeze(0), normalize=True)",
        "probabilities = (model.logit_scale.exp() * features @ weight.T).softmax(dim=1)",
    ]
    two = [
        "logits = 0",
        f"for folder in ({str(output)!r}, {str(output / UNTOUCHED)!r}):  # the adapted model, and the untouched one",
        "    model, _, preprocess = open_clip.create_model_and_transforms(f'local-dir:{folder}')",
        "    weight = load_file(f'{folder}/classifier.safetensors')['weight']  # one row per class",
        "    photo = ImageOps.exif_transpose(Image.open('new.jpg'))  # upright",
        "    features = model.eval().encode_image(preprocess(photo).unsqueeze(0), normalize=True).detach()",
        "    logits = logits + model.logit_scale.exp().item() * features @ weight.T",
        "probabilities = logits.softmax(dim=1)",
    ]
    for line in opening + (two if (output / UNTOUCHED).is_dir() else one):
        say(f"  {line}", style="cyan")
    say()
    say(
        f"{output / 'classes.json'} holds the class names, in the order of the rows, and the prompts; "
        f"open_clip.get_tokenizer({name!r}) is for texts of your own."
    )
    _say_licence(clf, output)


def _say_licence(clf: KalmanCLIP, output: Path) -> None:
    files = ", ".join(sorted(file.name for file in output.glob("LICENSE*")))
    if files:
        say(f"The weights are made of those of {clf.backbone_.name}: what they may be used for, {files} there says.")


def _write_onnx(clf: KalmanCLIP, output: Path) -> None:
    with waiting("Exporting and checking"):
        difference = clf.export_onnx(output)
    say(f"Saved in {output} ({size_of(output)}): classifier.onnx, and classifier.json, which says how to use it.")
    say(f"It agrees with PyTorch to {difference:.0e}. Without PyTorch, with onnxruntime, numpy and pillow:")
    say(f"  python examples/onnx_predict.py {output} new.jpg", style="cyan")

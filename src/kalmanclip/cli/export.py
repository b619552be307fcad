"""``kalmanclip export``: a plain open_clip model, for programs without kalmanclip."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kalmanclip.cli.arguments import Adapter, Device, load, refuse_foreign, writable_folder
from kalmanclip.cli.console import say, size_of, waiting

EXAMPLES = """
kalmanclip export pets.adapter -o pets-clip/
"""

OURS = ("open_clip_model.safetensors", "open_clip_config.json", "classes.json", "classifier.safetensors")


def export(
    adapter: Adapter,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder for the model.", show_default=False)],
    device: Device = None,
) -> None:
    """Write an ordinary open_clip model and a classifier, for programs without kalmanclip.

    Low-rank parameters are folded into the model's weights; what was learned about single classes is in the classifier
    alone. Together they keep the mean of the belief, so they give the same probabilities; they drop the covariance,
    and with it the uncertainty.
    """
    refuse_foreign(output, ours=OURS)
    with writable_folder(output):
        clf = load(adapter, device)
        with waiting("Merging"):
            clf.export(output)
    say(f"Saved in {output} ({size_of(output)}). In Python, with open_clip alone:")
    say()
    name = f"local-dir:{output}"
    for line in (
        "import open_clip",
        "from PIL import Image, ImageOps",
        "from safetensors.torch import load_file",
        "",
        f"model, _, preprocess = open_clip.create_model_and_transforms({name!r})",
        "model.eval().requires_grad_(False)",
        f"weight = load_file({str(output / 'classifier.safetensors')!r})['weight']  # one row per class",
        "photo = ImageOps.exif_transpose(Image.open('new.jpg'))  # upright",
        "features = model.encode_image(preprocess(photo).unsqueeze(0), normalize=True)",
        "probabilities = (model.logit_scale.exp() * features @ weight.T).softmax(dim=1)",
    ):
        say(f"  {line}", style="cyan")
    say()
    say(
        f"{output / 'classes.json'} holds the class names, in the order of the rows, and the prompts; "
        f"open_clip.get_tokenizer({name!r}) is for texts of your own."
    )

"""``kalmanclip export``: a plain open_clip model, for programs without kalmanclip."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kalmanclip.cli.common import Adapter, Device, load, refuse_foreign, writable_folder
from kalmanclip.cli.screen import say, size_of, waiting

EXAMPLES = """
kalmanclip export pets.adapter -o pets-clip/
"""

OURS = ("open_clip_model.safetensors", "open_clip_config.json", "classes.json", "classifier.safetensors")


def export(
    adapter: Adapter,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder for the model.", show_default=False)],
    device: Device = None,
) -> None:
    """Fold the tuning into the weights and write an ordinary open_clip model.

    The class embeddings go beside it. Together they keep the mean of the belief, so they predict the same classes;
    they drop the covariance, and with it the uncertainty.
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
        f"model, _, preprocess = open_clip.create_model_and_transforms({name!r})",
        f"tokenizer = open_clip.get_tokenizer({name!r})",
    ):
        say(f"  {line}", style="cyan")
    say()
    say(
        f"{output / 'classes.json'} holds the class names and prompts, classifier.safetensors the class embeddings "
        "('weight', one row per class): unit-length image features times its transpose, times the model's logit scale."
    )

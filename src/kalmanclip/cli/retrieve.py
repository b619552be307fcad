"""``kalmanclip retrieve``: how well images find their captions, and captions their images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kalmanclip.cli.arguments import Device, Json, check_device, integers, load, naming_bad_images
from kalmanclip.cli.console import bars, facts, listing, percent, say, waiting
from kalmanclip.errors import ConfigError

EXAMPLES = """
kalmanclip retrieve photos.csv
kalmanclip retrieve photos.csv --adapter photos.adapter --k 1,5
kalmanclip retrieve photos.jsonl --model ViT-B-16:openai --json
"""


def retrieve(
    pairs: Annotated[
        str,
        typer.Argument(
            metavar="LIST",
            help="A .csv, .json or .jsonl file with the columns image and caption (and split, if there are parts); "
            "or hf:OWNER/NAME, a data set of Hugging Face.",
            show_default=False,
        ),
    ],
    adapter: Annotated[
        Path | None, typer.Option(help="Also measure this adapter, the folder that `kalmanclip fit` wrote.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The CLIP to measure, if there is no adapter: tiny, ...")] = None,
    k: Annotated[str, typer.Option(help="How many candidates may be looked at; several with commas.")] = "1,5,10",
    part: Annotated[
        str | None, typer.Option(help="train, val or test; by default test, or everything if there is no split.")
    ] = None,
    as_json: Json = False,
    device: Device = None,
) -> None:
    """Measure how often images find their captions, and captions their images, among the k best (recall@k).

    An image with several captions may find any of them, a caption any of its images. Ties count as in a random order.
    """
    if adapter is not None and model is not None:
        raise ConfigError("An adapter knows its model. Give --adapter or --model, not both.")
    ks = sorted(set(integers("k", [k])))
    if not ks or ks[0] < 1:
        raise ConfigError(f"--k takes whole numbers of at least 1, such as --k 1,5,10, not {k!r}.")
    with waiting("Loading"):
        from kalmanclip.cli.fit import caption_splits
        from kalmanclip.encoders.backbone import load_backbone, usual_device
        from kalmanclip.retrieval import measure_recall

    chosen = caption_splits(pairs).get(part, pairs)
    check_device(device)
    if adapter is not None:
        tool: Any = load(adapter, device)
    else:
        with waiting("Loading the model"):
            tool = load_backbone(model or "tiny", device or usual_device())
    with bars() as progress, naming_bad_images(chosen.sources):
        result = measure_recall(chosen, tool, ks, progress)
    recalls = {"guessing": result.guessing, "zero-shot": result.zero_shot}
    recalls |= {"tuned": result.tuned} if result.tuned is not None else {}
    images, texts, directions = result.zero_shot.images, result.zero_shot.texts, ("image_to_text", "text_to_image")
    if as_json:
        found: dict[str, Any] = {"pairs": len(chosen), "images": images, "texts": texts}
        for name, recall in recalls.items():
            found[name.replace("-", "_")] = {direction: getattr(recall, direction) for direction in directions}
        typer.echo(json.dumps(found, indent=2))
        return
    facts(
        [
            ("pairs", len(chosen)),
            ("images", f"{images} (equal files are one)"),
            ("texts", f"{texts} (equal captions are one)"),
        ]
    )
    table = listing("direction", "k", *recalls, right=("k", *recalls))
    for direction in directions:
        for number in ks:
            shares = (percent(getattr(recall, direction)[number]) for recall in recalls.values())
            table.add_row(direction.replace("_", " "), str(number), *shares)
    say(table)

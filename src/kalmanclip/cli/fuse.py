"""``kalmanclip fuse``: adapters learned apart, as one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kalmanclip.cli.arguments import Device, check_device, earlier_adapter, writable_folder
from kalmanclip.cli.console import command_line, facts, some, suggest, waiting
from kalmanclip.errors import AdapterError

EXAMPLES = """
kalmanclip fuse berlin.adapter lisbon.adapter -o both.adapter
kalmanclip fuse monday.adapter tuesday.adapter wednesday.adapter -o week.adapter
"""


def fuse(
    adapters: Annotated[
        list[Path],
        typer.Argument(
            metavar="ADAPTER...", help="Folders that `kalmanclip fit` wrote, two or more.", show_default=False
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where the fused adapter goes: a new folder.", show_default=False)
    ],
    device: Device = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an adapter that is already there.")] = False,
) -> None:
    """Make one adapter of several that were learned apart. No image is needed.

    The adapters must belong to the same model and have the same prompts; their classes may differ. The default preset
    can always be fused. Low-rank adapters (presets head and paper) must have been fitted with the same seed and
    options.
    """
    if len(adapters) < 2:
        raise AdapterError("One adapter alone has nothing to be fused with: give two or more.")
    resolved = [adapter.resolve() for adapter in adapters]
    if len(set(resolved)) < len(resolved):
        raise AdapterError("An adapter is given twice, and its images would count twice. Give each of them once.")
    if output.resolve() in resolved:
        raise AdapterError(f"{output} is one of the adapters to fuse. Choose another name for the result.")
    earlier_adapter(output, force)
    with waiting("Loading the model"):
        from kalmanclip.adapter import read_description
        from kalmanclip.estimator import KalmanCLIP

        for adapter in adapters:
            read_description(adapter)  # a mistyped path is no reason to build a model first
        check_device(device)
        first = KalmanCLIP.load(adapters[0], device=device)
        parts = [first, *(KalmanCLIP.load(adapter, first.backbone_) for adapter in adapters[1:])]
    with writable_folder(output), waiting("Fusing"):
        fused = KalmanCLIP.fuse(parts)
        fused.save(output)
    rows = [(str(adapter), f"{len(part.classes_)} classes") for adapter, part in zip(adapters, parts, strict=True)]
    facts([*rows, ("fused", f"{len(fused.classes_)} classes: {some(fused.class_names_)}"), ("saved in", output)])
    suggest(
        (command_line("predict", output, "new.jpg"), "classify images"),
        (command_line("evaluate", output, "test_photos/"), "measure accuracy on a folder of class folders"),
    )

"""``kalmanclip app``: a page in the browser over an adapter."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from kalmanclip.cli.arguments import Adapter, Device, load
from kalmanclip.cli.console import note, say, waiting
from kalmanclip.errors import ConfigError

EXAMPLES = """
kalmanclip app pets.adapter
kalmanclip app pets.adapter --images photos/ --test test_photos/
kalmanclip app pets.adapter --pool unlabelled/
kalmanclip app pets.adapter --read-only --port 8000
"""


def app(
    adapter: Adapter,
    images: Annotated[
        Path | None, typer.Option(help="Where the training images lie, to show those most similar to a picture.")
    ] = None,
    test: Annotated[
        Path | None, typer.Option(help="A folder of class folders that were not learned from, to measure on.")
    ] = None,
    pool: Annotated[
        Path | None, typer.Option(help="A folder of images without labels: a tab asks for those that teach most.")
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen at. The default serves this computer alone.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen at; 0: any free one.")] = 7860,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="Never write the adapter.")] = False,
    device: Device = None,
) -> None:
    """Open a page in the browser: drop a picture and see its classes, how sure they are and why, and teach more.

    Nothing on disk changes until somebody presses Save. Uploads are not kept. Ctrl-C ends it.
    """
    if find_spec("gradio") is None:
        raise ConfigError("The page needs the package gradio. Install it with: pip install 'kalmanclip[app]'")
    from kalmanclip.app.server import open_socket, serve

    with open_socket(host, port) as listening:  # first: a port that is taken is no reason to load a model
        from kalmanclip.app.images import Gallery
        from kalmanclip.app.middleware import is_local
        from kalmanclip.app.service import AdapterService
        from kalmanclip.data import read_folder, read_images

        classifier = load(adapter, device)
        with waiting("Looking at the images"):
            held = None if test is None else read_folder(test, classifier.class_names_)
            files = None if pool is None else read_images(pool)
            service = AdapterService(classifier, adapter, Gallery(images), held, read_only, files)
        if not is_local(listening.getsockname()[0]):
            note(
                f"Everybody who can reach this computer at {host} can use the page, without a password"
                + (": also to teach the adapter and to save it. --read-only prevents saving." if not read_only else ".")
            )

        def ready(address: str) -> None:
            say(f"The page is at {address}")
            sys.stdout.flush()  # whoever reads a pipe waits for this
            note("Ctrl-C ends it.")
            if open_page:
                typer.launch(address)

        serve(service, listening, host, ready)

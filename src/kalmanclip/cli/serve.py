"""``kalmanclip serve``: an adapter as a service over HTTP."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from kalmanclip.cli.arguments import Adapter, Device, Precision, load
from kalmanclip.cli.console import note, say
from kalmanclip.errors import ConfigError

EXAMPLES = """
kalmanclip serve pets.adapter
kalmanclip serve pets.adapter --host 0.0.0.0 --allow-host pets.example.org
kalmanclip serve pets.adapter --learn
"""


def serve(
    adapter: Adapter,
    host: Annotated[str, typer.Option(help="The address to listen at. The default serves this computer alone.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen at; 0: any free one.")] = 8000,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A name that requests may come to, such as a proxy's; can be repeated."),
    ] = None,
    learn: Annotated[
        bool, typer.Option("--learn", help="Accept POST /learn: whoever can reach the service can change the adapter.")
    ] = False,
    device: Device = None,
    precision: Precision = None,
) -> None:
    """Serve an adapter over HTTP: POST /predict, POST /learn (with --learn), GET /health.

    Pictures are sent as multipart/form-data in the field 'images'; answers and errors are JSON. Uploads are not kept.
    Ctrl-C ends it.
    """
    if not all(map(find_spec, ("fastapi", "uvicorn", "python_multipart"))):
        raise ConfigError("The service needs the package fastapi. Install it with: pip install 'kalmanclip[serve]'")
    from kalmanclip.app.server import open_socket, run

    with open_socket(host, port) as listening:  # first: a port that is taken is no reason to load a model
        from kalmanclip.app.api import build
        from kalmanclip.app.middleware import is_local
        from kalmanclip.app.service import AdapterService

        service = AdapterService(load(adapter, device, precision), adapter, read_only=not learn)
        if not is_local(listening.getsockname()[0]):
            note(
                f"Everybody who can reach this computer at {host} can use the service, without a password"
                + (": also to teach the adapter." if learn else ".")
            )

        def ready(address: str) -> None:
            say(f"The service is at {address}")
            sys.stdout.flush()  # whoever reads a pipe waits for this
            note("Ctrl-C ends it.")

        run(build(service, host, allow_host or (), learn), listening, ready, log_level="error")

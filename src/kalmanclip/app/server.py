"""Serving the page: one socket, one private folder for uploads, and an end without traces."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kalmanclip.errors import ConfigError

if TYPE_CHECKING:
    from kalmanclip.app.service import AdapterService


def open_socket(host: str, port: int) -> socket.socket:
    """Listen at an address; port 0: any free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, kind, protocol)
        if os.name == "posix":  # elsewhere it would let two programs listen at once
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen()
    except socket.gaierror as error:
        raise ConfigError(f"{host} is not an address of this computer: {error.strerror}.") from error
    except OSError as error:
        raise ConfigError(
            f"Cannot listen at {host}, port {port}: {error.strerror}. Choose another with --port (0: any free one)."
        ) from error
    return opened


def serve(service: AdapterService, listening: socket.socket, ready: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C, or until the process is asked to end; ``ready`` is called with the address."""
    with _private_folder() as uploads:
        # only now: Gradio reads its settings when it is imported
        import gradio
        import uvicorn
        from fastapi import FastAPI

        from kalmanclip.app.images import MAX_BYTES
        from kalmanclip.app.middleware import RequestFilter, is_local
        from kalmanclip.app.page import build, looks

        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        page = build(service, uploads)
        page.has_launched = True  # a page that is mounted, not launched, checks no path
        gradio.mount_gradio_app(
            app,
            page,
            path="/",
            footer_links=[],
            run_history=False,
            show_error=False,
            max_file_size=MAX_BYTES,
            allowed_paths=[],
            ssr_mode=False,
            enable_monitoring=False,
            pwa=False,
            mcp_server=False,
            **looks(),
        )
        app.add_middleware(RequestFilter, uploads=uploads, local=is_local(listening.getsockname()[0]))
        # browsers that are still connected at the end are no error worth a traceback
        config = uvicorn.Config(app, log_level="critical", access_log=False, timeout_graceful_shutdown=1)
        host, port = listening.getsockname()[:2]
        ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        # Python would end at once, and the folder would stay
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            with suppress(KeyboardInterrupt):
                uvicorn.Server(config).run(sockets=[listening])
        finally:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _private_folder() -> Iterator[Path]:
    """Make a folder for uploads that only this user can read, for Gradio; it is gone afterwards with all in it."""
    with tempfile.TemporaryDirectory(prefix="kalmanclip-app-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
        yield Path(folder)

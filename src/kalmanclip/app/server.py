"""Serving the page: one socket, one private folder for uploads, and an end without traces."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from kalmanclip.errors import ConfigError

if TYPE_CHECKING:
    from kalmanclip.app.service import AdapterService


_PREFIX = "kalmanclip-app-"


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


def serve(service: AdapterService, listening: socket.socket, host: str, ready: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C, or until the process is asked to end; ``ready`` is called with the address.

    Args:
        service: the adapter.
        listening: at the address ``host``.
        host: as people gave it, perhaps a name.
        ready: what to do when the page is there.
    """
    with _private_folder() as uploads:
        # only now: Gradio reads its settings when it is imported
        import gradio
        from fastapi import FastAPI

        from kalmanclip.app.images import MAX_BYTES
        from kalmanclip.app.middleware import RequestFilter, separate_uploads
        from kalmanclip.app.page import build, looks

        separate_uploads()
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
        app.add_middleware(RequestFilter, uploads=uploads, host=host)
        run(app, listening, ready)


def run(app: Any, listening: socket.socket, ready: Callable[[str], None], log_level: str = "critical") -> None:
    """Serve until Ctrl-C, or until the process is asked to end; ``ready`` is called with the address."""
    import uvicorn

    # browsers that are still connected at the end are no error worth a traceback
    config = uvicorn.Config(app, log_level=log_level, access_log=False, timeout_graceful_shutdown=1)
    address, port = listening.getsockname()[:2]
    ready(f"http://{f'[{address}]' if ':' in address else address}:{port}")
    with _ending_in_order(), suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Have the signals that ask a process to end raise `SystemExit`: by default it is gone, and its folder stays."""
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [number for name in names if signal.getsignal(number := getattr(signal, name)) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda *_: sys.exit(0)) for number in numbers}  # nohup: ignored
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _private_folder() -> Iterator[Path]:
    """Make a folder for uploads that only this user can read, for Gradio; it is gone afterwards with all in it.

    Folders of servers that were killed go first: nobody holds their locks.
    """
    root = Path(tempfile.gettempdir())
    for abandoned in root.glob(f"{_PREFIX}*"):
        with suppress(Timeout, OSError), _lease(abandoned):  # somebody holds it, or it is another user's
            shutil.rmtree(abandoned)
    folder = root / f"{_PREFIX}{secrets.token_hex(8)}"
    with _lease(folder):
        folder.mkdir(mode=0o700)
        os.environ["GRADIO_TEMP_DIR"] = str(folder)
        os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _lease(folder: Path) -> Iterator[None]:
    """Be the only one who uses a folder, as long as this process lives; raises `Timeout` if somebody else does."""
    lock = folder.with_name(f".{folder.name}.lock")
    with FileLock(lock, timeout=0):
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)

"""Middleware of the page's server: of Gradio's many routes only those that the page needs are served.

What a browser must be able to fetch is the page, its scripts and styles, and the queue; pictures travel inside answers,
so that no file is ever served by its path. Requests that another website makes in the name of the person at the
computer are refused, and so are those for a name that somebody else has pointed at this computer.

Gradio copies any file, and fetches any address, that an event names where an upload should be. So no event gets through
that names anything but an upload.
"""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kalmanclip.app.images import is_upload

_API = "/gradio_api"
_EVENTS = f"{_API}/queue/join"
_LONGEST = 1 << 20  # bytes of an event: files are uploaded before
_OPEN = {
    *("/", "/config", "/theme.css", "/favicon.ico", "/manifest.json"),
    *(f"{_API}/{name}" for name in ("queue/join", "queue/data", "upload", "upload_progress", "cancel")),
}
_OPEN_BELOW = ("/assets/", "/static/", f"{_API}/heartbeat/")

_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; object-src 'none'; frame-ancestors 'none'; form-action 'self'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class RequestFilter:
    """Let through the requests that the page needs.

    Args:
        app: what answers them.
        uploads: the folder of all uploads.
        local: whether only this computer is served; then the address must be one of its own.
    """

    def __init__(self, app: ASGIApp, uploads: Path, local: bool) -> None:
        self.app, self.uploads, self.local = app, uploads, local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or have it answered."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is None and scope["path"] == _EVENTS:
            body = await _body(receive)
            receive = _again(body, receive)
            if not self._names_uploads_only(body):
                refusal = PlainTextResponse("That is not an upload.", 403)
        if refusal is not None:
            await refusal(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self.app(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        path, headers = scope["path"], Headers(scope=scope)
        steps = path.split("/")
        if scope["type"] != "http" or ".." in steps or not (path in _OPEN or path.startswith(_OPEN_BELOW)):
            return PlainTextResponse("There is nothing here.", 404)
        host, origin = headers.get("host", ""), headers.get("origin")
        try:
            name, site = urlsplit(f"//{host}").hostname or "", None if origin is None else urlsplit(origin).netloc
        except ValueError:
            return PlainTextResponse("That is no address.", 400)
        if self.local and not is_local(name):
            return PlainTextResponse("This page is for its own computer.", 403)
        if site is not None and site != host:
            return PlainTextResponse("This page takes nothing from other websites.", 403)
        return None

    def _names_uploads_only(self, body: bytes) -> bool:
        try:
            event = json.loads(body)
        except (ValueError, RecursionError):
            return False
        waiting = [event]
        while waiting:
            value = waiting.pop()
            if isinstance(value, dict):
                if "path" in value and not is_upload(value["path"], self.uploads):
                    return False
                waiting += value.values()
            elif isinstance(value, list):
                waiting += value
        return True


async def _body(receive: Receive) -> bytes:
    """Return the body of a request; of one that is too long to be an event, nothing."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if message["type"] != "http.request" or len(body) > _LONGEST:
            return b""
        if not message.get("more_body", False):
            return body


def _again(body: bytes, receive: Receive) -> Receive:
    """Return what gives a body that was read already, and then whatever comes."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def give() -> Message:
        return waiting.pop() if waiting else await receive()

    return give


def is_local(host: str) -> bool:
    """Tell whether a host name or address is this computer's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

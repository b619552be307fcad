"""Middleware of the page's server: of Gradio's many routes only those that the page needs are served.

What a browser must be able to fetch is the page, its scripts and styles, and the queue; pictures travel inside answers,
so that no file is ever served by its path. Requests that another website makes in the name of the person at the
computer are refused, and so are those for a name that somebody else has pointed at this computer.

Gradio copies any file, and fetches any address, that an event names where an upload should be. So no event gets through
that names anything but an upload. It also gives equal uploads one folder, in which one client would delete the file of
another: `separate_uploads` changes that.
"""

from __future__ import annotations

import ipaddress
import json
import secrets
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kalmanclip.app.images import MAX_WAITING, is_upload, waiting_bytes

_API = "/gradio_api"
_EVENTS = f"{_API}/queue/join"
_UPLOAD = f"{_API}/upload"
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


class Addresses:
    """The names that this server answers to.

    Args:
        host: the address that is listened at. Of names, only it and this computer's own are answered to (whoever has
            pointed another here means harm), and if it is not this computer's alone, so are numeric addresses.
        more: further names, such as a proxy's.
    """

    def __init__(self, host: str, more: Iterable[str] = ()) -> None:
        own = socket.gethostname().lower()
        self.local = is_local(host)
        self.names = {host.lower(), own, f"{own}.local", socket.getfqdn().lower()}
        self.more = {name.lower() for name in more}

    def refusal(self, headers: Headers) -> tuple[int, str] | None:
        """Return status and text for a request to another name, or from another website; None: it is to be answered."""
        host, origin = headers.get("host", ""), headers.get("origin")
        try:
            name, site = urlsplit(f"//{host}").hostname or "", None if origin is None else urlsplit(origin).netloc
        except ValueError:
            return 400, "That is no address."
        ours = not self.local and (_is_address(name) or name in self.names)
        if not (is_local(name) or ours or name in self.more):
            return 403, "There is nothing at that address. Use the one that was printed."
        if site is not None and site != host:
            return 403, "Requests from other websites are not answered."
        return None


class RequestFilter:
    """Let through the requests that the page needs.

    Args:
        app: what answers them.
        uploads: the folder of all uploads.
        host: the address that is listened at.
    """

    def __init__(self, app: ASGIApp, uploads: Path, host: str) -> None:
        self.app, self.uploads, self.addresses = app, uploads, Addresses(host)
        self._arriving = 0  # bytes of uploads

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
        if scope["path"] == _UPLOAD:
            await self._upload(scope, receive, send)
        else:
            await self._pass(scope, receive, send)

    async def _upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have an upload taken, if there is room for it beside those that wait and those that arrive now."""
        length = Headers(scope=scope).get("content-length", "")
        if not length.isdecimal():
            await PlainTextResponse("Say how long the upload is.", 411)(scope, receive, send)
        elif self._arriving + int(length) + waiting_bytes(self.uploads) > MAX_WAITING:
            await PlainTextResponse("Too many pictures wait here. Try again later.", 507)(scope, receive, send)
        else:
            self._arriving += int(length)
            try:
                await self._pass(scope, receive, send)
            finally:
                self._arriving -= int(length)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
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
        refusal = self.addresses.refusal(headers)
        return None if refusal is None else PlainTextResponse(refusal[1], refusal[0])

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


def separate_uploads() -> None:
    """Have Gradio put each upload into a folder of its own, also if another of the same content is there."""
    from gradio import route_utils  # only now: Gradio reads its settings when it is imported

    base: Any = route_utils.GradioUploadFile

    class SeparateUpload(base):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.sha.update(secrets.token_bytes(16))  # Gradio calls the folder by it

    setattr(route_utils, "GradioUploadFile", SeparateUpload)  # noqa: B010 (to mypy, it is a type)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_local(host: str) -> bool:
    """Tell whether a host name or address is this computer's own."""
    return ipaddress.ip_address(host).is_loopback if _is_address(host) else host == "localhost"

"""An adapter as a service over HTTP: predict, learn, health. Answers and errors are JSON.

The limits are those of the page (`kalmanclip.app.images`); all requests together may bring as much as one may.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Annotated, Any

from fastapi import FastAPI, File, Form, Query, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

import kalmanclip
from kalmanclip.app.images import MAX_BYTES, MAX_PICTURES, MAX_WAITING, ReceivedPicture, too_large
from kalmanclip.app.middleware import Addresses
from kalmanclip.app.service import AdapterService, ChangedMeanwhileError
from kalmanclip.errors import ConfigError, DataError, KalmanClipError
from kalmanclip.prediction import records

_STATUS = {DataError: 400, ConfigError: 400, ChangedMeanwhileError: 409}
"""Of errors by class; of any other, 500."""

Pictures = Annotated[list[UploadFile], File(description=f"At most {MAX_PICTURES} pictures.")]


def build(service: AdapterService, host: str, names: Iterable[str] = (), learn: bool = False) -> FastAPI:
    """Return the service over an adapter.

    Args:
        service: the adapter.
        host: the address that is listened at.
        names: further names that requests may come to, such as a proxy's.
        learn: whether anybody may teach the adapter; every lesson is saved.
    """
    about = service.about()
    facts = {
        "status": "ok",
        "adapter": about.folder,
        "backbone": about.backbone,
        "learn": learn,
        "kalmanclip": kalmanclip.__version__,
    }
    # its pages of documentation would load scripts from elsewhere
    app = FastAPI(title="kalmanclip", version=kalmanclip.__version__, docs_url=None, redoc_url=None)
    app.add_middleware(RequestLimits, addresses=Addresses(host, names))

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Say what is served. It waits for nobody, also not for a lesson."""
        return facts | {"classes": service.class_names}

    @app.post("/predict")
    def predict(
        images: Pictures,
        top: Annotated[int, Query(ge=1, description="How many classes to name for each picture.")] = 2,
        uncertainty: Annotated[
            bool, Query(description="Average over the belief, and say what it leaves open.")
        ] = False,
    ) -> list[dict[str, Any]]:
        """Classify pictures; the answers are those of `kalmanclip predict --json`, in the order of the pictures."""
        received = _received(images)
        found = service.predict(received, uncertainty)
        return records([picture.name for picture in received], found, top, uncertainty)

    def closed() -> None:  # asks for no pictures, so that none are read
        raise HTTPException(403, "This service does not learn. It was started without --learn.")

    def teach(images: Pictures, class_name: Annotated[str, Form(description="Known or new.")]) -> dict[str, Any]:
        """Learn pictures of one class, and save the adapter."""
        update = service.learn_and_save(_received(images), class_name)
        return {
            "class": update.class_name,
            "new": update.new,
            "images": update.pictures,
            "recognised_before": update.before,
            "recognised_after": update.after,
        }

    app.post("/learn")(teach if learn else closed)

    @app.exception_handler(KalmanClipError)
    def refused(request: Request, error: KalmanClipError) -> JSONResponse:
        return _error(next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500), str(error))

    @app.exception_handler(RequestValidationError)
    def misunderstood(request: Request, error: RequestValidationError) -> JSONResponse:
        said = "; ".join(f"{'.'.join(map(str, e['loc'][1:]))}: {e['msg']}" for e in error.errors())
        return _error(422, f"The request is not as expected: {said}.")

    @app.exception_handler(HTTPException)
    def not_here(request: Request, error: HTTPException) -> JSONResponse:
        return _error(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(Exception)
    def unexpected(request: Request, error: Exception) -> JSONResponse:
        return _error(500, f"Unexpected {type(error).__name__}. This should not happen; the server's log says more.")

    return app


def _received(images: list[UploadFile]) -> list[ReceivedPicture]:
    """Return the pictures of a request, not decoded yet."""
    if len(images) > MAX_PICTURES:
        raise HTTPException(413, f"{len(images)} pictures are too many at once; send at most {MAX_PICTURES}.")
    found = []
    for image in images:
        name = PurePosixPath((image.filename or "").replace("\\", "/")).name or "picture"
        if (image.size or 0) > MAX_BYTES:
            raise HTTPException(413, too_large(name))
        found.append(ReceivedPicture(image.file, name))
    return found


def _error(status: int, text: str, headers: Any = None) -> JSONResponse:
    return JSONResponse({"error": text}, status, headers)


class RequestLimits:
    """Refuse requests to other names and from other websites, and what there is no room for.

    Args:
        app: what answers the others.
        addresses: the names that requests may come to.
    """

    def __init__(self, app: ASGIApp, addresses: Addresses) -> None:
        self.app, self.addresses = app, addresses
        self._arriving = 0  # bytes of requests that are not answered yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or have it answered."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        length = headers.get("content-length", "0" if scope["method"] in ("GET", "HEAD") else "")
        refusal = self.addresses.refusal(headers) or self._no_room(length)
        if refusal is not None:
            await _error(*refusal)(scope, receive, send)
            return
        self._arriving += int(length)
        try:
            await self.app(scope, receive, send)
        finally:
            self._arriving -= int(length)

    def _no_room(self, length: str) -> tuple[int, str] | None:
        if not length.isdecimal():
            return 411, "Say how long the request is (Content-Length)."
        if int(length) > MAX_WAITING:
            return 413, f"The request is larger than {MAX_WAITING >> 20} MB. Send fewer pictures at once."
        if self._arriving + int(length) > MAX_WAITING:
            return 503, "Too many pictures wait here. Try again later."
        return None

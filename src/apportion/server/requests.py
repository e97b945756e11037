"""Around every request: its id, one line in the log, and an answer even when we fail."""

import logging
import re
import time
from collections.abc import Callable
from typing import Final

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apportion.doors.problems import respond
from apportion.errors import ApportionError

_ID_HEADER: Final = "X-Request-ID"
_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,100}")
_NANOSECONDS: Final = 1000
_OK: Final = 200

_log: Final = structlog.get_logger()


class Requests:
    """Gives each request its id, logs it, and turns what nobody caught into a problem document.

    A caller's own X-Request-ID is kept when it is plain (letters, digits, ``._:-``, at most 100
    characters): it goes into logs and events. The log has no token, no body and no query string.
    What nodes say again and again, and is taken in, is told at level debug: it buries the rest.
    """

    def __init__(self, app: ASGIApp, new_id: Callable[[], str]) -> None:
        self._app = app
        self._new_id = new_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(_ID_HEADER, "")
        request_id = given if _ID.fullmatch(given) else self._new_id()
        scope.setdefault("state", {})["request_id"] = request_id
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            await self._serve(scope, receive, send, request_id)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        status: int | None = None
        began = time.perf_counter_ns()

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[_ID_HEADER] = request_id
                headers["Cache-Control"] = "no-store"
                headers["X-Content-Type-Options"] = "nosniff"
            await send(message)

        try:
            await self._app(scope, receive, note)
        except Exception as error:
            if status is not None:  # half an answer is out: only the server can end it
                raise
            fault = ApportionError("not caught")
            fault.__cause__ = error
            await respond(fault, request_id)(scope, receive, note)
        finally:
            micros = (time.perf_counter_ns() - began) // _NANOSECONDS
            _log.log(
                _level(scope, status),
                "request",
                method=scope["method"],
                path=scope["path"],
                status=status,
                duration_us=micros,
            )


def _level(scope: Scope, status: int | None) -> int:
    """Say how loudly a request is told."""
    return logging.DEBUG if status == _OK and "routine" in scope["state"] else logging.INFO

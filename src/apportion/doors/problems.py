"""Errors as the API shows them: RFC 9457 problem documents with a stable ``code``.

A problem's ``type`` is ``about:blank``, so its ``title`` is the phrase of the HTTP status; what a
program branches on is ``code``. ``detail`` names the field, ``given`` and ``allowed`` stand by it.
"""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, cast

import structlog
from starlette.responses import Response

from apportion.doors.schemas import Problem
from apportion.errors import ApportionError, InvalidInputError

MEDIA_TYPE: Final = "application/problem+json"

STATUS: Final[Mapping[str, int]] = {
    "INVALID_INPUT": 400,
    "UNAUTHENTICATED": 401,
    "FORBIDDEN": 403,
    "QUOTA_EXCEEDED": 403,
    "NOT_FOUND": 404,
    "CONFLICT": 409,
    "INVALID_STATE": 409,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
}
"""The HTTP status of each code; what HTTP itself refuses (405, 413, 415) keeps its own."""

_HEADERS: Final[Mapping[int, Mapping[str, str]]] = {
    401: {"WWW-Authenticate": 'Bearer realm="apportion"'},
    503: {"Retry-After": "1"},
}
_SHOWN_MAX: Final = 200
"""The most characters of what was given that are sent back."""

_log: Final = structlog.get_logger()


class RefusedRequestError(InvalidInputError):
    """HTTP itself refuses the request: its method, its size or its kind of body."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        field: str | None = None,
        given: object = None,
        allowed: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, field=field, given=given, allowed=allowed)
        self.status = status
        self.headers: dict[str, str] = dict(headers or {})


def problem_of(error: ApportionError, request_id: str | None = None) -> Problem:
    """Return an error as it is shown to a caller; of a fault of ours only that it is one."""
    status = error.status if isinstance(error, RefusedRequestError) else STATUS[error.code]
    title = HTTPStatus(status).phrase
    if error.code == "INTERNAL":
        return Problem(
            title=title,
            status=status,
            code=error.code,
            detail="something went wrong on our side; the server's log tells what",
            hint="Give the request_id to whoever runs the server",
            request_id=request_id,
        )
    return Problem(
        title=title,
        status=status,
        code=error.code,
        detail=_detail(error),
        field=error.field,
        given=shown(error.given),
        allowed=error.allowed,
        hint=error.hint,
        details=cast("dict[str, Any]", _plain(error.details)),
        request_id=request_id,
    )


def respond(error: ApportionError, request_id: str | None) -> Response:
    """Return the problem document of an error, and log a fault of ours with its traceback."""
    if error.code == "INTERNAL":
        _log.error("internal error", exc_info=error)
    problem = problem_of(error, request_id)
    headers = dict(_HEADERS.get(problem.status, {}))
    if isinstance(error, RefusedRequestError):
        headers.update(error.headers)
    return Response(
        # Escaped to ASCII: what was given may hold what UTF-8 cannot carry.
        json.dumps(problem.model_dump(exclude_none=True)),
        status_code=problem.status,
        headers=headers,
        media_type=MEDIA_TYPE,
    )


def shown(given: object) -> object:
    """Return what was given as JSON can carry it, a long one cut short: it goes to logs, too."""
    plain = _plain(given)
    text = plain if isinstance(plain, str) else json.dumps(plain)
    return plain if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 1]}…"


def _detail(error: ApportionError) -> str:
    if error.field is None or error.message.startswith(error.field):
        return error.message
    return f"{error.field}: {error.message}"


def _plain(value: object) -> object:
    return json.loads(json.dumps(value, default=str))

"""Reading a request's body: bounded, JSON in UTF-8, and nothing that a service could trip over.

NaN, doubled keys, NUL and halves of surrogate pairs never reach a service; a body can be neither
endless nor of an unsaid kind.
"""

import json
import math
from email.message import Message
from functools import lru_cache
from http import HTTPStatus
from typing import Final, NoReturn, cast

from fastapi import Request
from starlette.requests import ClientDisconnect

from apportion.doors.problems import RefusedRequestError, shown
from apportion.doors.texts import check_text
from apportion.errors import InvalidInputError

BODY_BYTES_MAX: Final = 16 * 2**20


async def read_body(request: Request) -> Request:
    """Return the request with its body read and parsed; an absent one is FastAPI's to refuse.

    Raises InvalidInputError that names the place, RefusedRequestError for a body that is too large
    or no JSON by its own word.
    """
    body = await _receive(request)
    if not body:
        return _Read(request, body, None)
    _check_media_type(request)
    return _Read(request, body, _parse(body))


class _Read(Request):
    """A request whose body is read and parsed already."""

    def __init__(self, request: Request, body: bytes, document: object) -> None:
        super().__init__(request.scope, request.receive)
        self._read_body = body
        self._read_document = document

    async def body(self) -> bytes:
        return self._read_body

    async def json(self) -> object:
        return self._read_document


async def _receive(request: Request) -> bytes:
    told = request.headers.get("content-length", "")
    if told.isdigit() and int(told) > BODY_BYTES_MAX:
        raise _too_large(f"{told} bytes")
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > BODY_BYTES_MAX:
                raise _too_large(f"more than {BODY_BYTES_MAX} bytes")
            parts.append(part)
    except ClientDisconnect:
        raise InvalidInputError("ended early", field="body") from None
    return b"".join(parts)


def _too_large(given: str) -> RefusedRequestError:
    return RefusedRequestError(
        "is too large",
        status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        field="body",
        given=given,
        allowed=f"up to {BODY_BYTES_MAX} bytes (16 MiB)",
        # The rest of the body is not read; kept open, the connection would take it for a request.
        headers={"Connection": "close"},
    )


def _check_media_type(request: Request) -> None:
    given = request.headers.get("content-type", "")
    if not _is_json(given):
        raise RefusedRequestError(
            "is not a kind of body that is read here",
            status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            field="Content-Type",
            given=given or None,
            allowed="application/json in UTF-8",
        )


@lru_cache(maxsize=64)
def _is_json(media_type: str) -> bool:
    message = Message()
    message["content-type"] = media_type
    kind, charset = message.get_content_type(), message.get_content_charset("utf-8")
    return kind == "application/json" and charset in {"utf-8", "us-ascii"}


def _parse(body: bytes) -> object:
    try:
        text = body.decode("utf-8")
        document = json.loads(
            text, parse_float=_finite, parse_constant=_not_finite, object_pairs_hook=_object
        )
    except UnicodeDecodeError as error:
        raise _unread(f"is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise _unread(
            f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except ValueError:
        raise _unread("has a number of thousands of digits") from None
    except RecursionError:
        raise _unread("is nested too deeply") from None
    if "\\u" in text:  # only an escape can hide NUL or half of a surrogate pair
        _check_texts(document, "")
    return document


def _unread(message: str) -> InvalidInputError:
    return InvalidInputError(message, field="body", allowed="one JSON document in UTF-8")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _not_finite(text)  # 1e999 is infinite to Python


def _not_finite(text: str) -> NoReturn:
    raise InvalidInputError(
        "is no finite number", field="body", given=shown(text), allowed="finite numbers"
    )


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        raise InvalidInputError(
            "stands twice in one object", field=doubled[:100], allowed="each field once"
        )
    return found


def _check_texts(document: object, path: str) -> None:
    if isinstance(document, str):
        check_text(document, path or "body")
    elif isinstance(document, dict):
        for key, value in cast("dict[str, object]", document).items():
            check_text(key, path or "body")
            _check_texts(value, f"{path}.{key}" if path else key)
    elif isinstance(document, list):
        for at, value in enumerate(cast("list[object]", document)):
            _check_texts(value, f"{path}[{at}]")

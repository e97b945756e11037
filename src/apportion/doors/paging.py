"""Lists come in pages: ``limit`` items, and an opaque ``cursor`` to go on after the last one."""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Generic, TypeVar, cast

from fastapi import Query
from pydantic import BaseModel, BeforeValidator, Field

from apportion.doors.texts import is_storable
from apportion.errors import InvalidInputError

LIMIT_MAX: Final = 1000
_CURSOR_MAX: Final = 500

T = TypeVar("T")


def _whole(value: object) -> object:
    """Take digits alone: pydantic would also take ``1_0``, ``+1`` and ``1.0``."""
    if isinstance(value, str) and not (value.isascii() and value.isdigit()):
        raise ValueError("must be a whole number")
    return value


def _truth(value: object) -> object:
    """Take the two words of JSON: pydantic would also take ``on``, ``y`` and ``1``."""
    if isinstance(value, str) and value not in {"true", "false"}:
        raise ValueError("must be true or false")
    return value


Limit = Annotated[
    int,
    Field(ge=1, le=LIMIT_MAX),
    BeforeValidator(_whole),
    Query(description="The most items of one page."),
]
Cursor = Annotated[
    str | None,
    Query(
        max_length=_CURSOR_MAX,
        description="Go on after an earlier page: its next_cursor, from the same operation.",
    ),
]
Filter = Annotated[str | None, Query(min_length=1, max_length=200)]
Truth = Annotated[bool | None, BeforeValidator(_truth), Query()]


class Page(BaseModel, Generic[T]):
    """Some items, and where to go on; ``next_cursor`` is null after the last page."""

    items: list[T]
    next_cursor: str | None


def encode_cursor(operation: str, *position: str) -> str:
    """Write a position in an operation's list as a cursor."""
    text = json.dumps([operation, *position], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def decode_cursor(operation: str, cursor: str | None, *start: str) -> tuple[str, ...]:
    """Read a cursor back; without one the list begins at ``start``.

    Raises InvalidInputError for what no page of this operation gave: a cursor of another list would
    skip items in silence.
    """
    if cursor is None:
        return start
    try:
        data = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        found = json.loads(data)
    except (binascii.Error, ValueError, RecursionError):
        raise bad_cursor(cursor) from None
    if not (
        isinstance(found, list)
        and all(isinstance(part, str) for part in cast("list[Any]", found))
        and len(cast("list[Any]", found)) == len(start) + 1
    ):
        raise bad_cursor(cursor)
    origin, *position = cast("list[str]", found)
    if origin != operation or not is_storable("".join(position)):
        raise bad_cursor(cursor)
    return tuple(position)


def bad_cursor(cursor: str) -> InvalidInputError:
    """Return the refusal of a cursor."""
    return InvalidInputError(
        "is not a cursor of this list",
        field="cursor",
        given=cursor,
        allowed="the next_cursor of an earlier page of the same operation",
    )


def cut(
    operation: str, found: Sequence[T], limit: int, position: Callable[[T], Sequence[str]]
) -> tuple[list[T], str | None]:
    """Return a page's items and next_cursor, out of one item more than the page may have."""
    items = list(found[:limit])
    if len(found) <= limit:
        return items, None
    return items, encode_cursor(operation, *position(items[-1]))

"""JSON and text that a user hands over: in the flag itself, in a file, or on standard input."""

import json
import sys
from pathlib import Path
from typing import Any, NoReturn

from apportion.errors import InvalidInputError

_SHOWN = 60


def read_json(source: str, *, field: str) -> Any:
    """Read one JSON document from a file, or from standard input where the source is ``-``.

    Raises InvalidInputError that says where it is wrong.
    """
    return parse_json(read_text(source, field=field), field=field)


def parse_json(text: str, *, field: str) -> Any:
    """Read one JSON document strictly: no NaN, no name twice, nothing that UTF-8 cannot carry."""

    def no_constant(name: str) -> NoReturn:
        raise InvalidInputError("is no number of JSON", field=field, given=name)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidInputError("names a field twice", field=field, given=twice[:_SHOWN])
        return found

    try:
        document = json.loads(text, parse_constant=no_constant, object_pairs_hook=once)
        json.dumps(document, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise InvalidInputError(
            f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}",
            field=field,
            allowed="one JSON document",
        ) from None
    except (ValueError, RecursionError) as error:  # half a surrogate pair; endless digits; depth
        raise InvalidInputError(f"cannot be read: {error}", field=field) from None
    return document


def read_text(source: str, *, field: str) -> str:
    """Read a text in UTF-8 from a file, or from standard input where the source is ``-``."""
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise InvalidInputError(
            f"cannot be read: {error.strerror}", field=field, given=source, allowed="a file, or -"
        ) from None
    except ValueError as error:
        raise InvalidInputError(
            f"is not text in UTF-8: {error}", field=field, given=source[:_SHOWN]
        ) from None

"""Many rows as one parameter: a JSON text that the statement reads with ``json_to_recordset``.

An array parameter a column costs several times as much: each text is escaped by itself.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from pydantic_core import to_json

_MICROSECOND: Final = timedelta(microseconds=1)
_WRITTEN_HERE: Final = {timedelta, bytes, float}


def as_rows(rows: Sequence[Mapping[str, object]]) -> str:
    """Write rows for ``json_to_recordset(%(rows)s::json) AS new (column type, …)``.

    Values are what JSON has, aware instants, durations and bytes; nested objects and lists are for
    columns of type jsonb, and have only what JSON has. Raises TypeError for a float.
    """
    plain = [
        {
            column: _text(value) if type(value) in _WRITTEN_HERE else value
            for column, value in row.items()
        }
        for row in rows
    ]
    # By pydantic's own writer, which knows instants and takes a quarter of the time of json's.
    return to_json(plain).decode()


def _text(value: object) -> str:
    if isinstance(value, timedelta):
        return f"{value // _MICROSECOND} microseconds"
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    raise TypeError(f"no column takes a {type(value).__name__}")

"""Many rows as one parameter: a JSON text that the statement reads with ``json_to_recordset``.

An array parameter a column costs several times as much: each text is escaped by itself.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

_MICROSECOND: Final = timedelta(microseconds=1)


def as_rows(rows: Sequence[Mapping[str, object]]) -> str:
    """Write rows for ``json_to_recordset(%(rows)s::json) AS new (column type, …)``.

    Values are what JSON has, aware instants, durations and bytes; nested objects and lists are for
    columns of type jsonb. Raises TypeError for anything else, a float included.
    """
    return json.dumps(rows, default=_text, separators=(",", ":"), allow_nan=False)


def _text(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return f"{value // _MICROSECOND} microseconds"
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    raise TypeError(f"no column takes a {type(value).__name__}")

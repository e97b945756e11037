"""Named SQL: each room keeps its statements in ``queries.sql``, and Python names them.

    -- name: find_pool
    -- What it is for, and which lock it takes.
    SELECT * FROM pools WHERE id = %(id)s;

The text of a query is a LiteralString: it comes with the package and never from a caller, so the
type checker can refuse a statement that was put together at run time.
"""

import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Final, LiteralString, cast

_HEADER: Final = re.compile(r"^--\s*name:(.*)$", re.MULTILINE)
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
# A whole-line comment would reach psycopg, which takes each % in it for a placeholder.
_COMMENT: Final = re.compile(r"^\s*--.*\n?", re.MULTILINE)


class Queries(Mapping[str, LiteralString]):
    """The queries of one package by name; an unknown name is a KeyError that lists the known."""

    def __init__(self, package: str, text: str) -> None:
        before, *parts = _HEADER.split(text)
        if _COMMENT.sub("", before).strip():
            raise ValueError(f"{package}: SQL before the first '-- name:' header")
        self._package = package
        self._queries: dict[str, LiteralString] = {}
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            self._add(name.strip(), _COMMENT.sub("", body).strip())

    def _add(self, name: str, query: str) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{self._package}: {name!r} is no query name (want snake_case)")
        if name in self._queries:
            raise ValueError(f"{self._package}: two queries are named {name}")
        if not query:
            raise ValueError(f"{self._package}: the query {name} is empty")
        self._queries[name] = cast("LiteralString", query)

    def __getitem__(self, name: str) -> LiteralString:
        try:
            return self._queries[name]
        except KeyError:
            known = ", ".join(sorted(self._queries))
            raise KeyError(f"{self._package} has no query {name} (it has {known})") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._queries)

    def __len__(self) -> int:
        return len(self._queries)


def load(package: str) -> Queries:
    """Read ``queries.sql`` of a package: ``load("apportion.bookings")``."""
    return Queries(package, files(package).joinpath("queries.sql").read_text("utf-8"))

# Made from client/aio/page.py by tools/unasync.py: change that one.
"""One page of a list, and the way to the next."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some items; ``next_cursor`` is None after the last page of a list that has one."""

    items: list[T]
    next_cursor: str | None
    after: "Callable[[str], Page[T]]" = field(repr=False, compare=False)
    """Fetches the page at a cursor, with the filters of this one."""

    def all(self) -> Iterator[T]:
        """Give these items and those of all later pages, each page fetched when it is reached."""
        page = self
        while True:
            yield from page.items
            # The list of events never ends: there an empty page is the last one for now.
            if page.next_cursor is None or not page.items:
                return
            page = page.after(page.next_cursor)

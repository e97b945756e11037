"""One page of a list, and the way to the next."""

from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AsyncPage(Generic[T]):
    """Some items; ``next_cursor`` is None after the last page of a list that has one."""

    items: list[T]
    next_cursor: str | None
    after: "Callable[[str], AsyncListing[T]]" = field(repr=False, compare=False)
    """Fetches the page at a cursor, with the filters of this one."""

    async def all(self) -> AsyncIterator[T]:
        """Give these items and those of all later pages, each page fetched when it is reached."""
        page = self
        while True:
            for item in page.items:
                yield item
            # The list of events never ends: there an empty page is the last one for now.
            if page.next_cursor is None or not page.items:
                return
            page = await page.after(page.next_cursor)


# async only:
@dataclass(frozen=True, slots=True)
class AsyncListing(Generic[T]):
    """A list that was asked for: await it for its first page, or go through ``all()`` of it."""

    fetch: Callable[[], Awaitable[AsyncPage[T]]]

    def __await__(self) -> Generator[Any, Any, AsyncPage[T]]:
        return self.fetch().__await__()

    async def all(self) -> AsyncIterator[T]:
        """Give all items, each page fetched when it is reached."""
        async for item in (await self).all():
            yield item


# end

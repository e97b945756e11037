"""The line of those that wait: who is to be tried again, in which order, and nobody else.

Each that waits names what could help it (see `topics`). The line finds out what changed since it
last looked, and reads only those that wait for that, and those that began to wait meanwhile: what
was decided beside a change may have missed it. Where nothing changed, nobody is read.

They stand by the priority of the offer that reaches them, then by age. Those in front are tried
with every change, so that they have the first choice of what was given back; behind them the line
is gone through in turn, some pages a tick, so that a tick stays short however many wait.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from apportion.bookings import service as bookings
from apportion.pools.service import changed_pools, changed_quotas, priorities
from apportion.reservations import rows, topics
from apportion.reservations.fleet import Fleet
from apportion.store.batches import as_rows
from apportion.store.connections import Connection, transaction
from apportion.store.runtime import Runtime

PAGE: Final = 500
"""How many are read, and tried in one transaction."""
PAGES: Final = 4
"""How many pages behind the first a tick goes through."""

Row = Mapping[str, Any]
_Place = tuple[int, datetime, str]
"""(priority, created, id): where one stands."""

_FRONT: Final[_Place] = (2**31 - 1, datetime(1970, 1, 1, tzinfo=UTC), "")
_NEVER: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class _News:
    """What changed: topics, pools that others may use than before, and since when some wait.

    ``since`` is a position; who began to wait at or after it is tried.
    """

    topics: frozenset[str] = frozenset()
    pools: frozenset[str] = frozenset()
    since: int = _NEVER

    def __bool__(self) -> bool:
        return bool(self.topics or self.pools or self.since != _NEVER)

    def __or__(self, other: "_News") -> "_News":
        return _News(
            self.topics | other.topics, self.pools | other.pools, min(self.since, other.since)
        )


_NOTHING: Final = _News()


class Line:
    """Who waits, as one server process goes through them."""

    def __init__(self, runtime: Runtime, fleet: Fleet) -> None:
        self._runtime = runtime
        self._fleet = fleet
        self._known: dict[str, tuple[int, int]] = {}
        self._seen = "0"
        self._fresh = _NOTHING
        """What changed, and not even those in front were tried with."""
        self._sweep = _NOTHING
        """What those from ``_after`` on are tried with, a page after the other."""
        self._after = _FRONT
        self._later = _NOTHING
        """What the next sweep is for."""

    @property
    def is_unfinished(self) -> bool:
        """Whether there is more to try though nothing else changes."""
        return bool(self._fresh or self._sweep or self._later)

    async def due(self, now: datetime) -> AsyncGenerator[Sequence[Row]]:
        """Yield pages of those to try now, in their order.

        A page whose try fails is not passed: it comes again with the next call.
        """
        self._fresh |= await self._look(now)
        if self._fresh:
            await self._reprioritize(self._fresh.pools)
            front = await self._page(self._fresh, _FRONT, now)
            if front:
                yield front
            self._pass_on(front)
        for _ in range(PAGES):
            if not self._sweep:
                self._sweep, self._later, self._after = self._later, _NOTHING, _FRONT
            if not self._sweep:
                return
            page = await self._page(self._sweep, self._after, now)
            if page:
                yield page
                self._after = _place(page[-1])
            if len(page) < PAGE:
                self._sweep = _NOTHING

    def _pass_on(self, front: Sequence[Row]) -> None:
        """Have those behind the first page tried too, where there are any."""
        fresh, self._fresh = self._fresh, _NOTHING
        if len(front) < PAGE:
            return
        if self._sweep:
            self._later |= fresh
        else:
            self._sweep, self._after = fresh, _place(front[-1])

    async def _look(self, now: datetime) -> _News:
        """Find out what changed since the last look; nothing of it is forgotten by a failure."""
        async with transaction(self._runtime.db) as connection:
            # Taken first: what commits while we read is read again next time.
            seen = await bookings.horizon(connection)
            pools = await changed_pools(connection, self._seen)
            quotas = await changed_quotas(connection, self._seen)
            waits = await rows.began_waiting(connection, self._seen)
            await self._fleet.sync(connection, list(self._fleet.indexes), now)
        changed = {topics.quota(key) for key in quotas}
        for pool_id, standing in self._fleet.standings(now).items():
            known = self._known.get(pool_id)
            if known != standing:
                changed.add(topics.room(pool_id))
            if known is None or known[0] != standing[0]:
                changed.add(topics.fleet(pool_id))
            self._known[pool_id] = standing
        news = _News(frozenset(changed), frozenset(pools), int(self._seen) if waits else _NEVER)
        self._seen = seen
        return news

    async def _reprioritize(self, pools: frozenset[str]) -> None:
        """Have those that wait for some pools stand by the offers as they are now."""
        if not pools:
            return
        async with transaction(self._runtime.db) as connection:
            parameters = {"pools": sorted(pools)}
            cursor = await connection.execute(rows.QUERIES["asked_of"], parameters)
            asked = await cursor.fetchall()
            pairs = {(row["tenant_id"], pool) for row in asked for pool in row["candidates"]}
            found = await priorities(connection, sorted(pairs))
            for row in asked:
                of = [found.get((row["tenant_id"], pool)) for pool in row["candidates"]]
                row["priority"] = max((each for each in of if each is not None), default=None)
            await _set_priorities(connection, [row for row in asked if row["priority"] is not None])

    async def _page(self, news: _News, after: _Place, now: datetime) -> list[dict[str, Any]]:
        parameters = {
            "topics": sorted(news.topics),
            "pools": sorted(news.pools),
            "since": str(news.since),
            "priority": after[0],
            "created": after[1],
            "after": after[2],
            "now": now,
            "limit": PAGE,
        }
        async with transaction(self._runtime.db) as connection:
            cursor = await connection.execute(rows.QUERIES["line"], parameters)
            return await cursor.fetchall()


async def _set_priorities(connection: Connection, asked: Sequence[Row]) -> None:
    if asked:
        await connection.execute(rows.QUERIES["reprioritize"], {"rows": as_rows(list(asked))})


def _place(row: Row) -> _Place:
    return row["priority"], row["created_at"], row["id"]

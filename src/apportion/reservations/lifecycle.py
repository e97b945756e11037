"""What the clock does to reservations: windows begin and end, waiting ends, and is tried again."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from itertools import groupby
from typing import Any, Final

from apportion.authority.service import SYSTEM, Caller
from apportion.events.service import Event, append
from apportion.nodes import service as nodes
from apportion.quantities.windows import format_instant
from apportion.reservations import rows
from apportion.reservations.admission import Draft
from apportion.reservations.ending import end_due, settle_due
from apportion.reservations.fleet import Fleet
from apportion.reservations.line import Line
from apportion.reservations.making_way import make_way
from apportion.reservations.placer import Placer
from apportion.reservations.plan import Placed
from apportion.reservations.reasons import Gone
from apportion.reservations.reserving import Reserving
from apportion.reservations.stored import draft_of, sooner_draft_of
from apportion.reservations.windows import LAST
from apportion.store.connections import Connection, retrying, transaction
from apportion.store.runtime import Runtime
from apportion.tenants.service import find_ancestors

BATCH: Final = 500
"""The most reservations that one step changes in one transaction."""
DELAYED_AT_ONCE: Final = 50
"""The most that are put off together: each looks for a place elsewhere at once."""


class Lifecycle:
    """Level-triggered steps: each does what is due now, so the next makes up for a missed one."""

    def __init__(self, runtime: Runtime, fleet: Fleet, placer: Placer) -> None:
        self._runtime = runtime
        self._placer = placer
        self.hint = asyncio.Event()
        """Set when something was given back: the clock's loop need not wait for its next tick."""
        self._line = Line(runtime, fleet)
        self._reserving = Reserving(runtime, draft_of, self.place_waiting)
        self._ending = asyncio.Lock()
        self._next_end: datetime | None = None
        """When the next window that this server knows of ends; None where it has not looked yet."""

    async def advance(self) -> int:
        """Bring every reservation to where the clock says; returns how many changed.

        Ends come before retries, so that what ended makes room at once; and before what begins,
        so that nothing begins where somebody still is.
        """
        changed = await self.end_due()
        changed += await self._all(self._settle)
        changed += await self._all(self._ask)
        changed += await self._all(self._start)
        changed += await self._all(self._fail)
        await self._all(self._tell)
        changed += await self.retry_pending()
        return changed + await self._reserving.advance()

    async def end_due(self) -> int:
        """End what is over by the clock, and keep from others what somebody is still on.

        Returns how many ended or were put off. A server does it before it takes work.
        """
        changed = await self._all(self._end)
        await retrying(self._runtime.db, self._keep)
        changed += await self._make_way()
        self._next_end = await retrying(self._runtime.db, self._find_next_end)
        return changed

    async def catch_up(self) -> None:
        """Do so where a window has ended since then, so that nobody gets what is not free yet."""
        async with self._ending:
            due = self._next_end is None or self._next_end <= self._runtime.now()
            if due and await self.end_due():
                self.hint.set()

    def expect(self, end: datetime) -> None:
        """Hear of a window that was placed."""
        if self._next_end is not None:
            self._next_end = min(self._next_end, end)

    async def _keep(self, connection: Connection) -> None:
        await nodes.keep_in_hands(connection, self._runtime.now())

    async def _find_next_end(self, connection: Connection) -> datetime:
        cursor = await connection.execute(rows.QUERIES["next_end"])
        [row] = await cursor.fetchall()
        return row["at"] or LAST

    async def _make_way(self) -> int:
        """Put off what was to begin where somebody still is; it begins elsewhere where it can."""
        total = 0
        while True:
            delayed = await retrying(self._runtime.db, self._put_off)
            if delayed:
                await self._retry(delayed, waiting=False)
            total += len(delayed)
            if len(delayed) < DELAYED_AT_ONCE:
                return total

    async def _put_off(self, connection: Connection) -> list[dict[str, Any]]:
        return await make_way(connection, self._runtime.now(), DELAYED_AT_ONCE)

    async def _all(self, step: Callable[[Connection], Awaitable[int]]) -> int:
        total = 0
        while True:
            done = await retrying(self._runtime.db, step)
            total += done
            if done < BATCH:
                return total

    async def retry_pending(self) -> int:
        """Try again what waits for something that changed, in line; count placed and failed."""
        changed = 0
        async with aclosing(self._line.due(self._runtime.now())) as pages:
            async for page in pages:
                for waits, some in groupby(page, key=lambda row: row["state"] == "pending"):
                    changed += await self._retry(list(some), waiting=waits)
        if self._line.is_unfinished:
            self.hint.set()
        return changed

    async def _retry(self, some: Sequence[Mapping[str, Any]], *, waiting: bool) -> int:
        """Place what waits, or give what has a reserved start a sooner one; count what changed."""
        if waiting:
            return await self.place_waiting([draft_of(row) for row in some])
        drafts = [sooner_draft_of(row) for row in some]
        return await self._placer.bring_forward(await self._as_they_stand(drafts))

    async def place_waiting(self, drafts: Sequence[Draft]) -> int:
        """Try some that wait, each for its tenant as it stands now; count placed and failed."""
        decisions = await self._placer.place(await self._as_they_stand(drafts))
        return sum(isinstance(each, Placed | Gone) for each in decisions.values())

    async def _as_they_stand(self, drafts: Sequence[Draft]) -> list[Draft]:
        async with transaction(self._runtime.db) as connection:
            above = await find_ancestors(connection, [draft.tenant_id for draft in drafts])
        # A tenant that was deleted just then has nobody above it: what it waits for fails.
        return [
            each._replace(by=Caller(tenant, SYSTEM.actor, ancestors=above.get(tenant, ())))
            for each in drafts
            for tenant in (each.tenant_id,)
        ]

    async def _ask(self, connection: Connection) -> int:
        """Ask nodes for what has begun on them."""
        now = self._runtime.now()
        parameters = {"now": now, "limit": BATCH}
        cursor = await connection.execute(rows.QUERIES["to_ask"], parameters)
        begun = [row["id"] for row in await cursor.fetchall()]
        await nodes.hold_nodes_of(connection, begun)
        await nodes.assign(connection, begun, now)
        return len(begun)

    async def _start(self, connection: Connection) -> int:
        return await self._step(connection, "due_to_start", "reservation.started", "active")

    async def _end(self, connection: Connection) -> int:
        return await end_due(connection, self._runtime.now(), BATCH)

    async def _settle(self, connection: Connection) -> int:
        return await settle_due(connection, self._runtime.now(), BATCH)

    async def _tell(self, connection: Connection) -> int:
        """Tell whose end is near; after the starts, so that a short window is told of as well."""
        now = self._runtime.now()
        parameters = {"now": now, "limit": BATCH}
        cursor = await connection.execute(rows.QUERIES["due_to_tell"], parameters)
        due = await cursor.fetchall()
        events = [
            Event(
                "reservation.ending_soon",
                row["tenant_id"],
                row["id"],
                {"pool_id": row["pool_id"], "end": format_instant(row["ends_at"])},
            )
            for row in due
        ]
        await append(connection, SYSTEM, now, events)
        return len(due)

    async def _fail(self, connection: Connection) -> int:
        return await self._step(connection, "due_to_fail", "reservation.failed", "failed")

    async def _step(self, connection: Connection, query: str, event: str, state: str) -> int:
        now = self._runtime.now()
        cursor = await connection.execute(rows.QUERIES[query], {"now": now, "limit": BATCH})
        due = await cursor.fetchall()
        events = [
            Event(
                event,
                row["tenant_id"],
                row["id"],
                _facts(row),
                before={"state": row["was"]},
                after={"state": state},
            )
            for row in due
        ]
        await append(connection, SYSTEM, now, events)
        return len(due)


def _facts(row: Mapping[str, Any]) -> dict[str, object]:
    return {key: row[key] for key in ("pool_id", "reason") if key in row}

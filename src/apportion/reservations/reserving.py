"""Reserved starts: what has waited long gets a start in the future that others cannot take.

Small asks fit into what frees piece by piece, so a large one could wait for ever: nothing is kept
free for it. Once it has waited as long as a pool's ``reserveAfter`` says, it is placed at the
earliest start that its pools have for it, and what comes after it is placed around it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from apportion.reservations import rows
from apportion.reservations.admission import Draft
from apportion.store.connections import transaction
from apportion.store.runtime import Runtime

PER_POOL: Final = 8
"""How many have a reserved start in one pool at a time: those in front of the line."""
AT_ONCE: Final = 16
"""How many are looked at in one tick."""
AGAIN_AFTER: Final = timedelta(minutes=10)
"""When one is looked at again for which there was no start."""

Try = Callable[[Sequence[Draft]], Awaitable[int]]


class Reserving:
    """Gives reserved starts; ``attempt`` places drafts and says how many were."""

    def __init__(
        self, runtime: Runtime, read: Callable[[Mapping[str, Any]], Draft], attempt: Try
    ) -> None:
        self._runtime = runtime
        self._read = read
        self._try = attempt

    async def advance(self) -> int:
        """Give a start to those that have waited long enough, in line; returns to how many.

        Who gets none is looked at again when a pool has given one less, or after some minutes.
        """
        now = self._runtime.now()
        async with transaction(self._runtime.db) as connection:
            parameters = {"now": now, "limit": AT_ONCE}
            cursor = await connection.execute(rows.QUERIES["to_reserve"], parameters)
            due = await cursor.fetchall()
            if not due:
                return 0
            cursor = await connection.execute(rows.QUERIES["reserved"], {"now": now})
            given = {row["pool_id"]: row for row in await cursor.fetchall()}
        put_off = {row["id"]: now + AGAIN_AFTER for row in due}
        placed = 0
        for row in due:
            full = [given[each] for each in row["candidates"] if _is_full(given.get(each))]
            if full:
                put_off[row["id"]] = max(now, min(each["next"] for each in full)) + _MOMENT
                continue
            done = await self._try([self._read(row)._replace(reserving=True)])
            placed += done
            for pool_id in row["candidates"] if done else ():
                # In which of them it is, the next tick knows.
                before = given.get(pool_id, {"count": 0, "next": now + AGAIN_AFTER})
                given[pool_id] = {**before, "count": before["count"] + 1}
        await self._put_off(put_off)
        return placed

    async def _put_off(self, until: Mapping[str, datetime]) -> None:
        parameters = {"ids": list(until), "until": list(until.values())}
        async with transaction(self._runtime.db) as connection:
            await connection.execute(rows.QUERIES["put_off"], parameters)


_MOMENT: Final = timedelta(seconds=1)


def _is_full(given: Mapping[str, Any] | None) -> bool:
    return given is not None and given["count"] >= PER_POOL

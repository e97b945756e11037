"""The gate: what the clock, holders and nodes let happen to nodes with a change pending.

Level-triggered, like all that the clock does: each step looks at what is due by now, so the next
makes up for a missed one, and any number of servers may run it. Only nodes with something to do are
looked at.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import structlog
from psycopg.types.json import Jsonb

from apportion.bookings import service as bookings
from apportion.errors import ApportionError
from apportion.partitions.rows import QUERIES, why
from apportion.partitions.turn import Turn, proceed, take_turn
from apportion.pools.policy import read_stored
from apportion.store.connections import Connection, retrying, transaction
from apportion.store.runtime import Runtime

_log: Final = structlog.get_logger(__name__)

Row = Mapping[str, Any]
Act = Callable[[Turn], Awaitable[bool]]


class Gate:
    """Brings nodes with a change pending to where the clock and their holders let them be."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._seen = "0"
        """A position: holders that let go before it were looked at."""

    async def advance(self) -> int:
        """Do what is due; returns how many steps were taken."""
        async with transaction(self._runtime.db) as connection:
            # Taken first: what commits while we look is looked at again next time.
            seen = await bookings.horizon(connection)
            parameters = {"now": self._runtime.now(), "since": self._seen}
            cursor = await connection.execute(QUERIES["due"], parameters)
            due = await cursor.fetchall()
        steps = [await self._step(row, self._look_again) for row in due]
        if None not in steps:
            self._seen = seen
        taken = steps.count(True)
        while more := await self._let_in():
            taken += more
        return taken

    async def _let_in(self) -> int:
        """Let nodes have their turn, as many of a pool at once as its policy says."""
        taken = 0
        async with transaction(self._runtime.db) as connection:
            cursor = await connection.execute(QUERIES["rollouts"], {"pool_id": None})
            rollouts = await cursor.fetchall()
        for rollout in rollouts:
            room = at_once(rollout) - rollout["under_way"]
            if room > 0:
                taken += await self._let_in_of(rollout, room)
            else:
                await self._tell_limit(rollout)
        return taken

    async def _let_in_of(self, rollout: Row, room: int) -> int:
        parameters = {"pool_id": rollout["pool_id"], "now": self._runtime.now()}
        async with transaction(self._runtime.db) as connection:
            cursor = await connection.execute(QUERIES["pending"], parameters)
            waiting = await cursor.fetchall()
        # Those with a holder without an end take nobody's place: they only say whom they wait for.
        chosen = [row for row in waiting if row["open_ended"]]
        chosen += [row for row in waiting if not row["open_ended"]][:room]
        steps = [await self._step({**rollout, **row}, self._begin) for row in chosen]
        return steps.count(True)

    async def _step(self, row: Row, act: Act) -> bool | None:
        """Take one step in a transaction of its own; None where it failed, and is to be made up."""

        async def work(connection: Connection) -> bool:
            turn = await take_turn(
                connection,
                row["node_id"],
                pool_id=row["pool_id"],
                tenant_id=row["tenant_id"],
                now=self._runtime.now(),
            )
            return turn is not None and await act(turn)

        try:
            return await retrying(self._runtime.db, work)
        except ApportionError as error:
            _log.warning("a step of the gate failed", node=row["node_id"], reason=str(error))
            return None

    async def _look_again(self, turn: Turn) -> bool:
        if turn.layout.state == "scheduled":
            return await proceed(turn)
        return turn.layout.state == "waiting_open_ended" and await self._begin(turn)

    async def _begin(self, turn: Turn) -> bool:
        """Let a node begin, if it still waits and its pool has room for one more."""
        if turn.layout.state not in ("pending", "waiting_open_ended"):
            return False
        cursor = await turn.connection.execute(
            QUERIES["rollouts"], {"pool_id": turn.layout.pool_id}
        )
        [rollout] = await cursor.fetchall()
        if rollout["under_way"] < at_once(rollout):
            return await proceed(turn)
        if turn.layout.state == "pending":
            return False
        facts = {"cut": turn.layout.pending}
        await turn.move("pending", facts, state="pending", reason=limit_reason(rollout))
        return True

    async def _tell_limit(self, rollout: Row) -> None:
        parameters = {"pool_id": rollout["pool_id"], "reason": Jsonb(limit_reason(rollout))}
        async with transaction(self._runtime.db) as connection:
            await connection.execute(QUERIES["limit"], parameters)


def at_once(rollout: Row) -> int:
    """Return how many nodes of a pool may be away at once: never all of several."""
    count: int = rollout["nodes"]
    rule = read_stored(rollout["policy"]).rollout.max_unavailable
    wanted = count * int(rule.removesuffix("%")) // 100 if isinstance(rule, str) else rule
    return max(1, min(wanted, count - 1))


def limit_reason(rollout: Row) -> Mapping[str, Any]:
    """Say that others have their turn first."""
    limit = at_once(rollout)
    return why(
        "rollout_limited",
        f"the pool lets {limit} of its nodes change at once, and as many do",
        at_once=limit,
        nodes=rollout["nodes"],
    )

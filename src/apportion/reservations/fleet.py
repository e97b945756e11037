"""The pictures of pools that this process places on, kept up with what others write.

The database is the truth; a picture is brought up to date before each decision by reading only what
changed since the last time. One that is behind can cost a lost clash and another try, never a wrong
booking.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from apportion.bookings import service as bookings
from apportion.bookings.service import ENDLESS, GpuChange, Holding, HostChange, Since
from apportion.nodes import service as nodes
from apportion.nodes.service import AtomFacts
from apportion.placement import FOREVER, PoolIndex
from apportion.pools.service import PoolRecord
from apportion.reservations.memory import gather
from apportion.store.connections import Connection

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_UNREAD = str(2**64)
"""A position after all transactions."""
_FORGOTTEN = -1
"""No revision of a fleet."""
OWN_KEPT = 64
"""The most transactions of ours that are left out: each is compared with each row that is read.

More there are only where something old holds the horizon for long; it is read again then.
"""
LARGE = 10_000
"""From so many nodes on it is worth a second that a picture lies well in memory."""


def micros(instant: datetime) -> int:
    """Return an instant as whole microseconds since the epoch."""
    return (instant - _EPOCH) // _MICROSECOND


def held_micros(end: datetime) -> int:
    """Return up to when something is held: `FOREVER` for an end that stands for none.

    As what is read from the database: an end eight thousand years away is no end to plan with.
    """
    return FOREVER if end >= ENDLESS else micros(end)


def instant_of(moment: int) -> datetime:
    """Return the instant that so many microseconds after the epoch are."""
    return _EPOCH + moment * _MICROSECOND


class Fleet:
    """One placement index a pool, loaded when first needed."""

    def __init__(self) -> None:
        self.indexes: dict[str, PoolIndex] = {}
        self._atoms: dict[str, Mapping[int, AtomFacts]] = {}
        self._agents: dict[str, frozenset[int]] = {}
        self._revisions: dict[str, int] = {}
        self._horizon = "0"
        self._own: dict[str, None] = {}
        """Transactions of ours of whose bookings we know that the pictures have all of them."""
        self.doubts = 0
        """How often what the pictures had of our own transactions may have gone from them."""
        self._lock = asyncio.Lock()

    async def sync(self, connection: Connection, pool_ids: Sequence[str], now: datetime) -> str:
        """Bring the pictures of some pools up to what is committed.

        Returns a position for `rewind`: what commits later is at or after it.
        """
        async with self._lock:
            # Whoever rewinds while we read is heeded: the lowest counts.
            since, self._horizon = self._horizon, _UNREAD
            try:
                horizon = await self._read(connection, since, now)
            except BaseException:
                self._reach(since)
                raise
            self._reach(horizon)
            revisions = await nodes.fleet_revisions(connection, pool_ids)
            for pool_id, revision in revisions.items():
                if self._revisions.get(pool_id) != revision:
                    await self._load(connection, pool_id, now)
                    self._revisions[pool_id] = revision
            return horizon

    async def _read(self, connection: Connection, since: str, now: datetime) -> str:
        if not self.indexes:
            return await bookings.horizon(connection)
        horizon, gpus, hosts = await bookings.changes(connection, self.known(since), now)
        self._apply(gpus, hosts)
        self._own = {each: None for each in self._own if int(each) >= int(horizon)}
        return horizon

    def known(self, position: str) -> Since:
        """Return up to where the pictures have all, who knows of all before a position."""
        return Since(position, tuple(self._own))

    def wrote(self, xid: str, doubts: int) -> None:
        """Note that a transaction committed of which the pictures have all that it booked.

        To read that again took longer than to decide it. ``doubts`` is what there was of them
        before it was decided: where there are more by now, it is read as that of others.
        """
        if doubts == self.doubts:
            self._own[xid] = None
            if len(self._own) > OWN_KEPT:
                del self._own[next(iter(self._own))]

    def learn(self, holding: Holding, since: str) -> None:
        """Take up what changed since a position; others may have read later things meanwhile."""
        self._apply(holding.gpu_changes, holding.host_changes)
        self._reach(since)

    def rewind(self, horizon: str) -> None:
        """Read again, at the next sync, what has changed since a position that `sync` returned.

        Whoever lets go of what it held in a picture may be wrong about that: its commit may have
        arrived though the answer did not, or a twin with the same key holds the very same.
        """
        self._doubt()
        self._reach(horizon)

    def forget(self, pool_ids: Iterable[str]) -> None:
        """Load some pools anew at the next sync: what their pictures have as free is taken."""
        for pool_id in pool_ids:
            self._revisions[pool_id] = _FORGOTTEN

    def _reach(self, horizon: str) -> None:
        self._horizon = min(self._horizon, horizon, key=int)

    def _doubt(self) -> None:
        self.doubts += 1
        self._own.clear()

    def standings(self, now: datetime) -> dict[str, tuple[int, int]]:
        """Return for each known pool what stays the same while nothing is given back."""
        for index in self.indexes.values():
            index.advance(micros(now))
        return {
            pool_id: (self._revisions[pool_id], index.freed)
            for pool_id, index in self.indexes.items()
        }

    def atom(self, pool_id: str, atom: int) -> AtomFacts:
        """Return what a booking says of an atom that the picture has."""
        return self._atoms[pool_id][atom]

    def follows_spec(self, pool: PoolRecord, node_id: int) -> bool:
        """Tell whether somebody on a node does what its spec asks for."""
        return pool.agent != "none" and node_id in self._agents[pool.id]

    async def _load(self, connection: Connection, pool_id: str, now: datetime) -> None:
        state = await nodes.load_fleet(connection, pool_id)
        held = await bookings.live(connection, pool_id, now)
        # What is decided on the old picture, and commits when the new one is read, is not in it.
        self._doubt()
        self.indexes[pool_id] = PoolIndex(state.nodes)
        self._atoms[pool_id] = state.atoms
        self._agents[pool_id] = state.agents
        self._apply(*held)
        if len(state.nodes) >= LARGE:
            await asyncio.to_thread(gather)

    def _apply(self, gpu_changes: Iterable[GpuChange], host_changes: Iterable[HostChange]) -> None:
        # One that was moved left a voided row behind, with the key of where it is now.
        for change in sorted(gpu_changes, key=lambda each: each.held is not None):
            index = self.indexes.get(change.pool_id)
            if index is None:
                continue
            if change.held is None:
                index.free(change.gpu_id, change.key)
            else:
                index.book(change.gpu_id, change.key, change.held)
        for host in sorted(host_changes, key=lambda each: each.held is not None):
            index = self.indexes.get(host.pool_id)
            if index is None:
                continue
            if host.held is None:
                index.free_host(host.node_id, host.holder)
            else:
                index.book_host(host.node_id, host.holder, host.held)

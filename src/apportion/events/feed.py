"""Following the events: what happens is told as it happens, without a gap or a repeat.

A follower reads the outbox at its own pace, so a slow one costs no memory. While anybody waits for
news, one task of the process looks four times a second at how far can be read, for all of them.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from apportion.authority.service import Caller
from apportion.errors import ApportionError, InvalidInputError
from apportion.events.service import StoredEvent, list_events, read_horizon, read_position
from apportion.store.connections import transaction
from apportion.store.runtime import Runtime

LOOK_EVERY: Final = timedelta(milliseconds=250)
BEAT_EVERY: Final = timedelta(seconds=15)
_PAGE: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """What a follower wants: from where on, and which events.

    ``position`` None is now. With ``until_now`` it ends when it has caught up, instead of waiting.
    """

    position: str | None = None
    subject: str | None = None
    type_prefix: str | None = None
    until_now: bool = False


@dataclass(frozen=True, slots=True)
class News:
    """Events, none of them at a beat; and up to where everything has been told."""

    events: list[StoredEvent]
    position: str


class Feed:
    """What followers of one process share."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        look_every: timedelta = LOOK_EVERY,
        beat_every: timedelta = BEAT_EVERY,
    ) -> None:
        self._runtime = runtime
        self._look_every = look_every.total_seconds()
        self._beat_every = beat_every.total_seconds()
        self._horizon = 0
        self._moved = asyncio.Event()
        self._followers = 0
        self._looking: asyncio.Task[None] | None = None
        self._stopped = False

    def stop(self) -> None:
        """End all followers: the server stops."""
        self._stopped = True
        self._moved.set()

    async def follow(
        self, caller: Caller, wanted: Follow, check: Callable[[], Awaitable[object]]
    ) -> AsyncGenerator[News]:
        """Yield what there is and what comes, and at every beat how far that is.

        ``check`` is called at each beat and ends it by an error when the caller may no longer read.
        Raises InvalidInputError for a position that lies ahead of everything.
        """
        loop = asyncio.get_running_loop()
        horizon = await self._read()
        position = self._start(wanted, horizon)
        yield News([], position)
        beat = loop.time() + self._beat_every
        with self._following():
            while not self._stopped:
                found = await list_events(
                    self._runtime,
                    caller,
                    after=position,
                    before=horizon,
                    limit=_PAGE,
                    subject=wanted.subject,
                    type_prefix=wanted.type_prefix,
                )
                caught_up = len(found) < _PAGE
                # All that is older than the horizon has been read, what the filters left out too.
                position = f"{horizon}.0" if caught_up else found[-1].position
                if found:
                    yield News(found, position)
                if caught_up:
                    if wanted.until_now:
                        return
                    horizon = await self._beyond(horizon, beat - loop.time())
                if loop.time() >= beat:
                    await check()
                    yield News([], position)
                    beat = loop.time() + self._beat_every

    def _start(self, wanted: Follow, horizon: int) -> str:
        if wanted.position is None:
            return f"{horizon}.0"
        if read_position(wanted.position, field="Last-Event-ID") > (horizon, 0):
            raise InvalidInputError(
                "lies ahead of everything that has happened here",
                field="Last-Event-ID",
                given=wanted.position,
                allowed=f"a position up to {horizon}.0",
                hint="If the database was restored from a copy, read the list from its start",
            )
        return wanted.position

    @contextmanager
    def _following(self) -> Generator[None]:
        self._followers += 1
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            yield
        finally:
            self._followers -= 1

    async def _look(self) -> None:
        while self._followers:
            await asyncio.sleep(self._look_every)
            try:
                horizon = await self._read()
            except ApportionError:
                continue  # the followers' own reads tell, and the next look may go well
            if horizon > self._horizon:
                self._horizon = horizon
                self._moved.set()
                self._moved = asyncio.Event()

    async def _beyond(self, horizon: int, seconds: float) -> int:
        """Wait for something to read, for so long; return up to where can be read."""
        try:
            async with asyncio.timeout(seconds):
                while self._horizon <= horizon and not self._stopped:
                    await self._moved.wait()
        except TimeoutError:
            pass
        return max(horizon, self._horizon)

    async def _read(self) -> int:
        async with transaction(self._runtime.db) as connection:
            return await read_horizon(connection)

"""Telling webhooks: what happened becomes deliveries, and what is due is sent, at least once.

Level-triggered, as the clock's other work is: each step does what is due now. How far a tenant's
events were read and what is still to be sent stand in the database, so that a server that dies
loses nothing, and several servers share the work: a claim moves a delivery's next_at ahead before
it is sent, and whoever finds that time past claims it anew.
"""

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import httpx2
import structlog

from apportion.authority.service import SYSTEM
from apportion.errors import ApportionError, NotFoundError
from apportion.events.service import read_horizon, view_of
from apportion.store.connections import transaction
from apportion.store.runtime import Runtime
from apportion.webhooks.rows import QUERIES, change, event_of, lock_webhook
from apportion.webhooks.sending import Outcome, open_client, send
from apportion.webhooks.signing import message_id, secret_of, signed_headers
from apportion.webhooks.targets import Network

TIMEOUT: Final = timedelta(seconds=10)
"""How long one attempt may take in all."""
PAUSES: Final = (
    timedelta(seconds=10),
    timedelta(seconds=30),
    timedelta(minutes=2),
    timedelta(minutes=5),
    timedelta(minutes=15),
    timedelta(minutes=45),
    timedelta(hours=2),
    timedelta(hours=5),
    timedelta(hours=8),
    timedelta(hours=8),
)
"""How long a failed delivery waits: a day in all. After one more failure it is dead."""
CLAIM: Final = 10
"""The most deliveries that are claimed at once, to be sent one after the other."""
LEASE: Final = CLAIM * TIMEOUT + timedelta(seconds=20)
"""When the deliveries of one who died in the middle are claimed again."""
LOOK_EVERY: Final = timedelta(seconds=1)
_QUEUE: Final = 500
_LANES: Final = 32
"""The most webhooks that are sent to at once: one that does not answer holds up no other."""

_log: Final = structlog.get_logger()


class Dispatcher:
    """Sends to all webhooks of the database what they are still to be told.

    To one webhook it sends one delivery after the other, oldest first; a failed one waits for its
    next attempt, and does not hold up those after it.
    """

    def __init__(
        self,
        runtime: Runtime,
        networks: Sequence[Network] = (),
        *,
        timeout: timedelta = TIMEOUT,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self._runtime = runtime
        self._networks = networks
        self._timeout = timeout
        self._trust = trust
        self._lanes: dict[str, asyncio.Task[int]] = {}

    async def advance(self) -> int:
        """Send everything that is due; return how many attempts that took."""
        await self.queue()
        attempts = 0
        while webhooks := await self._due():
            attempts += sum(await asyncio.gather(*(self._send_some(each) for each in webhooks)))
        return attempts

    async def run(self) -> None:
        """Send what is due for ever; what fails on the way is logged, and made up for later."""
        try:
            while True:
                try:
                    await self.queue()
                    for webhook_id in await self._due():
                        self._lanes[webhook_id] = asyncio.create_task(self._lane(webhook_id))
                except ApportionError as error:
                    _log.warning("webhooks not looked at", code=error.code, reason=str(error))
                    await asyncio.sleep(LOOK_EVERY.total_seconds())
                await self._pause()
        finally:
            await self._stop()

    async def queue(self) -> int:
        """Turn what happened into deliveries; return how many."""
        queued = 0
        while True:
            async with transaction(self._runtime.db) as connection:
                horizon = await read_horizon(connection)
                parameters = {
                    "horizon": str(horizon),
                    "limit": _QUEUE,
                    "now": self._runtime.now(),
                }
                cursor = await connection.execute(QUERIES["queue"], parameters)
                row = await cursor.fetchone()
            if row is None or not row["found"]:
                return queued
            queued += row["queued"]

    async def _due(self) -> list[str]:
        parameters = {
            "now": self._runtime.now(),
            "except": list(self._lanes),
            "limit": _LANES - len(self._lanes),
        }
        async with transaction(self._runtime.db) as connection:
            cursor = await connection.execute(QUERIES["due"], parameters)
            return [row["id"] for row in await cursor.fetchall()]

    async def _lane(self, webhook_id: str) -> int:
        try:
            return await self._send_some(webhook_id)
        except ApportionError as error:
            # What was claimed is claimed again after its lease.
            _log.warning(
                "webhook not sent to", webhook=webhook_id, code=error.code, reason=str(error)
            )
            return 0
        finally:
            del self._lanes[webhook_id]

    async def _pause(self) -> None:
        """Wait until a lane is free, or it is time to look again."""
        seconds = LOOK_EVERY.total_seconds()
        if self._lanes:
            await asyncio.wait(
                self._lanes.values(), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        else:
            await asyncio.sleep(seconds)

    async def _stop(self) -> None:
        lanes = list(self._lanes.values())
        for lane in lanes:
            lane.cancel()
        await asyncio.gather(*lanes, return_exceptions=True)

    async def _send_some(self, webhook_id: str) -> int:
        now = self._runtime.now()
        until = now + LEASE
        parameters = {"webhook_id": webhook_id, "now": now, "until": until, "limit": CLAIM}
        async with transaction(self._runtime.db) as connection:
            cursor = await connection.execute(QUERIES["claim"], parameters)
            claimed = await cursor.fetchall()
        if not claimed:
            return 0
        if self._trust is None:
            # Reading all authorities takes a good part of a second: once, and not in the loop.
            self._trust = await asyncio.to_thread(httpx2.create_ssl_context)
        async with open_client(self._trust) as client:
            for row in claimed:
                outcome = await self._attempt(client, webhook_id, row)
                await self._settle(webhook_id, {**row, "until": until}, outcome)
        return len(claimed)

    async def _attempt(
        self, client: httpx2.AsyncClient, webhook_id: str, row: Mapping[str, Any]
    ) -> Outcome:
        body = view_of(event_of(row, row["id"])).model_dump_json().encode()
        secret = secret_of(self._runtime.key, webhook_id, row["secret_version"])
        headers = signed_headers(secret, message_id(row["id"]), self._runtime.now(), body)
        return await send(
            client, row["url"], body, headers, networks=self._networks, within=self._timeout
        )

    async def _settle(self, webhook_id: str, row: Mapping[str, Any], outcome: Outcome) -> None:
        """Forget what was delivered; of what was not, decide when it is tried again, if ever."""
        if outcome.gone:
            await self._disable(webhook_id, row["tenant_id"])
        async with transaction(self._runtime.db) as connection:
            if outcome.error is None:
                await connection.execute(QUERIES["delivered"], {"id": row["delivery_id"]})
                return
            now = self._runtime.now()
            dead = outcome.gone or row["attempts"] >= len(PAUSES)
            parameters: dict[str, object] = {
                "id": row["delivery_id"],
                "until": row["until"],
                "state": "dead" if dead else "pending",
                "next_at": now if dead else now + PAUSES[row["attempts"]],
                "status": outcome.status,
                "error": outcome.error,
                "now": now,
            }
            await connection.execute(QUERIES["failed"], parameters)

    async def _disable(self, webhook_id: str, tenant_id: str) -> None:
        """Do as a receiver says that answers 410 Gone."""
        async with transaction(self._runtime.db) as connection:
            try:
                row = await lock_webhook(connection, tenant_id, webhook_id)
            except NotFoundError:
                return
            if row["enabled"]:
                await change(connection, SYSTEM, row, self._runtime.now(), enabled=False)

"""What waits for a pool, as an ask: for whoever weighs what the pool should be cut into."""

from typing import Final

from apportion.placement import Ask
from apportion.reservations import rows
from apportion.reservations.stored import draft_of
from apportion.store.connections import Connection

WEIGHED_MAX: Final = 1000
"""The most asks that are weighed, the oldest first."""


async def waiting_asks(connection: Connection, pool_id: str) -> list[Ask]:
    """Return what waits for a pool, or for one of several with it, oldest first."""
    cursor = await connection.execute(
        rows.QUERIES["waiting_for_pool"], {"pool_id": pool_id, "limit": WEIGHED_MAX}
    )
    return [draft_of(row).ask for row in await cursor.fetchall()]

"""Gates: nobody places in a pool while it changes who may use it.

Whoever places holds the gates of its tenant and of the pools it looks at, together with all others
who place; whoever archives, offers, withdraws an offer or deletes a tenant closes them first, and
waits for those inside. So a reservation is there before an archive has committed, or never.

Gates are advisory locks, which are given in the order of asking: were they row locks, an archive of
a busy pool would wait for ever, because those who share a row overtake one who wants it alone. They
come first of all locks, and several in one statement, so that two who want the same never deadlock.

Behind the gates those who place take turns. Together, they plan at once what the database then has
to judge; who lost to others plans alone, while nobody else places in the same pools, and cannot
lose again: those who had been faster all the time would not have noticed, and gone on.
"""

from collections.abc import Collection
from typing import Final, Literal

from apportion.store.connections import Connection
from apportion.store.sql import load

Turn = Literal["together", "alone"]
"""How somebody places in some pools: while others do, or not."""

_QUERIES: Final = load("apportion.pools")


async def enter_gates(connection: Connection, names: Collection[str]) -> None:
    """Keep who may use some pools as it is, to the end of the transaction.

    ``names`` are the pools' ids and that of the tenant that places.
    """
    await connection.execute(_QUERIES["enter_gates"], {"names": list(names)})


async def take_turn(connection: Connection, pool_ids: Collection[str], turn: Turn) -> None:
    """Wait until one can place in some pools, to the end of the transaction, which entered them."""
    await connection.execute(_QUERIES[f"take_turn_{turn}"], {"names": list(pool_ids)})


async def close_gates(connection: Connection, pool_ids: Collection[str]) -> None:
    """Wait for all who place in some pools, and keep others out to the end of the transaction.

    Comes before anything else is locked.
    """
    await connection.execute(_QUERIES["close_gates"], {"names": list(pool_ids)})


async def close_gates_of(connection: Connection, tenant_id: str) -> None:
    """Close the gates of a tenant that is to be deleted: its own, its pools' and its offers'."""
    await connection.execute(_QUERIES["close_gates_of"], {"tenant_id": tenant_id})

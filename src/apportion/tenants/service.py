"""The tenant tree, as other rooms need it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

from apportion.authority.service import Caller
from apportion.store.connections import Connection
from apportion.store.sql import load

_QUERIES: Final = load("apportion.tenants")

Teardown = Callable[
    [Connection, Caller, str, datetime], Awaitable[Mapping[str, Sequence[str] | int]]
]
"""What a room does when a tenant is deleted, in the transaction of the deletion.

It is given who deletes, the tenant's id and the time; it returns fields of `TenantDeleted`.
"""

_teardowns: Final[list[tuple[int, Teardown]]] = []


def on_delete(order: int, teardown: Teardown) -> None:
    """Register what a room does when a tenant is deleted; lower orders come first.

    The order is that of locks: reservations (10) before pools and their quotas (20).
    """
    _teardowns.append((order, teardown))
    _teardowns.sort(key=lambda each: each[0])


async def find_ancestors(
    connection: Connection, tenant_ids: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Return the way from root to each of some tenants, itself included; deleted ones left out."""
    cursor = await connection.execute(_QUERIES["ancestors"], {"ids": sorted(set(tenant_ids))})
    return {row["id"]: tuple(row["ancestors"]) for row in await cursor.fetchall()}

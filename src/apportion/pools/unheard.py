"""Nodes that nobody hears of, shown with their pools; the room of the nodes is who knows them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from apportion.pools.schemas import PoolView, StaleNodes
from apportion.store.connections import Connection

Reader = Callable[[Connection, Sequence[str]], Awaitable[Mapping[str, StaleNodes]]]
"""Gives what is stale in each of some pools, by id; nothing for a pool that all is heard of."""

_READERS: Final[dict[str, Reader]] = {}


def register_stale_nodes(name: str, reader: Reader) -> None:
    """Let a room tell which nodes are stale; a name that is taken is replaced."""
    _READERS[name] = reader


async def with_stale(connection: Connection, views: Sequence[PoolView]) -> list[PoolView]:
    """Return pools as they are shown, each with what is stale in it."""
    found: dict[str, StaleNodes] = {}
    for _, reader in sorted(_READERS.items()):
        found |= await reader(connection, [view.id for view in views])
    return [
        view.model_copy(update={"stale": found[view.id]}) if view.id in found else view
        for view in views
    ]

"""Writing into the outbox as the rooms do, in transactions that a test ends when it wants to."""

from contextlib import asynccontextmanager

from apportion.authority.service import ROOT, Caller
from apportion.events.service import Event, append

CALLER = Caller(ROOT, "tok_test", "req_test")


def event(subject="pool_1", type_="pool.updated", tenant_id=ROOT, **data):
    return Event(type_, tenant_id, subject, data)


async def write(runtime, *events, caller=CALLER):
    """Append events in a transaction of their own."""
    async with runtime.db.connection() as connection, connection.transaction():
        await append(connection, caller, runtime.now(), events)


@asynccontextmanager
async def written(runtime, *events, caller=CALLER):
    """Append events in a transaction that commits at the end of the block."""
    async with runtime.db.connection() as connection, connection.transaction():
        await append(connection, caller, runtime.now(), events)
        yield connection

"""A small world that service tests act in: one database, a clock, and the services on them."""

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from fractions import Fraction

from apportion.authority.service import ROOT, Caller
from apportion.metering.service import usage
from apportion.nodes.service import import_inventories, list_atoms
from apportion.partitions.service import Gate
from apportion.pools.schemas import QuotaSet
from apportion.pools.service import create_pool, get_pool, set_quota
from apportion.reservations.fleet import Fleet, micros
from apportion.reservations.service import Reservations
from apportion.store.connections import Pool, open_pool, transaction
from apportion.store.runtime import Runtime
from apportion.testing.auditor import audit
from apportion.testing.builders import KEY, MONDAY, Clock

CALLER = Caller(ROOT, "tok_test")


@dataclass
class World:
    db: Pool
    clock: Clock = field(default_factory=Clock)
    caller: Caller = CALLER

    def __post_init__(self):
        self.runtime = Runtime(self.db, self.clock, key=KEY)
        self.restart()

    def restart(self):
        """Forget everything that is only in memory."""
        self.reservations = Reservations(self.runtime)
        self.gate = Gate(self.runtime)

    async def tenant(self, tenant_id, above=ROOT):
        """Make a tenant and return a caller of it."""
        await self.rows(
            "INSERT INTO tenants (id, parent_id, ancestors, name, created_at)"
            " SELECT %s, id, ancestors || %s::text, %s, created_at FROM tenants WHERE id = %s",
            *(tenant_id, tenant_id, tenant_id.title(), above),
        )
        [row] = await self.rows("SELECT ancestors FROM tenants WHERE id = %s", tenant_id)
        return Caller(tenant_id, f"tok_{tenant_id}", ancestors=tuple(row["ancestors"]))

    async def pool(self, request, *inventories):
        pool = await create_pool(self.runtime, self.caller, request)
        await self.report(pool, *inventories)
        return pool

    async def report(self, pool, *inventories):
        return await import_inventories(self.runtime, self.caller, pool.id, inventories)

    async def create(self, request):
        return await self.reservations.create(self.caller, request)

    async def get(self, reservation):
        return await self.reservations.get(self.caller, reservation.id)

    async def release(self, reservation):
        view = await self.reservations.release(self.caller, reservation.id)
        assert self.reservations.lifecycle.hint.is_set()  # which wakes the clock's loop
        await self.reservations.lifecycle.retry_pending()
        return view

    async def tick(self, **by):
        self.clock.advance(**by)
        await self.gate.advance()
        return await self.reservations.lifecycle.advance()

    async def quota(self, pool, resource, limit):
        request = QuotaSet(pool_id=pool.id, resource=resource, max=limit)
        return await set_quota(self.runtime, self.caller, request)

    async def used(self, pool):
        """Return what is used of each quota of counts and amounts, where anything is."""
        used = await self.all_used(pool)
        used.pop("gpuEquivalents", None)
        return used

    async def all_used(self, pool):
        """Return what is used of each quota, exact GPU equivalents too, where anything is."""
        quotas = (await get_pool(self.runtime, self.caller, pool.id)).quotas
        return {quota.resource: quota.used for quota in quotas if quota.used}

    async def atoms(self, pool, **filters):
        return await list_atoms(self.runtime, self.caller, pool_id=pool.id, **filters)

    async def usage(self, start=MONDAY, end=None):
        return await usage(self.runtime, self.caller, start, end)

    async def gpu_hours(self, start=MONDAY, end=None):
        return sum((row.gpu_hours for row in await self.usage(start, end)), Fraction(0))

    async def findings(self):
        async with self.db.connection() as connection:
            return [str(each) for each in await audit(connection, self.clock())]

    async def rows(self, query, *values):
        async with transaction(self.db) as connection:
            cursor = await connection.execute(query, values or None)
            # A SELECT of no columns gives rows too.
            return [] if cursor.description is None else await cursor.fetchall()

    async def drift(self):
        """Return where the service's pictures differ from ones made of the database just now."""
        now, fleet = self.clock(), self.reservations.fleet
        pools = [*fleet.indexes]
        fresh = Fleet()
        async with self.db.connection() as connection:
            await fleet.sync(connection, pools, now)
            await fresh.sync(connection, pools, now)
        for index in fleet.indexes.values():
            index.advance(micros(now))
        kept, true = held_of(fleet), held_of(fresh)
        return {
            key: (kept.get(key), true.get(key))
            for key in kept | true
            if kept.get(key) != true.get(key)
        }


def held_of(fleet):
    held = {}
    for pool_id, index in fleet.indexes.items():
        for node in index.nodes.values():
            held |= {(pool_id, node.id, holder): each for holder, each in node.held.items()}
            for gpu in node.gpus:
                held |= {(pool_id, gpu.id, *key): each for key, each in gpu.held.items()}
    return held


async def open_world(stack, template):
    """Give a world on a database of its own, which goes with the stack."""
    dsn = await stack.enter_async_context(template.clone())
    return World(await stack.enter_async_context(open_pool(dsn)))


@asynccontextmanager
async def world_on(db: Pool):
    """Give a world and, when the test is done with it, see that everything in it is right."""
    world = World(db)
    yield world
    assert await world.findings() == []
    assert await world.drift() == {}

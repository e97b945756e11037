"""Offers, quotas, archives and reservations on one pool, all at once, connections dying on the way.

In rounds of a few seconds, each with a pool of its own that is archived near the end. At any moment
quota used must be what live reservations charge; at the end of a round the whole database is
audited, and readers that followed the events must have seen each exactly once.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from psycopg import AsyncConnection

from apportion.authority.service import ROOT, Caller, ensure_root
from apportion.errors import ApportionError, NotFoundError, UnavailableError
from apportion.events.service import START, list_events
from apportion.nodes.service import import_inventories, sync_placements
from apportion.pools.schemas import OfferPut, PoolUpdate, QuotaSet
from apportion.pools.service import (
    AskedToCharge,
    QuotaKey,
    archive_pool,
    create_pool,
    get_pool,
    offer_pool,
    set_quota,
    unoffer_pool,
    update_pool,
)
from apportion.reservations import writing
from apportion.reservations.service import Reservations
from apportion.store.connections import Connection, open_pool, transaction
from apportion.store.runtime import Runtime
from apportion.tenants.schemas import TenantCreate
from apportion.tenants.service import create_tenant
from apportion.testing.auditor import audit
from apportion.testing.builders import KEY, ask, device, gpu, inventory, pool_of
from apportion.testing.postgres import make_template, running
from torture.crowd import Report, Step, crowd, kill_connections, stop

WORKERS = 32
ROUND_SECONDS = 4
LEAST = {"bookings": 240, "refusals": 240, "kills": 120, "offer": 60, "set_quota": 60}
OFFERED = ("acme", "beta")
LINEAGE: Mapping[str, tuple[str, ...]] = {
    ROOT: (ROOT,),
    "acme": (ROOT, "acme"),
    "acme-lab": (ROOT, "acme", "acme-lab"),
    "beta": (ROOT, "beta"),
}
CUTS = (
    ("1g.10gb@0", "1g.10gb@1", "1g.10gb@2", "1g.10gb@3", "1g.10gb@4", "1g.10gb@5", "1g.10gb@6"),
    ("3g.40gb@0", "3g.40gb@4"),
    ("4g.40gb@0", "2g.20gb@4", "1g.10gb@6"),
    (),
)


def caller(tenant: str) -> Caller:
    """Act for a tenant as a library does: what is tested here is not who may."""
    return Caller(tenant, "torture", ancestors=LINEAGE[tenant])


async def attack(seconds: int, seed: int, broken: bool) -> Report:  # noqa: FBT001 - one switch
    """Attack in rounds until the time is over."""
    report = Report(LEAST)
    with running() as server:
        template = await make_template(server)
        async with template.clone() as dsn, open_pool(dsn, size=24) as db:
            runtime = Runtime(db, key=KEY)
            await _prepare(runtime)
            # Two servers: each has a picture of its own, so each is wrong about the other's work.
            servers = (Reservations(runtime), Reservations(runtime))
            with suppress(asyncio.CancelledError):
                async with _breaking(dsn, random.Random(f"{seed}/break"), broken=broken):
                    for number in range(max(1, seconds // ROUND_SECONDS)):
                        one = _Round(runtime, servers, report, dsn, f"{seed}/{number}", number)
                        await one.run()
    return report


async def _prepare(runtime: Runtime) -> None:
    async with transaction(runtime.db) as connection:
        await ensure_root(runtime, connection)
        await sync_placements(connection)
    for tenant, parent in (("acme", ROOT), ("acme-lab", "acme"), ("beta", ROOT)):
        request = TenantCreate(id=tenant, name=tenant, parent_id=parent)
        await create_tenant(runtime, caller(ROOT), request)


@asynccontextmanager
async def _breaking(dsn: str, chance: random.Random, *, broken: bool) -> AsyncGenerator[None]:
    """Take the protection away for the block: the constraint, and one charge in ten."""
    if not broken:
        yield
        return
    async with await AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute("ALTER TABLE bookings DROP CONSTRAINT bookings_no_overlap")
    charge = writing.ask_to_charge

    async def forgetful(
        connection: Connection, amounts: Mapping[QuotaKey, Decimal]
    ) -> AskedToCharge:
        return await charge(connection, amounts if chance.random() < 0.9 else {})

    writing.ask_to_charge = forgetful
    try:
        yield
    finally:
        writing.ask_to_charge = charge


@dataclass(slots=True)
class _Round:
    """One pool from its creation to its archive, and everybody who wants something of it."""

    runtime: Runtime
    servers: tuple[Reservations, ...]
    report: Report
    dsn: str
    seed: str
    number: int
    pool_id: str = ""
    archived: bool = False
    made: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    async def run(self) -> None:
        """Make the pool, attack it, archive it, and look at what is left."""
        chance = random.Random(f"{self.seed}/round")
        await self._make_pool()
        followers = [asyncio.create_task(self._follow(tenant)) for tenant in LINEAGE]
        killer = asyncio.create_task(kill_connections(self.report, self.dsn, chance))
        judge = asyncio.create_task(self._judge_all_the_time())
        archiver = asyncio.create_task(self._archive(ROUND_SECONDS * chance.uniform(0.5, 0.9)))
        await crowd(
            self.report, self._steps(), workers=WORKERS, seconds=ROUND_SECONDS, seed=self.seed
        )
        await stop(killer)
        await archiver
        await stop(judge)
        await self._settle()
        await self._judge_the_end(followers)

    async def _make_pool(self) -> None:
        pool = await create_pool(
            self.runtime, caller(ROOT), pool_of("H100", "mig", name=f"round-{self.number}")
        )
        self.pool_id = pool.id
        gpus = [gpu("H100", at, *cut, node=f"r{self.number}") for at, cut in enumerate(CUTS * 2)]
        report = inventory(f"r{self.number}", *gpus)
        await import_inventories(self.runtime, caller(ROOT), pool.id, [report])
        for tenant in OFFERED:
            await self._offer_to(tenant, {"gpu.mig": 6, "gpu": 1})

    def _steps(self) -> dict[str, tuple[int, Step]]:
        return {
            "reserve": (50, self._reserve),
            "release": (25, self._release),
            "offer": (6, self._offer),
            "unoffer": (4, self._unoffer),
            "set_quota": (8, self._set_quota),
            "update": (3, self._update),
            "tick": (4, self._tick),
        }

    async def _reserve(self, chance: random.Random) -> None:
        tenant = chance.choice(list(LINEAGE))
        wanted = (
            device("gpu")
            if chance.random() < 0.1
            else device("gpu.mig", profile=chance.choice(("1g.10gb", "2g.20gb", "3g.40gb")))
        )
        key = f"{self.seed}-{chance.getrandbits(64)}"
        request = ask(self.pool_id, wanted, duration="1h", key=key)
        gone = self.archived
        try:
            view = await chance.choice(self.servers).create(caller(tenant), request)
        except UnavailableError:
            self.report.counts["answers lost"] += 1
            return
        if gone:
            self.report.violate(f"{view.id} was made in an archived pool")
        self.made.append((tenant, view.id))
        self.report.counts["bookings" if view.bookings else "waiting"] += 1

    async def _release(self, chance: random.Random) -> None:
        if self.made:
            tenant, reservation_id = chance.choice(self.made)
            await chance.choice(self.servers).release(caller(tenant), reservation_id)

    async def _offer(self, chance: random.Random) -> None:
        quota: dict[str, int | str] = {
            "gpu.mig": chance.randint(0, 12),
            "gpu": chance.randint(0, 3),
        }
        if chance.random() < 0.5:
            quota["gpuEquivalents"] = f"{chance.randint(0, 20)}/7"
        await self._offer_to(chance.choice(OFFERED), quota)

    async def _offer_to(self, tenant: str, quota: Mapping[str, object]) -> None:
        offer = OfferPut.model_validate({"quota": quota, "include_descendants": tenant == "acme"})
        await offer_pool(self.runtime, caller(ROOT), self.pool_id, tenant, offer)

    async def _unoffer(self, chance: random.Random) -> None:
        tenant = chance.choice(OFFERED)
        await unoffer_pool(self.runtime, caller(ROOT), self.pool_id, tenant)

    async def _set_quota(self, chance: random.Random) -> None:
        request = QuotaSet(
            tenant_id=chance.choice((ROOT, *OFFERED)),
            pool_id=self.pool_id,
            resource=chance.choice(("gpu", "gpu.mig", "gpuEquivalents")),
            max=chance.choice(("unlimited", 0, 2, 8, 20)),
        )
        await set_quota(self.runtime, caller(ROOT), request)

    async def _update(self, chance: random.Random) -> None:
        pool = await get_pool(self.runtime, caller(ROOT), self.pool_id)
        policy = {"maxPending": f"{chance.randint(1, 9)}h"}
        request = PoolUpdate(version=pool.version, policy=policy)
        await update_pool(self.runtime, caller(ROOT), self.pool_id, request)

    async def _tick(self, chance: random.Random) -> None:
        await chance.choice(self.servers).lifecycle.advance()

    async def _archive(self, after: float) -> None:
        await asyncio.sleep(after)
        while not self.archived:
            with suppress(UnavailableError):
                await archive_pool(self.runtime, caller(ROOT), self.pool_id)
                self.archived = True
        self.report.counts["archives"] += 1

    async def _settle(self) -> None:
        """Let what waits find out that the pool is gone."""
        for server in (*self.servers, *self.servers):
            with suppress(UnavailableError):
                await server.lifecycle.advance()

    async def _judge_all_the_time(self) -> None:
        while True:
            await self._audit("while it ran")
            await asyncio.sleep(0.3)

    async def _audit(self, when: str) -> None:
        async with await AsyncConnection.connect(
            self.dsn, application_name="torture"
        ) as connection:
            for finding in await audit(connection, self.runtime.now()):
                self.report.violate(f"round {self.number}, {when}: {finding}")
        self.report.counts["audits"] += 1

    async def _follow(self, tenant: str) -> list[str]:
        """Read a tenant's events as they come, until cancelled; return their ids in order."""
        seen: list[str] = []
        position = START
        with suppress(asyncio.CancelledError):
            while True:
                found = []
                with suppress(UnavailableError):
                    found = await list_events(
                        self.runtime, caller(tenant), after=position, limit=200
                    )
                seen += [each.position for each in found]
                position = seen[-1] if seen else START
                await asyncio.sleep(0.02 if not found else 0)
        return seen

    async def _judge_the_end(self, followers: list[asyncio.Task[list[str]]]) -> None:
        await asyncio.sleep(0.3)  # the followers read on to the end
        await self._audit("at the end")
        async with await AsyncConnection.connect(
            self.dsn, application_name="torture"
        ) as connection:
            for tenant, follower in zip(LINEAGE, followers, strict=True):
                follower.cancel()
                await self._compare_events(connection, tenant, await follower)
            await self._compare_states(connection)
            await self._check_archived(connection)
        for tenant in LINEAGE:
            with suppress(UnavailableError):
                await self._must_not_find(tenant)

    async def _compare_events(
        self, connection: AsyncConnection[Any], tenant: str, seen: list[str]
    ) -> None:
        cursor = await connection.execute(
            "SELECT xid || '.' || id FROM events WHERE tenant_id = %s ORDER BY xid, id", [tenant]
        )
        there = [row[0] for row in await cursor.fetchall()]
        if there != seen:
            lost, twice = set(there) - set(seen), len(seen) - len(set(seen))
            self.report.violate(
                f"round {self.number}: {tenant} saw {len(seen)} of {len(there)} events,"
                f" {len(lost)} lost, {twice} twice"
            )
        self.report.counts["events followed"] += len(seen)

    async def _compare_states(self, connection: AsyncConnection[Any]) -> None:
        """Check that every reservation has told of each of its steps exactly once."""
        cursor = await connection.execute(
            "SELECT subject, type, count(*) FROM events"
            " WHERE type LIKE 'reservation.%' GROUP BY 1, 2"
        )
        told: dict[str, Counter[str]] = {}
        for subject, kind, count in await cursor.fetchall():
            told.setdefault(subject, Counter())[kind.removeprefix("reservation.")] = count
        cursor = await connection.execute("SELECT id, state, starts_at FROM reservations")
        there = await cursor.fetchall()
        for reservation_id, state, starts_at in there:
            expected = Counter[str]()
            if starts_at is not None:
                expected["placed"] = 1
            if state in ("ended", "failed"):
                expected[state] = 1
            found = told.pop(reservation_id, Counter())
            for kind in ("placed", "ended", "failed"):
                if found[kind] != expected[kind]:
                    self.report.violate(
                        f"{reservation_id} is {state} and told {kind} {found[kind]} times"
                    )
        for reservation_id in told:
            self.report.violate(f"{reservation_id} has events and is not there")

    async def _check_archived(self, connection: AsyncConnection[Any]) -> None:
        cursor = await connection.execute(
            "SELECT tenant_id, resource, max, used FROM quotas"
            " WHERE pool_id = %s AND tenant_id <> 'root' AND max IS DISTINCT FROM used"
            " AND (max IS NULL OR max > used)",
            [self.pool_id],
        )
        for row in await cursor.fetchall():
            # What was released after the archive leaves a limit above what is used: legal, but
            # it must never let anything new in, which the attempts after the archive prove.
            self.report.counts["limits above what is used after archive"] += 1 if row[2] else 0
            if row[2] is None:
                self.report.violate(f"{row[0]} has unlimited {row[1]} of an archived pool")
        cursor = await connection.execute(
            "SELECT count(*) FROM events WHERE subject = %s AND type = 'pool.archived'"
            " AND tenant_id = 'root'",
            [self.pool_id],
        )
        row = await cursor.fetchone()
        if row is None or row[0] != 1:
            self.report.violate(f"{self.pool_id} told of its archive {row and row[0]} times")
        cursor = await connection.execute(
            "SELECT id FROM reservations WHERE state = 'pending' AND candidates = %s",
            [[self.pool_id]],
        )
        for row in await cursor.fetchall():
            self.report.violate(f"{row[0]} still waits for an archived pool")

    async def _must_not_find(self, tenant: str) -> None:
        request = ask(self.pool_id, device("gpu.mig"), duration="1h")
        try:
            view = await self.servers[0].create(caller(tenant), request)
        except NotFoundError:
            self.report.counts["refused in the archived pool"] += 1
        except ApportionError as error:
            self.report.violate(f"{tenant} was told {error.code} of an archived pool")
        else:
            self.report.violate(f"{view.id} was made in an archived pool")

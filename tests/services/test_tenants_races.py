"""A tenant is deleted while others make things for it: nothing of a deleted tenant lives on."""

import random
from contextlib import suppress

import anyio
import pytest
from psycopg import AsyncConnection

from apportion.authority.service import ROOT, Caller
from apportion.errors import ApportionError, NotFoundError, QuotaExceededError
from apportion.events.service import append
from apportion.pools.offers import offer_pool
from apportion.pools.schemas import OfferPut, SiteCreate
from apportion.pools.service import create_pool
from apportion.pools.sites import create_site
from apportion.store.connections import transaction
from apportion.tenants import service as tenants
from apportion.tenants.policies import create_policy
from apportion.tenants.schemas import PolicyCreate, TenantCreate, TokenCreate
from apportion.tenants.service import create_tenant, delete_tenant
from apportion.tenants.tokens import create_token
from apportion.testing.builders import ask, device, gpu, inventory, pool_of
from apportion.webhooks.schemas import WebhookCreate
from apportion.webhooks.service import create_webhook

pytestmark = pytest.mark.anyio

TEXT = "forbid(principal, action, resource);"
LIVING = {
    "tenants": "parent_id = %s AND deleted_at IS NULL",
    "pools": "tenant_id = %s AND NOT archived",
    "offers": "tenant_id = %s",
    "tokens": "tenant_id = %s AND revoked_at IS NULL",
    "access_policies": "tenant_id = %s",
    "webhooks": "tenant_id = %s AND enabled",
    "reservations": "tenant_id = %s AND state NOT IN ('ended', 'failed')",
}


class Team:
    """A tenant of a world with a site, and everything that can be made for it."""

    def __init__(self, world, tenant_id, lent):
        self.world, self.runtime, self.lent = world, world.runtime, lent
        self.id = tenant_id
        self.caller = Caller(tenant_id, "tok_team", ancestors=(ROOT, tenant_id))
        self.makers = [
            self.token,
            self.policy,
            self.child,
            self.site,
            self.pool,
            self.offer,
            self.webhook,
            self.reservation,
        ]

    async def open(self):
        request = TenantCreate(id=self.id, name=self.id)
        await create_tenant(self.runtime, self.world.caller, request)
        self.home = await create_site(
            self.runtime, self.caller, SiteCreate(name="home", region="r")
        )
        return self

    async def token(self, name):
        request = TokenCreate(name=name, role="viewer")
        await create_token(self.runtime, self.caller, request)

    async def policy(self, name):
        await create_policy(self.runtime, self.caller, PolicyCreate(name=name, text=TEXT))

    async def child(self, name):
        request = TenantCreate(id=f"{self.id}-{name}", name=name)
        await create_tenant(self.runtime, self.caller, request)

    async def site(self, name):
        await create_site(self.runtime, self.caller, SiteCreate(name=name, region="r"))

    async def pool(self, name):
        request = pool_of("H100", name=name).model_copy(update={"site_id": self.home.id})
        await create_pool(self.runtime, self.caller, request)

    async def offer(self, _name):
        request = OfferPut(quota={"gpu": 8})
        await offer_pool(self.runtime, self.world.caller, self.lent.id, self.id, request)

    async def webhook(self, name):
        request = WebhookCreate(name=name, url="https://hooks.example/team")
        await create_webhook(self.runtime, self.caller, request)

    async def reservation(self, _name):
        await self.world.reservations.create(self.caller, ask(self.lent.id, device()))

    async def delete(self):
        return await delete_tenant(self.runtime, self.world.caller, self.id)

    async def living(self):
        found = {}
        for table, condition in LIVING.items():
            query = f"SELECT * FROM {table} WHERE {condition}"  # noqa: S608 - of this test
            if rows := await self.world.rows(query, self.id):
                found[table] = rows
        return found


@pytest.fixture
async def lent(world):
    return await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0), gpu("H100", 1)))


async def wait_for_waiting(world, count):
    """Wait until this many connections wait for a lock; with one that is not of the pool."""
    async with await AsyncConnection.connect(world.db.conninfo, autocommit=True) as connection:
        with anyio.fail_after(10):
            while True:
                cursor = await connection.execute(
                    "SELECT count(*) FROM pg_stat_activity"
                    " WHERE wait_event_type = 'Lock' AND datname = current_database()"
                )
                row = await cursor.fetchone()
                if row is not None and row[0] >= count:
                    return
                await anyio.sleep(0.02)


async def test_whatever_is_made_while_a_deletion_runs_waits_and_finds_no_tenant(world, lent):
    team = await Team(world, "team", lent).open()
    await team.token("held")
    await team.offer("held")
    refused = []

    async def make(maker):
        with pytest.raises(NotFoundError) as caught:
            await maker("late")
        refused.append((maker.__name__, caught.value.message))

    async def reserve():
        with suppress(NotFoundError):
            await team.reservation("late")
        refused.append(("reservation", "no such pool"))

    async with anyio.create_task_group() as group, transaction(world.db) as held:
        # The deletion has the tenant, and now waits for this row: it is in its middle.
        await held.execute("SELECT 1 FROM tokens WHERE tenant_id = 'team' FOR UPDATE")
        group.start_soon(team.delete)
        await wait_for_waiting(world, 1)
        for maker in team.makers:
            if maker == team.reservation:
                group.start_soon(reserve)
            else:
                group.start_soon(make, maker)
        await wait_for_waiting(world, 1 + len(team.makers))
        assert refused == []
    assert {name for name, _ in refused} == {maker.__name__ for maker in team.makers}
    told = {message for name, message in refused if name != "reservation"}
    assert told == {"no such tenant"}
    # What was admitted before it waited is told at its next try that the pool is gone.
    await world.reservations.lifecycle.retry_pending()
    assert await team.living() == {}
    [site] = await world.rows("SELECT name FROM sites WHERE tenant_id = 'team'")
    assert site["name"] == "home"


async def test_a_deletion_waits_for_what_is_being_made_and_ends_it_too(world, lent, monkeypatch):
    """Each maker stops just before its commit; the deletion must see what it made."""
    names = ("token", "policy", "site", "pool", "offer", "webhook")
    for name in names:
        team = await Team(world, f"team-{name}", lent).open()
        reached, go_on = anyio.Event(), anyio.Event()

        async def slow(*given, reached=reached, go_on=go_on):
            await append(*given)
            reached.set()
            await go_on.wait()

        module = {
            "token": "tenants.tokens",
            "policy": "tenants.policies",
            "site": "pools.sites",
            "pool": "pools.creating",
            "offer": "pools.offers",
            "webhook": "webhooks.service",
        }[name]
        deleted = []

        async def delete(team=team, deleted=deleted):
            deleted.append(await team.delete())

        async with anyio.create_task_group() as group:
            with monkeypatch.context() as patch:
                patch.setattr(f"apportion.{module}.append", slow)
                group.start_soon(getattr(team, name), "early")
                await reached.wait()
            group.start_soon(delete)
            await wait_for_waiting(world, 1)
            assert deleted == []
            go_on.set()
        assert await team.living() == {}, name
        counts = deleted[0].model_dump()
        assert counts["revoked_tokens"] == (name == "token")
        assert len(counts["archived_pools"]) == (name == "pool")
        assert len(counts["withdrawn_offers"]) == (name == "offer")


async def test_a_child_that_is_being_made_keeps_its_parent(world, lent, monkeypatch):
    team = await Team(world, "team", lent).open()
    reached, go_on = anyio.Event(), anyio.Event()

    async def slow(*given):
        await append(*given)
        reached.set()
        await go_on.wait()

    problems = []

    async def delete():
        try:
            await team.delete()
        except ApportionError as error:
            problems.append(error)

    async with anyio.create_task_group() as group:
        with monkeypatch.context() as patch:
            patch.setattr(tenants, "append", slow)
            group.start_soon(team.child, "c1")
            await reached.wait()
        group.start_soon(delete)
        await wait_for_waiting(world, 1)
        go_on.set()
    [problem] = problems
    assert problem.code == "INVALID_STATE"
    assert "has 1 tenant below it: team-c1" in problem.message


@pytest.mark.parametrize("seed", range(6))
async def test_in_any_order_nothing_of_a_deleted_tenant_lives_on(world, lent, seed):
    chance = random.Random(seed)
    team = await Team(world, "team", lent).open()
    makers = [each for each in team.makers if each != team.child] * 3
    chance.shuffle(makers)
    made = []
    midway, after = anyio.Event(), chance.randint(1, 12)

    async def make(number, maker):
        await anyio.sleep(chance.random() / 5)
        with suppress(NotFoundError, QuotaExceededError):
            await maker(f"m{number}")
            made.append(maker.__name__)
        if len(made) >= after:
            midway.set()

    async def delete():
        await midway.wait()
        await team.delete()

    async with anyio.create_task_group() as group:
        for number, maker in enumerate(makers):
            group.start_soon(make, number, maker)
        for _ in range(2):
            group.start_soon(delete)
    await world.reservations.lifecycle.retry_pending()
    assert await team.living() == {}
    [count] = await world.rows(
        "SELECT count(*) AS n FROM events WHERE type = 'tenant.deleted' AND tenant_id = 'root'"
    )
    assert count["n"] == 1


async def test_a_teardown_that_fails_leaves_everything_as_it_was(world, lent, monkeypatch):
    team = await Team(world, "team", lent).open()
    for name in ("token", "policy", "pool", "offer", "webhook"):
        await getattr(team, name)("kept")
    before = await team.living()
    events = await world.rows("SELECT count(*) FROM events")

    async def fails(*given):
        raise RuntimeError("the process dies here")

    with monkeypatch.context() as patch:
        patch.setattr(tenants, "append", fails)
        with pytest.raises(RuntimeError):
            await team.delete()
    assert await team.living() == before
    assert await world.rows("SELECT count(*) FROM events") == events
    await team.delete()
    assert await team.living() == {}

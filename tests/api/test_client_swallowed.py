"""On the real application: it does what it is asked, and the answer is lost on the way."""

import httpx2
import pytest

from apportion.client import AsyncClient
from apportion.errors import ConflictError, NotFoundError, UnavailableError
from apportion.store.connections import transaction
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio

BASE = "http://test"
FORBID = 'forbid(principal, action == Action::"compute:pools:create", resource);'


class Swallowing(httpx2.AsyncBaseTransport):
    """Loses the first answer to what changes something, while it is armed."""

    def __init__(self, app):
        self._asgi = httpx2.ASGITransport(app)
        self.armed = False
        self.asked = []

    async def handle_async_request(self, request):
        self.asked.append(request.method)
        answer = await self._asgi.handle_async_request(request)
        if self.armed and request.method != "GET":
            self.armed = False
            assert answer.status_code < 300
            raise httpx2.ReadError("reset")
        return answer


@pytest.fixture
def transport(app):
    return Swallowing(app)


@pytest.fixture
async def client(transport, token):
    async with AsyncClient(BASE, token, transport=transport) as client:
        yield client


@pytest.fixture
async def pool(client):
    return await client.create_pool(pool_of("H100", "mig"))


@pytest.fixture
def swallow(transport):
    """Do what is asked while its first answer is lost."""

    async def run(work):
        transport.armed, transport.asked = True, []
        try:
            return await work
        finally:
            assert not transport.armed

    return run


async def count(runtime, query):
    async with transaction(runtime.db) as connection:
        [row] = await (await connection.execute(query)).fetchall()
    return next(iter(row.values()))


async def test_what_is_created_is_there_once(client, swallow, pool, runtime):
    site = await swallow(client.create_site({"name": "fra2", "region": "fra2"}))
    made = await swallow(client.create_pool(at(site, pool_of("A100", name="p2"))))
    policy = await swallow(client.create_policy({"name": "p", "text": FORBID}))
    await client.join_node(pool.id, inventory("n1", gpu("H100", 0, "3g.40gb@4")))
    reserved = await swallow(client.create_reservation(ask(pool.id, device("gpu.mig"))))
    assert [each.id for each in (await client.list_pools(name="p2")).items] == [made.id]
    assert [each.id for each in (await client.list_policies()).items] == [policy.id]
    assert [each.id for each in (await client.list_reservations()).items] == [reserved.id]
    assert await count(runtime, "SELECT count(*) FROM sites WHERE name = 'fra2'") == 1
    assert await count(runtime, "SELECT count(*) FROM bookings") == 1
    for subject in (site.id, made.id, policy.id):
        told = [each.type async for each in client.list_events(subject=subject).all()]
        assert len([each for each in told if each.endswith(".created")]) == 1


def at(site, request):
    return request.model_copy(update={"site_id": site.id})


async def test_a_pool_is_updated_once_and_told_as_it_is(client, swallow, transport, pool):
    wanted = {"version": pool.version, "policy": {"maxPending": "1h"}}
    updated = await swallow(client.update_pool(pool.id, wanted))
    assert transport.asked == ["PATCH", "PATCH", "GET"]
    assert (updated.version, updated.policy) == (pool.version + 1, {"maxPending": "1h"})
    assert await client.get_pool(pool.id) == updated


async def test_a_policy_is_updated_once_and_told_as_it_is(client, swallow):
    policy = await client.create_policy({"name": "p", "text": FORBID})
    wanted = {"version": policy.version, "description": "no new pools"}
    updated = await swallow(client.update_policy(policy.id, wanted))
    assert (updated.version, updated.description) == (policy.version + 1, "no new pools")


async def test_a_secret_that_was_lost_is_a_conflict_and_one_token(client, swallow, runtime):
    before = await count(runtime, "SELECT count(*) FROM tokens")
    with pytest.raises(ConflictError) as caught:
        await swallow(client.create_token({"name": "ci", "role": "viewer"}))
    assert "otate" in caught.value.hint
    assert caught.value.details["uncertain"] is True
    assert await count(runtime, "SELECT count(*) FROM tokens") == before + 1


async def test_a_token_is_not_rotated_twice(client, swallow, transport):
    issued = await client.create_token({"name": "ci", "role": "viewer"})
    with pytest.raises(UnavailableError) as caught:
        await swallow(client.rotate_token(issued.record.id, {"overlap": "1h"}))
    assert transport.asked == ["POST"]
    assert caught.value.details["uncertain"] is True


async def test_a_tenant_that_may_be_ones_own_is_an_uncertain_conflict(client, swallow):
    with pytest.raises(ConflictError) as caught:
        await swallow(client.create_tenant({"id": "acme", "name": "Acme"}))
    assert caught.value.details["uncertain"] is True
    assert (await client.get_tenant("acme")).name == "Acme"


async def test_what_ends_in_the_same_place_says_what_is_there(client, swallow, pool):
    await client.create_tenant({"id": "acme", "name": "Acme"})
    offer = await swallow(client.offer_pool(pool.id, "acme", {"quota": {"gpu.mig": 7}}))
    assert [quota.max for quota in offer.quotas if quota.resource == "gpu.mig"] == [7]
    limit = {"pool_id": pool.id, "tenant_id": "acme", "resource": "gpu.mig", "max": 3}
    assert (await swallow(client.set_quota(limit))).max == 3
    waiting = await client.create_reservation(ask(pool.id, device("gpu.mig")))
    assert (await swallow(client.release_reservation(waiting.id))).state == "ended"
    assert (await swallow(client.unoffer_pool(pool.id, "acme"))).removed is False
    assert (await client.list_offers(pool.id)).items == []
    assert (await swallow(client.archive_pool(pool.id))).archived is True
    assert (await swallow(client.delete_tenant("acme"))).tenant.deleted_at is not None


async def test_a_webhook_is_there_once_and_its_secret_is_not_lost(client, swallow):
    # No packet goes there: nothing sends in this application.
    issued = await swallow(client.create_webhook({"name": "w", "url": "https://8.8.8.8/hook"}))
    assert issued.secret.startswith("whsec_")
    [webhook] = (await client.list_webhooks()).items
    assert webhook == issued.webhook
    updated = await swallow(client.update_webhook(webhook.id, {"version": 1, "enabled": False}))
    assert (updated.version, updated.enabled) == (2, False)
    with pytest.raises(NotFoundError) as caught:
        await swallow(client.delete_webhook(webhook.id))
    assert caught.value.details["uncertain"] is True
    assert (await client.list_webhooks()).items == []

"""The asynchronous client: the same operations, on the real application and over a real socket."""

import asyncio
import inspect
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest

from api_server import served
from apportion.client import AsyncClient, AsyncPage, Client
from apportion.errors import (
    ApportionError,
    ForbiddenError,
    InvalidInputError,
    NotFoundError,
    UnauthenticatedError,
    UnavailableError,
)
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio

BASE = "http://test"
ROOT = Path(__file__).parents[2]


@pytest.fixture
async def client(app, token):
    async with AsyncClient(BASE, token, transport=httpx2.ASGITransport(app)) as client:
        yield client


def test_the_synchronous_client_is_what_the_asynchronous_one_makes():
    code = [sys.executable, str(ROOT / "tools" / "unasync.py"), "--check"]
    out = subprocess.run(code, capture_output=True, text=True, check=False)
    assert (out.returncode, out.stderr) == (0, "")


def test_both_clients_have_the_same_operations_that_take_the_same():
    def shape(kind):
        return {
            {"aclose": "close"}.get(name, name): [
                (each.name, each.kind, each.default)
                for each in inspect.signature(method).parameters.values()
            ]
            for name, method in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    assert shape(AsyncClient) == shape(Client)
    waits = inspect.iscoroutinefunction
    assert waits(AsyncClient.get_pool)
    assert not waits(Client.get_pool)


async def test_a_reservation_is_made_and_released(client):
    pool = await client.create_pool(pool_of("H100", "mig"))
    await client.join_node(pool.id, inventory("n1", gpu("H100", 0, "3g.40gb@4")))
    made = await client.create_reservation(
        ask(pool.id, device("gpu.mig", profile="3g.40gb"), duration="1h")
    )
    assert (made.state, len(made.bookings)) == ("active", 1)
    assert (await client.get_reservation(made.id)).id == made.id
    explained = await client.explain_quota(pool.id, "root", "gpu.mig", limit=1)
    assert [each.id for each in explained.reservations] == [made.id]
    assert explained.accounted == explained.quota.used == 1
    assert (await client.release_reservation(made.id)).state == "ended"
    start = made.created_at - timedelta(hours=1)
    assert (await client.get_usage(start)).start == start


async def test_a_batch_answers_each_in_its_place(client):
    pool = await client.create_pool(pool_of("H100", "exclusive"))
    batch = await client.create_reservations(
        [ask(pool.id, device("gpu"), duration="1h"), ask("pool_none", device("gpu"), duration="1h")]
    )
    good, bad = batch.items
    assert good.candidates == [pool.id]
    assert isinstance(bad, NotFoundError)
    assert batch.plans == []


async def test_a_batch_tells_what_was_planned_for_its_asks_together(client):
    pool = await client.create_pool(pool_of("H100", "exclusive"))
    await client.join_node(pool.id, inventory("n1", gpu("H100", 0), gpu("H100", 1)))
    exact = ask(pool.id, device("gpu"), duration="1h", placement={"policy": "exact"})
    batch = await client.create_reservations([exact] * 3)
    assert sorted(each.state for each in batch.items) == ["active", "active", "pending"]
    [plan] = batch.plans
    assert (plan.asks, plan.placed, plan.gpus, plan.optimal) == (3, 2, 2, True)


async def test_a_list_is_one_page_when_awaited_and_everything_when_gone_through(client):
    named = {
        (await client.create_pool(pool_of("H100", name=f"p{n}"))).id: f"p{n}" for n in range(5)
    }
    made = sorted(named)
    page = await client.list_pools(limit=2)
    assert isinstance(page, AsyncPage)
    assert ([each.id for each in page.items], page.next_cursor is not None) == (made[:2], True)
    assert [each.id async for each in client.list_pools(limit=2).all()] == made
    assert [each.id async for each in page.all()] == made
    rest = await page.after(page.next_cursor)
    assert [each.id async for each in rest.all()] == made[2:]
    assert [each.id async for each in client.list_pools(name="p3").all()] == [
        id_ for id_, name in named.items() if name == "p3"
    ]


async def test_events_end_for_now_with_an_empty_page(client):
    pool = await client.create_pool(pool_of("H100"))
    told = [each.type async for each in client.list_events(subject=pool.id, limit=1).all()]
    assert "pool.created" in told


async def test_errors_are_those_of_the_server(client, app):
    with pytest.raises(NotFoundError) as caught:
        await client.get_pool("pool_none")
    assert caught.value.code == "NOT_FOUND"
    with pytest.raises(InvalidInputError) as caught:
        await client.create_pool({**pool_of("H100").model_dump(by_alias=True), "gpu_model": ""})
    assert caught.value.field == "gpu_model"
    async with AsyncClient(BASE, "apt_x", transport=httpx2.ASGITransport(app)) as stranger:
        with pytest.raises(UnauthenticatedError):
            await stranger.list_pools()


async def test_a_key_makes_one_object_of_many_tries(client):
    wanted = {**pool_of("H100").model_dump(by_alias=True), "idempotency_key": "mine"}
    tries = await asyncio.gather(*[client.create_pool(wanted) for _ in range(4)])
    assert len({each.id for each in tries}) == 1
    assert len((await client.list_pools()).items) == 1


async def test_it_works_over_a_socket_and_for_many_asks_at_once(dsn):
    with served(dsn) as there:
        environment = {"APPORTION_URL": there.url, "APPORTION_TOKEN": there.token}
        async with AsyncClient.from_environment(environment) as client:
            assert client.url == there.url
            assert await client.get_health() == "ok"
            assert await client.get_readiness() == "ready"
            wanted = [pool_of("H100", name=f"p{n}") for n in range(12)]
            made = await asyncio.gather(*[client.create_pool(each) for each in wanted])
            found = [each.id async for each in client.list_pools(limit=5).all()]
            assert found == sorted(each.id for each in made)


async def test_where_no_server_answers_it_says_so_and_can_be_cancelled(monkeypatch):
    async with AsyncClient("http://127.0.0.1:9", "apt_x") as client:
        with pytest.raises(UnavailableError, match="no server answers"):
            await client.list_pools()

    async def hang(_):
        await asyncio.sleep(3600)

    async with AsyncClient("http://test", "apt_x", transport=httpx2.MockTransport(hang)) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.list_pools()


async def test_a_tenant_that_is_not_below_is_one_that_never_existed(app, token):
    for tenant in ("elsewhere", "never"):
        async with AsyncClient(
            BASE, token, tenant=tenant, transport=httpx2.ASGITransport(app)
        ) as client:
            with pytest.raises(ApportionError) as caught:
                await client.list_pools()
        assert not isinstance(caught.value, ForbiddenError)
        assert caught.value.code == "NOT_FOUND"

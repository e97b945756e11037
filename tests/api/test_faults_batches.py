"""A batch that the database leaves in the middle is answered as one that can be sent again."""

import asyncio

import httpx2
import pytest
from psycopg.conninfo import make_conninfo

from apportion.authority.service import ROOT, issue_token
from apportion.nodes import service
from apportion.nodes.service import load_fleet
from apportion.reservations.service import Reservations
from apportion.server.app import create_app
from apportion.store.connections import open_pool, transaction
from apportion.store.runtime import Runtime
from apportion.testing.builders import KEY, ask, device, gpu, inventory, pool_of
from in_loop import BASE

pytestmark = pytest.mark.anyio


@pytest.fixture
async def impatient(dsn, runtime, clock):
    """Give a server whose database ends transactions that stand still for a moment."""
    options = "-c idle_in_transaction_session_timeout=100ms"
    async with open_pool(make_conninfo(dsn, options=options)) as db:
        served = Runtime(db, clock, key=KEY)
        async with transaction(db) as connection:
            issued = await issue_token(served, connection, tenant_id=ROOT, name="batch")
        reservations = Reservations(served)
        app = create_app(served, reservations, ready=lambda: True)
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app),
            base_url=BASE,
            headers={"Authorization": f"Bearer {issued.token}"},
        ) as http:
            yield http


async def test_who_takes_too_long_over_a_picture_is_told_to_come_again(
    impatient, with_client, monkeypatch
):
    http = impatient

    def make(client):
        pool = client.create_pool(pool_of("H100", name="p"))
        client.join_node(pool.id, inventory("n1", gpu("H100", 0), gpu("H100", 1)))
        return pool.id

    pool_id = await with_client(make)
    asked = ask(pool_id, device(), duration="1h").model_dump(mode="json", by_alias=True)
    batch = {"reservations": [{**asked, "idempotency_key": f"k{at}"} for at in range(2)]}

    async def load_large_fleet(connection, pool_id):
        found = await load_fleet(connection, pool_id)
        await asyncio.sleep(0.5)
        return found

    monkeypatch.setattr(service, "load_fleet", load_large_fleet)
    refused = await http.post("/v1/reservations/batch", json=batch)
    assert (refused.status_code, refused.json()["code"]) == (503, "UNAVAILABLE")
    assert refused.headers["Retry-After"] == "1"
    monkeypatch.setattr(service, "load_fleet", load_fleet)
    answer = await http.post("/v1/reservations/batch", json=batch)
    states = [each["reservation"]["state"] for each in answer.json()["items"]]
    assert (answer.status_code, states) == (200, ["active", "active"])
    assert len(await with_client(lambda client: client.list_reservations().items)) == 2

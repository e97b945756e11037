"""What nobody hears of is said wherever a number of a fleet is shown, read by read."""

from datetime import timedelta

import pytest

from apportion.client import Client
from apportion.nodes.service import Watch
from apportion.testing.builders import ask, device, gpu, inventory, pool_of
from in_loop import BASE, InLoop

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]

SINCE = "2026-03-02T09:00:30Z"

SAYS = {
    "list_pools": lambda client, _: client.list_pools().items[0].stale,
    "get_pool": lambda client, seen: client.get_pool(seen.pool_id).stale,
    "get_pool_capacity": lambda client, seen: _of_capacity(client.get_pool_capacity(seen.pool_id)),
    "list_layouts": lambda client, seen: client.list_layouts(seen.pool_id).items[0],
    "list_nodes": lambda client, _: client.list_nodes().items[0],
    "get_node": lambda client, seen: client.get_node(seen.node_id),
    "list_gpus": lambda client, _: client.list_gpus().items[0],
    "get_gpu_calendar": lambda client, _: client.get_gpu_calendar("GPU-n1-0"),
    "list_atoms": lambda client, _: client.list_atoms().items[0],
    "get_usage": lambda client, seen: client.get_usage(seen.began, None).unheard[0],
}
"""The reads that show numbers of a fleet, and where each says what is stale."""

WAITING = {
    "explain_reservation": lambda client, seen: client.explain_reservation(seen.waits).pools[0],
    "get_reservation": lambda client, seen: client.get_reservation(seen.waits),
    "list_reservations": lambda client, _: client.list_reservations().items[0],
}
"""The reads that say of whoever waits that it is because of what is stale."""

SILENT = {
    # What was said, by whom and to whom; nothing of it is a number of a fleet.
    *("get_caller", "list_roles", "list_events", "stream_events", "list_audit"),
    *("list_tenants", "get_tenant", "list_tokens", "get_token", "list_policies", "get_policy"),
    *("list_webhooks", "get_webhook", "list_deliveries", "list_join_tokens"),
    *("list_sites", "get_site", "list_offers", "get_health", "get_readiness"),
    # What a tenant may use, whether or not it is there.
    *("list_quotas", "get_quota", "explain_quota"),
    # What a node is asked to be, and windows that were asked for.
    *("get_spec", "list_series", "get_series"),
}
"""The reads that show no number of a fleet."""


DOCUMENT = inventory("n1", gpu("H100", 0), gpu("H100", 1))


def report(client, seen, sequence):
    """Say by a token that the node is there, as an agent without a key does."""
    document = DOCUMENT.model_dump(mode="json", by_alias=True)
    said = {"observed_generation": 1, "converged": {}, "inventory": document}
    client.report_node(seen.node_id, {"sequence": sequence, **said})


class Seen:
    """A pool of one node with two GPUs, one of them held, of which nobody hears any more."""

    def __init__(self, client, clock):
        self.began = clock()
        self.pool_id = client.create_pool(pool_of("H100", name="p")).id
        self.node_id = client.join_node(self.pool_id, DOCUMENT).id
        report(client, self, 1)
        client.create_reservation(ask(self.pool_id, device(), duration="1h"))

    def wait(self, client):
        self.waits = client.create_reservation(ask(self.pool_id, device(), duration="1h")).id


@pytest.fixture
async def seen(runtime, clock, with_client):
    seen = await with_client(lambda client: Seen(client, clock))
    watch = Watch(runtime)
    for _ in range(7):
        clock.now += timedelta(seconds=5)
        await watch.advance()
    await with_client(seen.wait)
    return seen


def _of_capacity(capacity):
    assert capacity.free == []
    return capacity


def _since(view):
    data = view.model_dump(mode="json")
    return data.get("stale_since") or data["since"]


def _gpus(view):
    data = view.model_dump(mode="json")
    counted = data.get("stale_gpus", data.get("gpus"))
    return len(counted) if isinstance(counted, list) else counted


def test_every_read_is_known_to_say_it_or_to_have_nothing_to_say(app):
    reads = {
        operation["operationId"]
        for path in app.openapi()["paths"].values()
        for method, operation in path.items()
        if method == "get"
    }
    assert reads == {*SAYS, *WAITING, *SILENT}


async def test_it_is_said_since_when_and_of_how_many_gpus(seen, with_client):
    def look(client):
        return {name: show(client, seen) for name, show in SAYS.items()}

    shown = await with_client(look)
    assert {name: _since(view) for name, view in shown.items()} == dict.fromkeys(SAYS, SINCE)
    assert {name: _gpus(view) for name, view in shown.items() if _gpus(view) is not None} == {
        **dict.fromkeys(("list_pools", "get_pool", "get_pool_capacity"), 2),
        **dict.fromkeys(("list_layouts", "list_nodes", "get_node"), 2),
        "get_usage": 1,  # of those that were used
    }


async def test_who_waits_because_of_it_is_told_since_when(seen, with_client):
    def look(client):
        return {name: show(client, seen) for name, show in WAITING.items()}

    shown = await with_client(look)
    explained = shown.pop("explain_reservation")
    [reason] = explained.reasons
    assert (reason.code, reason.model_dump(mode="json")["since"]) == ("node_stale", SINCE)
    for view in shown.values():
        [reason] = view.reason["reasons"]
        assert (reason["code"], reason["since"]) == ("node_stale", SINCE)
    asked = {"pool_id": seen.pool_id, "devices": [{"class": "gpu"}], "duration": "1h"}
    earliest = await with_client(lambda client: client.find_earliest(asked))
    assert (earliest.pools[0].window, earliest.pools[0].reason["code"]) == (None, "node_stale")


async def test_whoever_is_offered_the_pool_is_told_as_well(seen, app, token, with_client):
    def look(client):
        client.create_tenant({"id": "acme", "name": "Acme"})
        client.offer_pool(seen.pool_id, "acme", {"quota": {"gpu": 4}})
        with Client(BASE, token, tenant="acme", transport=InLoop(app)) as guest:
            return guest.list_pools().items[0].stale, guest.get_usage(seen.began, None).unheard

    stale, unheard = await with_client(look)
    assert ((stale.nodes, stale.gpus), unheard) == ((1, 2), [])


async def test_where_all_is_heard_of_nothing_is_said(seen, clock, with_client):
    def look(client):
        report(client, seen, 2)
        return (
            client.get_pool(seen.pool_id).stale,
            client.get_usage(seen.began, None).unheard,
            client.get_pool_capacity(seen.pool_id).stale_since,
            client.get_gpu_calendar("GPU-n1-0").stale_since,
        )

    assert await with_client(look) == (None, [], None, None)

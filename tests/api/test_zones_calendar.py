"""The calendar of a GPU: what is held when, the gap behind it, and who may know by whom."""

from datetime import timedelta

import pytest

from apportion.authority.service import issue_token
from apportion.quantities.windows import format_instant, parse_instant
from apportion.reservations import calendar
from apportion.store.connections import transaction
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]


def at(hours, day="2026-03-02"):
    """Give an instant so many hours after nine, which is now."""
    return parse_instant(f"{day}T09:00:00Z", field="at") + timedelta(hours=hours)


@pytest.fixture
async def world(runtime, with_client, http):
    """Offer a pool of one GPU with a gap to acme and to beta; hold it by turns."""

    def build(client):
        for tenant, above in (("acme", None), ("lab", "acme"), ("beta", None), ("gamma", None)):
            body = {"id": tenant, "name": tenant.title()}
            client.create_tenant(body if above is None else {**body, "parent_id": above})
        pool = client.create_pool(pool_of("H100", name="p", window={"gap": "30m"}))
        client.join_node(pool.id, inventory("n1", gpu("H100", 0, node="n1")))
        for tenant in ("acme", "lab", "beta"):
            client.offer_pool(pool.id, tenant, {"quota": {"gpu": 4}})
        return pool.id, client.list_gpus().items[0].id

    pool_id, gpu_id = await with_client(build)
    headers = {}
    async with transaction(runtime.db) as connection:
        for tenant in ("acme", "lab", "beta", "gamma"):
            token = await issue_token(runtime, connection, tenant_id=tenant, name=tenant)
            headers[tenant] = {"Authorization": f"Bearer {token.token}"}
    headers["owner"] = {}
    held = {}
    for tenant, hour in (("acme", 0), ("lab", 2), ("beta", 4)):
        body = ask(pool_id, device(), start=at(hour), duration="1h", name=f"of-{tenant}")
        made = await http.post(
            "/v1/reservations",
            json=body.model_dump(mode="json", by_alias=True),
            headers=headers[tenant],
        )
        assert made.json()["state"] in ("placed", "active"), made.text
        held[tenant] = made.json()["id"]
    return pool_id, gpu_id, headers, held


async def read(http, headers, gpu_id, **query):
    query = {name: format_instant(value) for name, value in query.items()}
    return await http.get(f"/v1/gpus/{gpu_id}/calendar", params=query, headers=headers)


@pytest.mark.parametrize(
    ("who", "seen"),
    [
        ("owner", {"acme", "lab", "beta"}),
        ("acme", {"acme", "lab"}),
        ("lab", {"lab"}),
        ("beta", {"beta"}),
    ],
)
async def test_whoever_may_book_sees_when_and_only_some_see_by_whom(http, world, who, seen):
    pool_id, gpu_id, headers, held = world
    told = (await read(http, headers[who], gpu_id)).json()
    assert (told["gpu_id"], told["pool_id"]) == (gpu_id, pool_id)
    assert (told["start"], told["end"]) == ("2026-03-02T09:00:00Z", "2026-03-03T09:00:00Z")
    assert told["windows"] == [
        {
            "what": "reservation" if tenant in seen else "reserved",
            "reservation_id": held[tenant] if tenant in seen else None,
            "name": f"of-{tenant}" if tenant in seen else None,
            "units": "{[0,)}",
            "start": format_instant(at(hour)),
            "end": format_instant(at(hour + 1)),
            "held_until": format_instant(at(hour + 1.5)),
        }
        for tenant, hour in (("acme", 0), ("lab", 2), ("beta", 4))
    ]


async def test_a_gpu_that_is_not_offered_is_one_that_never_existed(http, world):
    _, gpu_id, headers, _ = world
    there = await read(http, headers["gamma"], gpu_id)
    nowhere = await read(http, headers["gamma"], "GPU-nobody")
    assert there.status_code == nowhere.status_code == 404
    strip = {"request_id": None, "given": None}
    assert {**there.json(), **strip} == {**nowhere.json(), **strip}
    assert there.json()["given"] == gpu_id


@pytest.mark.parametrize(
    ("start", "end", "hours"),
    [
        (0, 2, [0]),
        (1.25, 2, [0]),  # the gap holds it still
        (1.5, 2, []),  # and no longer
        (1.5, 2.01, [2]),
        (4, 30, [4]),
        (-24, 0, []),  # half-open
    ],
)
async def test_windows_that_reach_into_the_span_are_told_with_their_gap(
    http, world, start, end, hours
):
    _, gpu_id, headers, _ = world
    told = (await read(http, headers["owner"], gpu_id, start=at(start), end=at(end))).json()
    assert [each["start"] for each in told["windows"]] == [
        format_instant(at(hour)) for hour in hours
    ]


async def test_what_is_cancelled_is_gone_and_what_ends_early_keeps_its_gap(http, world, clock):
    _, gpu_id, headers, held = world
    clock.now = at(0.5)
    for tenant in ("acme", "beta"):
        path = f"/v1/reservations/{held[tenant]}/release"
        assert (await http.post(path, headers=headers[tenant])).is_success
    told = (await read(http, headers["owner"], gpu_id)).json()
    assert [(each["name"], each["end"], each["held_until"]) for each in told["windows"]] == [
        ("of-acme", format_instant(at(0.5)), format_instant(at(1))),
        ("of-lab", format_instant(at(3)), format_instant(at(3.5))),
    ]


@pytest.mark.parametrize(
    ("query", "field", "said"),
    [
        ({"start": at(1), "end": at(1)}, "end", "after it starts"),
        ({"end": at(-1)}, "end", "after it starts"),
        ({"start": at(0), "end": at(31 * 24 + 0.01)}, "end", "31 days"),
        ({"start": parse_instant("9999-12-31T23:00:00Z", field="")}, "start", "beyond"),
    ],
)
async def test_a_span_that_is_none_or_too_long_is_refused(http, world, query, field, said):
    _, gpu_id, headers, _ = world
    answer = await read(http, headers["acme"], gpu_id, **query)
    assert (answer.status_code, answer.json()["field"]) == (400, field)
    assert said in answer.json()["detail"]
    longest = await read(http, headers["acme"], gpu_id, start=at(0), end=at(31 * 24))
    assert longest.status_code == 200


async def test_more_windows_than_an_answer_holds_are_told_in_several(http, world, monkeypatch):
    _, gpu_id, headers, _ = world
    monkeypatch.setattr(calendar, "WINDOWS_MAX", 1)
    start, found, answers = at(0), [], 0
    while start < at(24):
        told = (await read(http, headers["owner"], gpu_id, start=start, end=at(24))).json()
        found += [each["name"] for each in told["windows"]]
        start, answers = parse_instant(told["end"], field="end"), answers + 1
    assert (found, answers) == (["of-acme", "of-lab", "of-beta"], 3)


async def test_the_client_and_the_api_tell_the_same(http, world, with_client):
    _, gpu_id, headers, _ = world
    told = await with_client(
        lambda client: client.get_gpu_calendar(gpu_id, start=at(0), end=at(24))
    )
    same = await read(http, headers["owner"], gpu_id, start=at(0), end=at(24))
    assert told.model_dump(mode="json", by_alias=True) == same.json()


async def test_what_has_no_end_is_told_without_one(http, with_client):
    def build(client):
        pool = client.create_pool(pool_of("H100", name="p", openEnded=True))
        client.join_node(pool.id, inventory("n1", gpu("H100", 0, node="n1")))
        request = {"pool_id": pool.id, "devices": [{"class": "gpu"}], "open_ended": True}
        return client.create_reservation(request).bookings[0].gpu_id

    gpu_id = await with_client(build)
    told = (await read(http, {}, gpu_id, start=at(24), end=at(48))).json()
    [window] = told["windows"]
    assert (window["start"], window["end"], window["held_until"]) == (
        format_instant(at(0)),
        None,
        None,
    )

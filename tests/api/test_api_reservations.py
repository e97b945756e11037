"""Reservations over HTTP: one, many, again with the same key, and what the refusals say."""

import pytest

from apportion.errors import ConflictError, InvalidInputError, NotFoundError, QuotaExceededError
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def pool(with_client):
    """Give a MIG pool with one 3g.40gb, one 2g.20gb and a whole GPU."""

    def make(client):
        pool = client.create_pool(pool_of("H100", "mig"))
        client.join_node(
            pool.id, inventory("n1", gpu("H100", 0, "3g.40gb@4", "2g.20gb@0"), gpu("H100", 1))
        )
        return pool

    return await with_client(make)


def body(pool, **more):
    return {
        "pool_id": pool.id,
        "devices": [{"class": "gpu.mig", "count": 1}],
        "duration": "1h",
        **more,
    }


async def test_what_has_no_room_waits_with_the_reason_until_something_is_released(
    pool, with_client, reservations
):
    def reserve(client):
        request = ask(pool.id, device("gpu.mig", profile="3g.40gb"), duration="1h")
        first, second = client.create_reservation(request), client.create_reservation(request)
        assert first.bookings[0].units == "{[4,8)}"
        assert (second.state, second.bookings) == ("pending", [])
        assert second.reason["code"] == "units_booked"
        assert client.release_reservation(first.id).state == "ended"
        assert client.release_reservation(first.id).state == "ended"
        return second.id

    waiting = await with_client(reserve)
    await reservations.lifecycle.advance()
    placed = await with_client(lambda client: client.get_reservation(waiting))
    assert placed.bookings[0].units == "{[4,8)}"


@pytest.mark.parametrize("header", [True, False])
async def test_the_same_key_gives_the_same_reservation(pool, http, header):
    request = body(pool) if header else body(pool, idempotency_key="k")
    headers = {"Idempotency-Key": "k"} if header else {}
    answers = [await http.post("/v1/reservations", json=request, headers=headers) for _ in "ab"]
    assert [each.status_code for each in answers] == [201, 201]
    assert answers[0].json()["id"] == answers[1].json()["id"]


async def test_the_key_in_the_header_and_in_the_body_is_one_key(pool, http):
    headers = {"Idempotency-Key": "k"}
    one = await http.post("/v1/reservations", json=body(pool), headers=headers)
    two = await http.post("/v1/reservations", json=body(pool, idempotency_key="k"))
    both = await http.post(
        "/v1/reservations", json=body(pool, idempotency_key="k"), headers=headers
    )
    assert one.json()["id"] == two.json()["id"] == both.json()["id"]


@pytest.mark.parametrize("path", ["/v1/reservations", "/v1/pools"])
async def test_two_different_keys_in_one_request_are_refused(pool, http, path):
    request = body(pool) if path.endswith("reservations") else {"name": "x", "gpu_model": "H100"}
    response = await http.post(
        path, json={**request, "idempotency_key": "a"}, headers={"Idempotency-Key": "b"}
    )
    told = response.json()
    assert (response.status_code, told["field"], told["given"]) == (400, "idempotency_key", "a")


async def test_a_key_that_was_used_for_another_ask_is_a_conflict(pool, http):
    headers = {"Idempotency-Key": "k"}
    await http.post("/v1/reservations", json=body(pool), headers=headers)
    other = await http.post("/v1/reservations", json=body(pool, duration="2h"), headers=headers)
    assert (other.status_code, other.json()["code"]) == (409, "CONFLICT")


async def test_the_same_key_gives_the_same_pool_and_a_taken_name_is_a_conflict(with_client):
    def create(client):
        first = client.create_pool(pool_of("H100", key="k"))
        assert client.create_pool(pool_of("H100", key="k")).id == first.id
        with pytest.raises(ConflictError) as caught:
            client.create_pool(pool_of("H100"))
        assert caught.value.field == "name"

    await with_client(create)


async def test_each_ask_of_a_batch_stands_alone(pool, with_client):
    def reserve(client):
        client.set_quota({"pool_id": pool.id, "resource": "vcpu", "max": 2})
        got = client.create_reservations(
            [
                ask(pool.id, device("gpu.mig", profile="3g.40gb"), duration="1h"),
                {"pool_id": "pool_nope", "duration": "1h", "devices": [{"class": "gpu"}]},
                ask(pool.id, device("gpu.slot"), duration="1h"),
                ask(pool.id, device("gpu.mig"), duration="1h", vcpu=3),
                ask(pool.id, device("gpu.mig", profile="3g.40gb"), duration="1h"),
                ask(pool.id, device("gpu.mig"), duration="1 hour"),
            ]
        ).items
        assert got[0].state in {"placed", "active"}
        assert isinstance(got[1], NotFoundError)
        assert str(got[2]) == "devices[0]: gpu.slot atoms exist only in timeslice or mps pools"
        assert isinstance(got[3], QuotaExceededError)
        assert got[4].state == "pending"
        assert isinstance(got[5], InvalidInputError)
        assert got[5].field == "duration"

    await with_client(reserve)


async def test_a_batch_is_sent_again_without_booking_twice(pool, http):
    batch = {"reservations": [body(pool, idempotency_key=key) for key in "ab"]}
    one = (await http.post("/v1/reservations/batch", json=batch)).json()
    two = (await http.post("/v1/reservations/batch", json=batch)).json()
    ids = [[item["reservation"]["id"] for item in each["items"]] for each in (one, two)]
    assert ids[0] == ids[1]


async def test_a_key_for_a_whole_batch_is_refused_because_nothing_would_read_it(pool, http):
    response = await http.post(
        "/v1/reservations/batch",
        json={"reservations": [body(pool)]},
        headers={"Idempotency-Key": "k"},
    )
    assert (response.status_code, response.json()["field"]) == (400, "Idempotency-Key")


async def test_a_batch_has_1_to_500_asks(pool, http):
    for count in (0, 501):
        response = await http.post(
            "/v1/reservations/batch", json={"reservations": [body(pool)] * count}
        )
        told = response.json()
        assert response.status_code == 400
        assert (told["field"], told["allowed"]) == ("reservations", "a list of 1 to 500 items")


@pytest.mark.parametrize(
    ("change", "field", "detail"),
    [
        (
            {"devices": [{"class": "gpu.slot"}]},
            "devices[0]",
            "devices[0]: gpu.slot atoms exist only in timeslice or mps pools",
        ),
        (
            {"devices": [{"class": "gpu.mig", "sharing": "mps"}]},
            "devices[0]",
            "devices[0]: the pool shares GPUs as mig, not mps",
        ),
        (
            {"devices": []},
            "devices",
            "devices: ask for devices, or for host resources, or for both",
        ),
        ({"duration": "1 hour"}, "duration", "duration: is not a duration"),
        ({"duration": None}, "duration", "duration: give either a duration or an end"),
        ({"start": "2026-03-02T09:00:00"}, "start", "start: has no zone, so it names no instant"),
        ({"resources": {"vcpu": "0,5"}}, "resources.vcpu", None),
        ({"resources": {"memoryGiB": "1/0"}}, "resources.memoryGiB", None),
        ({"pool_ids": ["p"]}, "pool_id", "pool_id: give either pool_id or pool_ids"),
    ],
)
async def test_what_admission_refuses_names_the_field(pool, http, change, field, detail):
    response = await http.post("/v1/reservations", json=body(pool, **change))
    told = response.json()
    assert (response.status_code, told["code"], told["field"]) == (400, "INVALID_INPUT", field)
    assert detail is None or told["detail"] == detail


async def test_what_the_quota_does_not_cover_is_403_with_its_code(pool, http):
    await http.put("/v1/quotas", json={"pool_id": pool.id, "resource": "gpu.mig", "max": 0})
    response = await http.post("/v1/reservations", json=body(pool))
    assert (response.status_code, response.json()["code"]) == (403, "QUOTA_EXCEEDED")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/pools/pool_x"),
        ("GET", "/v1/nodes/node_x"),
        ("GET", "/v1/reservations/res_x"),
        ("POST", "/v1/reservations/res_x/release"),
    ],
)
async def test_what_does_not_exist_is_404_and_named(http, method, path):
    response = await http.request(method, path)
    told = response.json()
    assert (response.status_code, told["code"]) == (404, "NOT_FOUND")
    assert told["given"] == path.split("/")[3]


async def test_a_report_about_a_node_keeps_its_name_and_updates_it(pool, with_client):
    def report(client):
        [node] = client.list_nodes().items
        with pytest.raises(InvalidInputError) as caught:
            client.report_inventory(node.id, inventory("n2", gpu("H100", 0)))
        assert (caught.value.field, caught.value.allowed) == ("node", "n1")
        updated = client.report_inventory(
            node.id, inventory("n1", gpu("H100", 0, failed="Xid 79"), gpu("H100", 1))
        )
        assert (updated.id, updated.health) == (node.id, "degraded")
        with pytest.raises(InvalidInputError) as caught:
            client.join_node(pool.id, inventory("n3", gpu("A30", 0, node="n3")))
        assert caught.value.field == "gpus[0].product"

    await with_client(report)


async def test_an_exact_number_goes_in_and_comes_out_unrounded(pool, http):
    request = body(pool, resources={"vcpu": 0.1, "memoryGiB": "1/1024"})
    made = (await http.post("/v1/reservations", json=request)).json()
    assert made["resources"] == {"vcpu": "0.1", "memoryGiB": "0.0009765625"}
    quotas = (await http.get("/v1/quotas", params={"pool_id": pool.id})).json()["items"]
    used = {each["resource"]: each["used"] for each in quotas}
    assert (used["vcpu"], used["memoryGiB"]) == ("0.1", "0.0009765625")

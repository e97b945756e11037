"""Over HTTP and through the client: a reservation ends later or sooner."""

from datetime import datetime, timedelta

import pytest
from tenants_asking import As

from apportion.testing.builders import gpu, inventory

pytestmark = pytest.mark.anyio


@pytest.fixture
def root(http, token):
    return As(http, token)


@pytest.fixture
async def made(root):
    pool = await root.post("/pools", {"name": "h100", "gpu_model": "H100"})
    body = inventory("n1", gpu("H100", 0)).model_dump(mode="json", by_alias=True)
    await root.post(f"/pools/{pool['id']}/nodes", body, 200)
    ask = {"pool_id": pool["id"], "devices": [{"class": "gpu"}], "duration": "1h"}
    return await root.post("/reservations", ask)


async def test_an_end_moves_by_a_duration_or_an_instant(root, made):
    path = f"/reservations/{made['id']}"
    start = datetime.fromisoformat(made["start"])
    longer = await root.patch(path, {"duration": "3h"})
    assert datetime.fromisoformat(longer["end"]) == start + timedelta(hours=3)
    assert longer["bookings"][0]["end"] == longer["end"]
    end = start + timedelta(hours=2)
    sooner = await root.patch(path, {"end": end.isoformat()})
    assert datetime.fromisoformat(sooner["end"]) == end
    assert await root.get(path) == sooner


async def test_who_may_only_read_moves_no_end(root, made):
    path = f"/reservations/{made['id']}"
    viewer = await root.token_of("viewer")
    refused = await viewer.refused("PATCH", path, 403, "FORBIDDEN", {"duration": "3h"})
    assert refused["details"]["right"] == "compute:reservations:update"
    member = await root.token_of("member")
    await member.patch(path, {"duration": "3h"})


async def test_a_clash_says_until_when_it_could_be(root, made):
    start = datetime.fromisoformat(made["start"]) + timedelta(hours=2)
    ask = {"pool_id": made["pool_id"], "devices": [{"class": "gpu"}], "duration": "1h"}
    await root.post("/reservations", {**ask, "start": start.isoformat()})
    path = f"/reservations/{made['id']}"
    refused = await root.refused("PATCH", path, 409, "CONFLICT", {"duration": "4h"})
    assert datetime.fromisoformat(refused["details"]["free_until"]) == start
    await root.refused("PATCH", "/reservations/res_none", 404, "NOT_FOUND", {"duration": "4h"})


async def test_what_has_no_end_has_null_in_its_place_and_is_given_one(root, http):
    policy = {"openEnded": True}
    pool = await root.post("/pools", {"name": "open", "gpu_model": "H100", "policy": policy})
    body = inventory("n2", gpu("H100", 0, node="n2")).model_dump(mode="json", by_alias=True)
    await root.post(f"/pools/{pool['id']}/nodes", body, 200)
    ask = {"pool_id": pool["id"], "devices": [{"class": "gpu"}]}
    made = await root.post("/reservations", {**ask, "open_ended": True})
    assert (made["state"], made["end"], made["open_ended"]) == ("active", None, True)
    [booking] = made["bookings"]
    assert (booking["end"], booking["held_until"]) == (None, None)
    path = f"/reservations/{made['id']}"
    assert await root.get(path) == made
    [use] = (await root.get(f"/pools/{pool['id']}/quotas/root/gpu/explain"))["reservations"]
    assert (use["id"], use["end"]) == (made["id"], None)
    changed = await root.patch(path, {"duration": "2h"})
    assert (changed["open_ended"], changed["bookings"][0]["end"]) == (False, changed["end"])
    assert changed["end"] is not None
    for wrong in ("yes", 1):
        await root.refused(
            "POST", "/reservations", 400, "INVALID_INPUT", {**ask, "open_ended": wrong}
        )


async def test_a_pool_that_does_not_permit_it_refuses_what_has_no_end(root, made):
    ask = {"pool_id": made["pool_id"], "devices": [{"class": "gpu"}], "open_ended": True}
    refused = await root.refused("POST", "/reservations", 400, "INVALID_INPUT", ask)
    assert (refused["field"], refused["given"]) == ("open_ended", True)
    assert "duration" in refused["allowed"]

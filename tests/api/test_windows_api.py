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

"""Over HTTP and through the client: where an ask is to lie, gangs, and batches that are planned."""

import pytest
from tenants_asking import As

from apportion.testing.builders import gpu, inventory

pytestmark = pytest.mark.anyio


@pytest.fixture
def root(http, token):
    return As(http, token)


@pytest.fixture
async def pool(root):
    pool = await root.post("/pools", {"name": "h100", "gpu_model": "H100"})
    for node in ("n1", "n2"):
        reports = [gpu("H100", at, node=node, numa_node=at) for at in range(2)]
        body = inventory(node, *reports).model_dump(mode="json", by_alias=True)
        await root.post(f"/pools/{pool['id']}/nodes", body, 200)
    return pool


def ask(pool, **more):
    return {"pool_id": pool["id"], "devices": [{"class": "gpu"}], "duration": "1h", **more}


async def test_a_gang_and_its_places_are_shown_as_asked(root, pool):
    more = {"placement": {"policy": "spread"}, "gang": {"members": 2, "apart": True}}
    made = await root.post("/reservations", ask(pool, **more))
    assert made["gang"] == {"members": 2, "apart": True}
    assert made["placement"] == {
        "policy": "spread",
        "together": "node",
        "apart": False,
        "movable": False,
    }
    assert [each["member"] for each in made["bookings"]] == [0, 1]
    assert len({each["node"] for each in made["bookings"]}) == 2
    assert await root.get(f"/reservations/{made['id']}") == made
    alone = await root.post("/reservations", ask(pool))
    assert (alone["gang"], [each["member"] for each in alone["bookings"]]) == (None, [0])


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"gang": {"members": 0}}, "gang.members"),
        ({"gang": {"members": 65}}, "gang.members"),
        ({"gang": {"members": "2"}}, "gang.members"),
        ({"gang": {}}, "gang.members"),
        ({"gang": {"members": 2, "spread": True}}, "gang.spread"),
        ({"placement": {"together": "rack"}}, "placement.together"),
        ({"placement": {"policy": "exact"}}, "placement.policy"),
        ({"placement": {"policy": "tightest"}}, "placement.policy"),
        ({"placement": {"apart": "yes"}}, "placement.apart"),
        ({"placement": {"together": "gpu", "apart": True}}, "placement.apart"),
    ],
)
async def test_a_bad_condition_is_refused_by_its_field(root, pool, more, field):
    refused = await root.refused("POST", "/reservations", 400, "INVALID_INPUT", ask(pool, **more))
    assert refused["field"] == field


async def test_a_policy_sees_all_members_of_a_gang(root, pool):
    text = (
        'forbid(principal, action == Action::"compute:reservations:create", resource)'
        " when { context.gpuCount > 2 };"
    )
    await root.post("/policies", {"name": "few", "text": text})
    member = await root.token_of("member")
    gang = ask(pool, gang={"members": 3})
    await member.refused("POST", "/reservations", 403, "FORBIDDEN", gang)
    assert (
        len((await member.post("/reservations", ask(pool, gang={"members": 2})))["bookings"]) == 2
    )


async def test_a_batch_says_what_was_planned(root, pool):
    exact = ask(pool, placement={"policy": "exact"})
    answer = await root.post("/reservations/batch", {"reservations": [exact, exact]}, 200)
    assert [each["reservation"]["state"] for each in answer["items"]] == ["active", "active"]
    assert answer["plans"] == [
        {
            "pool_id": pool["id"],
            "policy": "exact",
            "asks": 2,
            "placed": 2,
            "gpus": 2,
            "optimal": True,
            "bound": 2,
        }
    ]
    plain = await root.post("/reservations/batch", {"reservations": [ask(pool)]}, 200)
    assert plain["plans"] == []


async def test_when_a_gang_could_start_is_told_for_all_its_members(root, pool):
    told = await root.post("/reservations/earliest", ask(pool, gang={"members": 2}), 200)
    [there] = told["pools"]
    assert len({each["gpu_id"] for each in there["window"]["gpus"]}) == 2

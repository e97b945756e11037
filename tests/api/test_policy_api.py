"""Policies over HTTP: refused with the JSON path, judged as a whole by the dry run."""

import pytest

pytestmark = pytest.mark.anyio

POOL = {"name": "p", "gpu_model": "H100", "sharing": "mig"}
POLICY = {
    "acceptance": [{"kind": "burn"}],
    "joinAttestors": ["tpm"],
    "window": {"minimum": "2h", "maximum": "1h"},
    "migLayout": "all-1g.5gb",
    "overcommit": {"vcpu": "lots"},
    "admission": {"budgetCheck": "meter"},
    "singleTenant": "yes",
    "kubernetes": {"labels": {"a b": 1}},
    "colour": "green",
}
PATHS = [
    "policy.acceptance[0].kind",
    "policy.admission.budgetCheck",
    "policy.joinAttestors[0]",
    'policy.kubernetes.labels["a b"]',
    'policy.kubernetes.labels["a b"]',
    "policy.migLayout",
    "policy.overcommit.vcpu",
    "policy.singleTenant",
    "policy.window.minimum",
]


async def test_the_dry_run_tells_everything_and_create_the_first_of_it(http):
    asked = {"create": {**POOL, "policy": POLICY}}
    told = (await http.post("/v1/pools/validate", json=asked)).json()
    assert sorted(each["field"] for each in told["problems"]) == PATHS
    assert {each["code"] for each in told["problems"]} == {"INVALID_INPUT"}
    assert (told["valid"], told["unknown_fields"]) == (False, ["colour"])
    refused = await http.post("/v1/pools", json=asked["create"])
    assert refused.status_code == 400
    first = {key: told["problems"][0][key] for key in ("code", "detail", "field", "allowed")}
    assert {key: refused.json()[key] for key in first} == first
    assert (await http.get("/v1/pools")).json()["items"] == []


async def test_an_update_with_a_bad_policy_is_refused_whole(http):
    pool = (await http.post("/v1/pools", json={**POOL, "policy": {"maxPending": "6h"}})).json()
    change = {"version": 1, "policy": {"maxPending": "7h", "migLayout": "all-1g.5gb"}}
    refused = await http.patch(f"/v1/pools/{pool['id']}", json=change)
    assert (refused.status_code, refused.json()["field"]) == (400, "policy.migLayout")
    assert "1g.10gb" in refused.json()["allowed"]
    there = (await http.get(f"/v1/pools/{pool['id']}")).json()
    assert (there["policy"], there["version"]) == ({"maxPending": "6h"}, 1)


async def test_a_number_is_exact_however_json_writes_it(http):
    policy = {"overcommit": {"vcpu": 1.1}, "hostReserve": {"memoryGiB": 0.5}}
    made = await http.post("/v1/pools", json={**POOL, "policy": policy})
    assert (made.status_code, made.json()["policy"]) == (201, policy)

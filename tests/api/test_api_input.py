"""Bad input on every field of every operation: named, with what was given and what is allowed."""

import pytest

from apportion.server.app import create_app
from apportion.store.runtime import Runtime
from apportion.testing.builders import KEY

pytestmark = pytest.mark.anyio
DOCUMENT = create_app(Runtime(None, key=KEY), None, ready=lambda: True).openapi()
SCHEMAS = DOCUMENT["components"]["schemas"]
WITH_BODY = {
    operation["operationId"]: (method, path, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
    if "requestBody" in operation
}
# The least that each operation takes, so that only the field under test is wrong.
GOOD = {
    "defragment_pool": {"free_gpus": True},
    "create_tenant": {"id": "acme", "name": "Acme"},
    "update_tenant": {"name": "Acme"},
    "create_token": {"name": "t", "role": "viewer"},
    "rotate_token": {},
    "create_policy": {"name": "p", "text": "forbid(principal, action, resource);"},
    "update_policy": {"version": 1},
    "check_policy": {"action": "compute:pools:read"},
    "create_site": {"name": "s", "region": "r"},
    "update_site": {},
    "create_pool": {"name": "p", "gpu_model": "H100"},
    "validate_pool": {},
    "update_pool": {"version": 1},
    "offer_pool": {},
    "create_webhook": {"name": "w", "url": "https://example.com/"},
    "update_webhook": {"version": 1},
    "join_node": {"node": "n1", "host": {"logical_cpus": 8, "memory_mib": 1024}},
    "report_inventory": {"node": "n1", "host": {"logical_cpus": 8, "memory_mib": 1024}},
    "report_node": {
        "sequence": 1,
        "observed_generation": 1,
        "inventory": {"node": "n1", "host": {"logical_cpus": 8, "memory_mib": 1024}},
    },
    "update_node": {"mig_layout_from": "node"},
    "create_join_token": {"name": "machine"},
    "enroll_node": {
        "evidence": {"token": "apj_"},
        "public_key": "x",
        "inventory": {"node": "n1", "host": {"logical_cpus": 8, "memory_mib": 1024}},
    },
    "set_layout": {"layout": "all-1g.10gb"},
    "plan_layout": {"layout": "all-1g.10gb"},
    "set_quota": {"pool_id": "p", "resource": "gpu", "max": 1},
    "create_reservation": {"pool_id": "p", "duration": "1h"},
    "create_reservations": {"reservations": [{"pool_id": "p", "duration": "1h"}]},
    "find_earliest": {"pool_id": "p", "duration": "1h"},
    "find_free_windows": {"pool_id": "p", "duration": "1h"},
    "create_series": {
        "pool_id": "p",
        "recurrence": {
            "days": ["mon"],
            "start": "09:00",
            "end": "17:00",
            "zone": "UTC",
            "count": 1,
        },
    },
    "update_reservation": {},
}
# A value of a kind that no field of ours takes, for each kind that one may take.
WRONG = {"object": [], "array": {}, "string": {}, "integer": "x", "boolean": "x", None: {}}


def resolve(schema):
    while "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rpartition("/")[2]]
    return schema


def fields(schema, path=()):
    """Give the path of every field below a schema, with the schema that holds there."""
    schema = resolve(schema)
    for choice in schema.get("anyOf", [schema]):
        choice = resolve(choice)  # noqa: PLW2901
        for name, below in choice.get("properties", {}).items():
            yield (*path, name), resolve(below)
            yield from fields(below, (*path, name))
        if choice.get("type") == "array":
            yield from fields(choice["items"], (*path, 0))


def body_fields():
    for operation_id, (_, _, operation) in WITH_BODY.items():
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        for path, below in fields(schema):
            yield pytest.param(operation_id, path, below, id=f"{operation_id}-{written(path)}")


def written(path):
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else part)
    return text


def put(body, path, value):
    """Return a body with a value at a path, containers made on the way."""
    if not path:
        return value
    if isinstance(path[0], int):
        old = body[0] if isinstance(body, list) and body else None
        return [put(old, path[1:], value)]
    old = dict(body) if isinstance(body, dict) else {}
    return {**old, path[0]: put(old.get(path[0]), path[1:], value)}


async def send(http, operation_id, body):
    method, path, _ = WITH_BODY[operation_id]
    return await http.request(method, path.translate({ord("{"): None, ord("}"): None}), json=body)


def told_of(response, field):
    """Return what a refusal says about one field."""
    assert response.status_code == 400, response.text
    told = response.json()
    assert told["code"] == "INVALID_INPUT"
    if told["field"] == field:
        return told
    return next(each for each in told["details"]["errors"] if each["field"] == field)


def wrong_for(schema):
    kinds = {resolve(each).get("type") for each in schema.get("anyOf", [schema])}
    if kinds == {"object"} or "array" not in kinds | {None}:
        return [] if "object" in kinds else {}
    return WRONG[next(iter(kinds - {"null"}))]


async def test_a_wrong_kind_of_value_is_refused_in_every_field_of_every_body(http):
    tried = 0
    for case in body_fields():
        operation_id, path, schema = case.values
        wrong = wrong_for(schema)
        response = await send(http, operation_id, put(GOOD[operation_id], path, wrong))
        told = told_of(response, written(path))
        assert told["given"] == wrong, case.id
        assert told["allowed"], case.id
        tried += 1
    assert tried > 100


async def test_an_unknown_field_is_refused_wherever_an_object_is_taken(http):
    for operation_id, good in GOOD.items():
        objects = {()} | {
            case.values[1]
            for case in body_fields()
            if case.values[0] == operation_id
            and case.values[2].get("additionalProperties") is False
        }
        for path in objects:
            field = (*path, "no_such_field")
            response = await send(http, operation_id, put(good, field, 1))
            told = told_of(response, written(field))
            assert "no such field" in (told.get("message") or told["detail"])
            assert told["allowed"]


async def test_every_required_field_is_asked_for(http):
    for operation_id, (_, _, operation) in WITH_BODY.items():
        schema = resolve(operation["requestBody"]["content"]["application/json"]["schema"])
        for name in schema.get("required", ()):
            body = {key: value for key, value in GOOD[operation_id].items() if key != name}
            told = told_of(await send(http, operation_id, body), name)
            assert told.get("detail", "").endswith("is required")


@pytest.mark.parametrize(
    ("operation_id", "path", "value", "allowed"),
    [
        ("create_pool", ("name",), "A B", "1 to 63 lower-case letters, digits, dots and hyphens"),
        ("create_tenant", ("id",), "A.B", "1 to 63 lower-case letters, digits and hyphens"),
        ("create_pool", ("gpu_model",), "", "text of the form ^[A-Za-z0-9]"),
        ("create_pool", ("gpu_model",), "H100\n", "text of the form ^[A-Za-z0-9]"),
        ("create_reservation", ("name",), "\x1b[2J", "text of 1 to 200 characters of the form"),
        ("join_node", ("gpus", 0, "uuid"), "GPU\x07", "text of 1 to 200 characters of the form"),
        ("join_node", ("gpus", 0, "memory_mib"), 10**30, "a whole number of 1 to 1099511627776"),
        ("create_pool", ("class",), "metal", "metal-host, vps-host, kubernetes-host"),
        ("create_pool", ("sharing",), "MIG", "exclusive, mig, timeslice, mps"),
        (
            "create_pool",
            ("owner_quota", "gpu"),
            -1,
            "a whole number of 0 to 9007199254740992 or text such as 2.5 or 7/2 or u",
        ),
        ("create_pool", ("owner_quota", "gpu"), True, "a whole number of 0 to 9007199254740992 or"),
        (
            "create_pool",
            ("owner_quota", "gpus"),
            1,
            "gpu, gpu.mig, gpu.slot, gpu.share, gpuEquivalents, vcpu",
        ),
        ("create_pool", ("idempotency_key",), "x" * 201, "text of 1 to 200 characters"),
        ("join_node", ("host", "logical_cpus"), 0, "a whole number of 1 to 100000"),
        ("join_node", ("host", "logical_cpus"), "8", "a whole number of 1 to 100000"),
        ("join_node", ("schema",), "apportion.inventory/2", "apportion.inventory/1"),
        ("join_node", ("gpus", 0, "mig", "current"), 1, "true or false"),
        ("set_quota", ("max",), "none", "unlimited"),
        ("create_reservation", ("devices", 0, "count"), 65, "a whole number of 1 to 64"),
        ("create_reservation", ("devices", 0, "count"), 1.5, "a whole number of 1 to 64"),
        ("create_reservation", ("devices", 0, "class"), "mig", "gpu, gpu.mig, gpu.slot, gpu.share"),
        ("create_reservation", ("start",), 0, "an RFC 3339 instant such as 2026-12-01T09:00:00Z"),
        ("create_reservation", ("resources", "vcpu"), None, "a whole number or a number or text"),
    ],
)
async def test_a_value_out_of_range_is_told_the_range(http, operation_id, path, value, allowed):
    response = await send(http, operation_id, put(GOOD[operation_id], path, value))
    told = told_of(response, written(path))
    assert told.get("given") == value or len(str(value)) > 200  # a long one is cut short
    assert allowed in told["allowed"]


async def test_all_that_is_wrong_is_told_at_once_and_each_field_once(http):
    response = await send(http, "create_pool", {"name": 1, "gpu_model": "", "x": 1})
    told = response.json()["details"]
    assert [each["field"] for each in told["errors"]] == ["name", "gpu_model", "x"]
    assert told["count"] == 3


async def test_a_thousand_mistakes_are_counted_and_the_first_told(http):
    body = {"reservations": [{"devices": [{"count": 0}] * 8}] * 200}
    told = (await send(http, "create_reservations", body)).json()["details"]
    assert (len(told["errors"]), told["count"]) == (20, 3200)


async def test_a_long_value_comes_back_cut_short(http):
    told = (await send(http, "create_pool", {"name": "x" * 10_000, "gpu_model": "H100"})).json()
    assert len(told["given"]) == 200


@pytest.mark.parametrize(
    ("address", "field", "allowed"),
    [
        ("/v1/pools?limit=0", "limit", "a whole number of 1 to 1000"),
        ("/v1/pools?limit=1001", "limit", "a whole number of 1 to 1000"),
        ("/v1/pools?limit=%2B1", "limit", "a whole number of 1 to 1000"),
        ("/v1/pools?limit=1_0", "limit", "a whole number of 1 to 1000"),
        ("/v1/pools?limit=1.0", "limit", "a whole number of 1 to 1000"),
        ("/v1/pools?limit=", "limit", "a whole number of 1 to 1000"),
        ("/v1/pools?sharing=MIG", "sharing", "exclusive, mig, timeslice, mps"),
        ("/v1/pools?name=", "name", "text of 1 to 200 characters"),
        ("/v1/nodes?health=ok", "health", "healthy, degraded, no_capacity"),
        ("/v1/atoms?bookable=1", "bookable", "true or false"),
        ("/v1/atoms?class=mig", "class", "gpu, gpu.mig, gpu.slot, gpu.share"),
        ("/v1/atoms?profile=xyz", "profile", None),
        ("/v1/reservations?state=done", "state", "pending, placed, active"),
        ("/v1/usage", "start", "an RFC 3339 instant"),
        ("/v1/usage?start=now", "start", "RFC 3339"),
        ("/v1/usage?start=2026-03-02T09:00:00", "start", "RFC 3339 with a zone"),
        ("/v1/usage?start=2999-01-01T00:00:00Z", "start", "an instant before now"),
        ("/v1/usage?start=2026-01-02T00:00:00Z&end=2026-01-01T00:00:00Z", "end", None),
    ],
)
async def test_a_bad_parameter_is_named_and_told_what_it_takes(http, address, field, allowed):
    told = told_of(await http.get(address), field)
    assert allowed is None or allowed in told["allowed"]


async def test_a_key_in_the_header_has_the_limits_of_one_in_the_body(http):
    headers = {"Idempotency-Key": "x" * 201}
    response = await http.post("/v1/pools", json=GOOD["create_pool"], headers=headers)
    told = told_of(response, "Idempotency-Key")
    assert told["allowed"] == "text of 1 to 200 characters"


async def test_nothing_is_half_written_by_what_was_refused(http):
    for operation_id, good in GOOD.items():
        await send(http, operation_id, {**good, "x": 1})
    for path in ("pools", "quotas", "nodes", "reservations", "events"):
        assert (await http.get(f"/v1/{path}")).json()["items"] == []

"""Every instant that the API takes has a zone, and every duration is read by one grammar."""

import pytest
from test_api_input import DOCUMENT, GOOD, WITH_BODY, body_fields, put, resolve, told_of, written

from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio

LATER = "2026-12-01T09:00:00"
"""Without a zone, and far enough ahead for whatever takes only what is to come."""
SPELLINGS = ("4h", "90m", "P1D", "1d12h", "PT4H")
POLICY = ("maxPending", "reserveAfter", "endGrace")
OF_NODES = ("join_node", "report_inventory", "report_node", "enroll_node")
"""These take whole machines, which the example of a body has but a part of."""
WINDOW = ("minimum", "maximum", "step", "lead", "gap", "notice")


def is_instant(schema):
    choices = [schema, *(resolve(each) for each in schema.get("anyOf", ()))]
    return any(each.get("format") == "date-time" for each in choices)


IN_BODIES = [case for case in body_fields() if is_instant(case.values[2])]
IN_QUERIES = [
    pytest.param(path, parameter["name"], id=f"{operation['operationId']}-{parameter['name']}")
    for path, methods in DOCUMENT["paths"].items()
    for operation in methods.values()
    for parameter in operation.get("parameters", ())
    if parameter["in"] == "query" and is_instant({**parameter, **parameter["schema"]})
]


@pytest.fixture
async def there(with_client):
    """Make a pool with room and a reservation in it."""

    def build(client):
        pool = client.create_pool(pool_of("H100", "exclusive", name="p"))
        client.join_node(pool.id, inventory("n1", gpu("H100", 0)))
        held = client.create_reservation(ask(pool.id, device("gpu"), start=f"{LATER}Z"))
        return {"pool_id": pool.id, "reservation_id": held.id}

    return await with_client(build)


async def send(http, there, operation_id, body):
    method, path, _ = WITH_BODY[operation_id]
    for name, value in {**there, "token_id": "tok_01kzzzzzzzzzzzzzzzzzzzzzzz"}.items():
        path = path.replace("{" + name + "}", value)
    return await http.request(method, path, json=body)


def around(operation_id, path, value, pool_id):
    """Return a body that is right but for, perhaps, the value of one field."""
    body = GOOD[operation_id]
    for name, beside in {"pool_id": pool_id, "devices": [{"class": "gpu"}]}.items():
        if path[-1] in ("start", "end", "end_before", "duration") and operation_id.startswith(
            ("create", "find")
        ):
            body = put(body, (*path[:-1], name), beside)
    if path[-1] == "end" and operation_id != "update_reservation":
        body = put(body, (*path[:-1], "start"), f"{LATER}Z")
        body = put(body, (*path[:-1], "duration"), None)
    return put(body, path, value)


def test_the_walk_finds_the_instants_that_there_are():
    assert len(IN_BODIES) >= 14
    assert len(IN_QUERIES) >= 4


@pytest.mark.parametrize(("operation_id", "path", "schema"), IN_BODIES)
async def test_an_instant_in_a_body_without_a_zone_is_refused(
    http, there, operation_id, path, schema
):
    assert is_instant(schema)
    value = LATER.replace("T09", "T17")
    body = around(operation_id, path, value, there["pool_id"])
    response = await send(http, there, operation_id, body)
    if operation_id == "create_reservations":
        [each] = response.json()["items"]
        refusal = each["error"]
        assert (refusal["field"], refusal["given"]) == (path[-1], value)
    else:
        refusal = told_of(response, written(path))
        assert refusal["given"] == value
    assert "zone" in str(refusal)
    # With a zone nothing else is wrong with it.
    body = around(operation_id, path, f"{value}+05:30", there["pool_id"])
    response = await send(http, there, operation_id, body)
    assert "has no zone" not in response.text
    if operation_id in OF_NODES:
        assert response.json()["field"] != written(path)
    else:
        assert response.status_code in (200, 201), response.text


@pytest.mark.parametrize(("path", "name"), IN_QUERIES)
async def test_an_instant_in_a_query_without_a_zone_is_refused(http, there, path, name):
    path = path.replace("{gpu_id}", "GPU-nobody")
    others = {"start": "2026-01-01T00:00:00Z"} if name == "end" else {}
    told = told_of(await http.get(path, params={**others, name: LATER}), name)
    assert (told["given"], "zone" in str(told)) == (LATER, True)


@pytest.mark.parametrize("text", SPELLINGS)
@pytest.mark.parametrize(
    "operation_id",
    [
        "create_reservation",
        "create_reservations",
        "find_earliest",
        "find_free_windows",
        "update_reservation",
    ],
)
async def test_a_length_is_taken_in_every_spelling(http, there, operation_id, text):
    path = (
        ("reservations", 0, "duration") if operation_id == "create_reservations" else ("duration",)
    )
    body = around(operation_id, path, text, there["pool_id"])
    response = await send(http, there, operation_id, body)
    assert response.status_code in (200, 201), response.text
    if operation_id == "create_reservations":
        assert "reservation" in response.json()["items"][0]


@pytest.mark.parametrize("text", SPELLINGS)
async def test_what_else_lasts_is_taken_in_every_spelling(http, there, text):
    body = {"name": "t", "role": "viewer", "expires_in": text}
    made = await http.post("/v1/tokens", json=body)
    assert made.status_code == 201, made.text
    token_id = made.json()["record"]["id"]
    turned = await http.post(f"/v1/tokens/{token_id}/rotate", json={"overlap": text})
    assert turned.status_code in (200, 201), turned.text
    moved = await http.post(
        f"/v1/pools/{there['pool_id']}/defragmentation", json={"free_gpus": True, "notice": text}
    )
    assert moved.status_code == 200, moved.text
    policies = [{name: text} for name in POLICY]
    policies += [{"window": {name: text}} for name in WINDOW]
    for policy in policies:
        create = {"name": "q", "gpu_model": "H100", "policy": {"sharing": "exclusive", **policy}}
        said = await http.post("/v1/pools/validate", json={"create": create})
        assert said.json()["valid"] is True, (policy, said.text)

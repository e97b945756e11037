"""What a body must be before anything looks into it."""

import json

import pytest

pytestmark = pytest.mark.anyio
POOLS = "/v1/pools"
JSON = {"Content-Type": "application/json"}
MIB = 2**20


async def refused(http, content, *, headers=JSON, status=400):
    response = await http.post(POOLS, content=content, headers=headers)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    told = response.json()
    assert told["code"] == "INVALID_INPUT"
    return told


async def test_a_missing_body_is_said_to_be_required(http):
    told = await refused(http, b"")
    assert (told["field"], told["detail"]) == ("body", "body: is required")
    assert "gpu_model" in told["allowed"]


async def test_a_body_that_is_no_json_is_refused_with_the_place(http):
    told = await refused(http, b'{"name": "a",\n "gpu_model": }')
    assert told["detail"] == "body: is not JSON: Expecting value at line 2, column 15"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfe", "body: is not UTF-8 at byte 0"),
        ('{"name": "é"}'.encode("utf-16"), "body: is not UTF-8 at byte 0"),
        (b"[" * 100_000, "body: is nested too deeply"),
        (b"9" * 5000, "body: has a number of thousands of digits"),
        (b"{} {}", "body: is not JSON: Extra data at line 1, column 4"),
    ],
    ids=["no UTF-8", "UTF-16", "deep", "a huge number", "two documents"],
)
async def test_what_cannot_be_read_is_refused_with_the_reason(http, content, reason):
    assert (await refused(http, content))["detail"] == reason


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
async def test_what_is_no_finite_number_is_refused(http, number):
    told = await refused(http, f'{{"policy": {{"replicas": {number}}}}}'.encode())
    assert (told["given"], told["allowed"]) == (number, "finite numbers")


async def test_a_field_that_stands_twice_is_refused_instead_of_the_last_winning(http):
    told = await refused(http, b'{"name": "a", "gpu_model": "H100", "name": "b"}')
    assert told["detail"] == "name: stands twice in one object"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "a", "gpu_model": "H\0"}, "gpu_model"),
        ({"policy": {"notes": [{"x": "\ud800"}]}}, "policy.notes[0].x"),
        ({"policy": {"\0": 1}}, "policy"),
        ("\0", "body"),
    ],
)
async def test_characters_that_cannot_be_stored_are_refused_by_place(http, body, field):
    told = await refused(http, json.dumps(body).encode())
    assert told["field"] == field
    assert "cannot be stored" in told["detail"]


async def test_an_escaped_pair_of_surrogates_is_one_character(http):
    body = b'{"name": "a", "gpu_model": "H100", "policy": {"note": "\\ud83d\\ude00"}}'
    response = await http.post(POOLS, content=body, headers=JSON)
    assert response.json()["policy"] == {"note": "😀"}


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/xml",
        "application/json; charset=latin-1",
        "json",
        "application/merge-patch+json",
    ],
)
async def test_another_kind_of_body_is_415(http, kind):
    headers = {} if kind is None else {"Content-Type": kind}
    told = await refused(http, b"{}", headers=headers, status=415)
    assert told["field"] == "Content-Type"
    assert told.get("given") == kind


@pytest.mark.parametrize("kind", ["application/json;charset=UTF-8", "APPLICATION/JSON"])
async def test_json_is_known_however_it_is_written(http, kind):
    response = await http.post(
        POOLS, content=b'{"name": "a", "gpu_model": "H100"}', headers={"Content-Type": kind}
    )
    assert response.status_code == 201


async def test_a_body_that_says_it_is_too_large_is_not_read(http):
    async def body():
        raise AssertionError("read")
        yield b""

    headers = {**JSON, "Content-Length": str(16 * MIB + 1)}
    told = await refused(http, body(), headers=headers, status=413)
    assert told["allowed"] == "up to 16777216 bytes (16 MiB)"


async def test_a_body_without_a_length_is_cut_off_at_the_limit(http):
    sent = 0

    async def body():
        nonlocal sent
        for _ in range(64):
            sent += MIB
            yield b" " * MIB

    response = await http.post(POOLS, content=body(), headers=JSON)
    assert response.status_code == 413
    assert response.headers["connection"] == "close"
    assert sent <= 18 * MIB


async def test_a_body_of_exactly_the_limit_is_read(http):
    content = b'{"name": "a", "gpu_model": "H100"}'.ljust(16 * MIB)
    assert (await http.post(POOLS, content=content, headers=JSON)).status_code == 201

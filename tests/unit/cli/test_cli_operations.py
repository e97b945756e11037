"""`apportion api` as it reads an OpenAPI document, and what it refuses before it asks."""

import pytest

from apportion.cli.operations import find_operation, operations_of
from apportion.errors import InvalidInputError

DOCUMENT = {
    "paths": {
        "/v1/pools": {
            "get": {
                "operationId": "list_pools",
                "summary": "List pools",
                "x-right": "compute:pools:read",
                "parameters": [
                    {"name": "sharing", "in": "query", "schema": {"type": "string"}},
                    {"name": "state", "in": "query", "schema": {"type": "array"}},
                    {"name": "Apportion-Tenant", "in": "header", "schema": {"type": "string"}},
                ],
                "responses": {"200": {"content": {"application/json": {}}}},
            },
            "post": {
                "operationId": "create_pool",
                "requestBody": {"required": True},
                "responses": {},
            },
        },
        "/v1/pools/{pool_id}/offers/{tenant_id}": {
            "put": {
                "operationId": "offer_pool",
                "parameters": [
                    {"name": "pool_id", "in": "path", "required": True, "schema": {}},
                    {"name": "tenant_id", "in": "path", "required": True, "schema": {}},
                ],
                "requestBody": {},
            }
        },
        "/v1/events/stream": {
            "get": {
                "operationId": "stream_events",
                "responses": {"200": {"content": {"text/event-stream": {}}}},
            }
        },
    }
}


def test_operations_have_their_parameters_right_and_body():
    listed, created, offered, _ = operations_of(DOCUMENT)
    assert (listed.id, listed.method, listed.right) == ("list_pools", "GET", "compute:pools:read")
    assert [(each.name, each.is_list) for each in listed.parameters] == [
        ("sharing", False),
        ("state", True),
    ]
    assert (listed.has_body, created.needs_body, offered.needs_body) == (False, True, False)
    assert offered.has_body


def test_parts_of_a_path_cannot_lead_elsewhere():
    offered = find_operation(operations_of(DOCUMENT), "offer_pool")
    path = offered.path_with({"pool_id": ["../tokens?x"], "tenant_id": ["a b"]})
    assert path == "/v1/pools/..%2Ftokens%3Fx/offers/a%20b"


def test_an_unknown_operation_suggests_near_ones():
    with pytest.raises(InvalidInputError, match="no such operation") as caught:
        find_operation(operations_of(DOCUMENT), "create_pol")
    assert "create_pool" in str(caught.value)
    with pytest.raises(InvalidInputError, match="api --list"):
        find_operation(operations_of(DOCUMENT), "zzz")


def test_a_stream_is_sent_to_the_command_that_shows_it():
    with pytest.raises(InvalidInputError, match="event watch"):
        find_operation(operations_of(DOCUMENT), "stream_events")


def test_only_what_may_be_done_twice_is_repeated():
    listed, created, offered, _ = operations_of(DOCUMENT)
    assert listed.is_repeatable(None)
    assert offered.is_repeatable({"quota": {}})
    assert created.is_repeatable({"idempotency_key": "k"})
    assert not created.is_repeatable({"name": "a"})

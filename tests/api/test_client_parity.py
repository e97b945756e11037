"""Both clients have each operation, take what it takes, give what it gives, import no server."""

import inspect
import subprocess
import sys
from datetime import datetime
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
from pydantic import BaseModel

from apportion.client import AsyncClient, Client, Page
from apportion.doors.rights import PUBLIC, RIGHTS
from apportion.server.app import create_app
from apportion.store.runtime import Runtime
from apportion.testing.builders import KEY

DOCUMENT = create_app(Runtime(None, key=KEY), None, ready=lambda: True).openapi()
OPERATIONS = {
    operation["operationId"]: operation
    for path in DOCUMENT["paths"].values()
    for operation in path.values()
}
# What Python or plain English names otherwise than the API.
RENAMED = {
    "class": "class_",
    "from": "from_",
    "type": "type_prefix",
    ("list_reservations", "state"): "states",
}
# An end of the server's, as at a restart, looks like having caught up: the list tells them apart.
LEFT_OUT = {"stream_events": {"until"}}
# Whose answer is no one model of the API's, or comes apart.
OWN_ANSWER = {"get_health", "get_readiness", "create_reservations", "stream_events"}


def methods(kind):
    found = {name for name, _ in inspect.getmembers(kind, inspect.isfunction)}
    return {name for name in found if not name.startswith("_")} - {"close", "aclose"}


def parameters(operation_id, *places):
    """Give what the client calls an operation's parameters, each with its schema."""
    return {
        RENAMED.get((operation_id, each["name"]), RENAMED.get(each["name"], each["name"])): each[
            "schema"
        ]
        for each in OPERATIONS[operation_id].get("parameters", ())
        if each["in"] in places
    }


def model_named(schema):
    """Give the name of the one model in a schema, in it or in its list of items."""
    for each in (schema, *schema.get("anyOf", ())):
        if "$ref" in each:
            name = each["$ref"].rsplit("/", 1)[1]
            fields = DOCUMENT["components"]["schemas"][name].get("properties", {})
            if {*fields} == {"items", "next_cursor"}:
                return model_named(fields["items"]["items"])
            return name.removesuffix("-Input").removesuffix("-Output")
    return None


def models(annotation):
    """Give the names of the models in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation.__name__}
    return {name for each in get_args(annotation) for name in models(each)}


def choices(annotation):
    """Give the values that an annotation lets through, or its plain types."""
    if get_origin(annotation) is Literal:
        return {*get_args(annotation)}
    if inner := get_args(annotation):
        return {each for part in inner for each in choices(part)} - {type(None)}
    return {annotation}


def choices_of_schema(schema):
    parts = schema.get("anyOf", [schema.get("items", schema)])
    found = set()
    for each in (part for part in parts if part.get("type") != "null"):
        inner = each.get("items", each)
        plain = {"string": str, "boolean": bool, "integer": int}[inner["type"]]
        found |= {inner["const"]} if "const" in inner else {*inner.get("enum", [plain])}
        if inner.get("format") == "date-time":
            found.add(datetime)
    return found


def content_schema(part):
    return part["content"]["application/json"]["schema"]


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_each_operation_is_a_method_and_each_method_an_operation(kind):
    assert methods(kind) == {*OPERATIONS} == {*RIGHTS, *PUBLIC}


@pytest.mark.parametrize("operation_id", OPERATIONS)
def test_a_method_takes_what_its_operation_takes_and_no_more(operation_id):
    taken = inspect.signature(getattr(Client, operation_id)).parameters
    named = {name for name, each in taken.items() if each.kind is each.KEYWORD_ONLY}
    placed = [name for name in taken if name not in {*named, "self"}]
    filters = {*parameters(operation_id, "query")} - LEFT_OUT.get(operation_id, set())
    named.discard("last_event_id")  # a header
    if operation_id == "get_usage":
        assert set(placed) == filters
        return
    assert named == filters
    path = [*parameters(operation_id, "path")]
    assert placed[: len(path)] == path
    body = OPERATIONS[operation_id].get("requestBody")
    assert len(placed) - len(path) == (0 if body is None else 1)


@pytest.mark.parametrize("operation_id", OPERATIONS)
def test_a_filter_takes_the_values_that_its_operation_takes(operation_id):
    hints = get_type_hints(getattr(Client, operation_id))
    for name, schema in parameters(operation_id, "query").items():
        if name not in LEFT_OUT.get(operation_id, ()):
            assert choices(hints[name]) == choices_of_schema(schema), name


@pytest.mark.parametrize("operation_id", OPERATIONS)
def test_a_body_is_of_the_kind_that_its_operation_takes(operation_id):
    body = OPERATIONS[operation_id].get("requestBody")
    if body is None or operation_id == "create_reservations":
        return
    hints = get_type_hints(getattr(Client, operation_id))
    [taken] = [
        found for name, each in hints.items() if name != "return" and (found := models(each))
    ]
    assert taken == {model_named(content_schema(body))}


@pytest.mark.parametrize("operation_id", sorted({*OPERATIONS} - OWN_ANSWER))
def test_an_answer_is_of_the_kind_that_its_operation_gives(operation_id):
    [status] = [each for each in OPERATIONS[operation_id]["responses"] if each.startswith("2")]
    given = content_schema(OPERATIONS[operation_id]["responses"][status])
    answer = get_type_hints(getattr(Client, operation_id))["return"]
    assert models(answer) == {model_named(given)}
    # These two are one object, with a page of what belongs to it.
    with_page = operation_id in ("explain_quota", "get_series")
    is_list = "cursor" in parameters(operation_id, "query") and not with_page
    assert (get_origin(answer) is Page) == is_list


def test_the_client_needs_neither_the_web_framework_nor_the_database_driver():
    code = (
        "import sys, apportion.client\n"
        "print([name for name in sys.modules if name.split('.')[0] in"
        " {'fastapi', 'starlette', 'psycopg', 'psycopg_pool', 'uvicorn', 'structlog', 'cedarpy',"
        " 'asyncio'}])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"

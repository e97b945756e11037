"""The OpenAPI document is a promise: schemathesis tries each operation with good and bad data.

It fails on an answer that is not documented (status, media type, schema), on any status of 500 and
above, and on bad data that is taken.
"""

from copy import deepcopy

import pytest
import schemathesis
from api_server import served
from hypothesis import HealthCheck, given, settings
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from apportion.client import Client
from apportion.server.app import create_app
from apportion.store.runtime import Runtime
from apportion.testing.builders import KEY, ask, device, gpu, inventory, pool_of

DOCUMENT = create_app(Runtime(None, key=KEY), None, ready=lambda: True).openapi()


def load():
    """Load the document without its tokens: a token made wrong would hide all other mistakes."""
    document = deepcopy(DOCUMENT)
    for path in document["paths"].values():
        for operation in path.values():
            del operation["security"]
    return schemathesis.openapi.from_dict(document)


OPERATIONS = {
    each.ok().definition.raw["operationId"]: each.ok() for each in load().get_all_operations()
}


def takes_bad_data(operation):
    """Tell whether some input can be wrong: an id in a path is any text."""
    parameters = operation.get("parameters", ())
    return "requestBody" in operation or any(each["in"] != "path" for each in parameters)


CASES = [
    (operation_id, mode)
    for operation_id, operation in OPERATIONS.items()
    for mode in GenerationMode
    if mode is GenerationMode.POSITIVE or takes_bad_data(operation.definition.raw)
]
EXAMPLES = 12


@pytest.fixture(scope="module")
async def module_dsn(anyio_backend, template):
    async with template.clone() as dsn:
        yield dsn


@pytest.fixture(scope="module")
def server(anyio_backend, module_dsn):
    """Give a server that has one object of each kind, and their ids."""
    with served(module_dsn) as there, Client(there.url, there.token) as client:
        pool = client.create_pool(pool_of("H100", "mig", name="contract"))
        node = client.join_node(pool.id, inventory("n1", gpu("H100", 0, "3g.40gb@4")))
        reserved = client.create_reservation(
            ask(pool.id, device("gpu.mig", profile="3g.40gb"), duration="1h")
        )
        yield there, {"pool_id": pool.id, "node_id": node.id, "reservation_id": reserved.id}


@pytest.mark.parametrize(("operation_id", "mode"), CASES)
def test_every_answer_is_as_documented(server, operation_id, mode):
    there, ids = server
    operation = OPERATIONS[operation_id]
    # A schema cannot say that a pool must exist or that a duration must have its grammar.
    excluded = [positive_data_acceptance]
    if operation_id == "create_reservations":
        # Each ask of a batch stands alone: one that is wrong is told in its place, under 200.
        excluded.append(negative_data_rejection)
    known = {name: value for name, value in ids.items() if f"{{{name}}}" in operation.path}

    @given(case=operation.as_strategy(mode))
    @settings(
        max_examples=EXAMPLES,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    def asked(case):
        # An id that exists lets the case reach what comes after "no such object".
        if known and mode is GenerationMode.POSITIVE:
            case.path_parameters.update(known)
        if operation_id == "stream_events":
            case.query.setdefault("until", "now")  # else it waits for what happens next
        case.call_and_validate(
            base_url=there.url,
            headers={"Authorization": f"Bearer {there.token}"},
            excluded_checks=excluded,
        )

    asked()

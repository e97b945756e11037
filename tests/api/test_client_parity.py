"""The client has a method for each operation, takes its parameters, and imports no server."""

import inspect
import subprocess
import sys

from apportion.client import Client
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
RENAMED = {"class": "class_", "state": "states", "type": "type_prefix"}


def test_each_operation_is_a_method_and_each_method_an_operation():
    methods = {name for name, _ in inspect.getmembers(Client, inspect.isfunction)}
    public = {name for name in methods if not name.startswith("_")} - {"close"}
    assert public == {*OPERATIONS}


def test_each_method_takes_what_its_operation_takes():
    for operation_id, operation in OPERATIONS.items():
        taken = {*inspect.signature(getattr(Client, operation_id)).parameters}
        wanted = {
            RENAMED.get(each["name"], each["name"])
            for each in operation.get("parameters", ())
            if each["in"] != "header"
        }
        assert wanted <= taken, operation_id


def test_the_client_needs_neither_the_web_framework_nor_the_database_driver():
    code = (
        "import sys, apportion.client\n"
        "print([name for name in sys.modules if name.split('.')[0] in"
        " {'fastapi', 'starlette', 'psycopg', 'psycopg_pool', 'uvicorn', 'structlog'}])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"

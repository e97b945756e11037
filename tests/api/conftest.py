"""The application on a real database, and ways to ask it: raw HTTP, and the typed client."""

import logging
from collections.abc import Callable

import anyio
import httpx2
import pytest
import structlog

from apportion.authority.service import ROOT, issue_token
from apportion.client import Client
from apportion.reservations.service import Reservations
from apportion.server.app import create_app
from apportion.store.connections import transaction
from apportion.store.runtime import Runtime
from apportion.testing.builders import KEY, Clock
from in_loop import BASE, InLoop


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def runtime(db, clock):
    return Runtime(db, clock, key=KEY)


@pytest.fixture
async def token(runtime):
    async with transaction(runtime.db) as connection:
        return (await issue_token(runtime, connection, tenant_id=ROOT, name="test")).token


@pytest.fixture
def reservations(runtime):
    return Reservations(runtime)


@pytest.fixture
def app(runtime, reservations):
    return create_app(runtime, reservations, ready=lambda: True)


@pytest.fixture
async def http(app, token):
    """Give raw HTTP with a valid token."""
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app),
        base_url=BASE,
        headers={"Authorization": f"Bearer {token}"},
    ) as http:
        yield http


@pytest.fixture
def with_client(app, token):
    """Run a function of the synchronous client in a thread of its own."""

    async def run(work: Callable[[Client], object]):
        with Client(BASE, token, transport=InLoop(app)) as client:
            return await anyio.to_thread.run_sync(work, client)

    return run


@pytest.fixture
def log_as_before():
    """Leave the log of this process as it was, whoever sets it up."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()

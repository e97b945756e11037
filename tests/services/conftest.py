"""What the tests of the services share."""

import pytest
from services_world import world_on
from webhooks_receiver import receiving
from webhooks_world import Hooks


@pytest.fixture
async def world(db):
    async with world_on(db) as world:
        yield world


@pytest.fixture
async def acme(world):
    return await world.tenant("acme")


@pytest.fixture
async def beta(world):
    return await world.tenant("beta")


@pytest.fixture
async def lab(world, acme):
    return await world.tenant("acme-lab", above=acme.tenant_id)


@pytest.fixture
def receiver():
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def hooks(world, receiver):
    return Hooks(world, receiver)

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
def receiver():
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def hooks(world, receiver):
    return Hooks(world, receiver)

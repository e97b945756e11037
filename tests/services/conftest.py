"""What the tests of the services share."""

import pytest
from services_world import world_on


@pytest.fixture
async def world(db):
    async with world_on(db) as world:
        yield world

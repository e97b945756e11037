"""A fleet file, planned, applied and exported against the real application."""

import anyio
import pytest
from fleet_world import FLEET, titles, world

pytestmark = pytest.mark.anyio


@pytest.fixture
def in_thread(app, token):
    """Run a function of a world in a thread of its own."""

    async def run(work):
        return await anyio.to_thread.run_sync(work, world(app, token))

    return run


async def test_a_plan_does_in_order_what_is_missing_and_then_nothing(in_thread):
    def work(fleet):
        first = fleet.plan(FLEET)
        assert first.refusals == []
        assert titles(first) == [
            "create tenant root/acme",
            "create tenant root/acme-vision",
            "create site root/fra1",
            "create site acme/basement",
            "create pool root/h100",
            "create pool acme/cut",
            "create pool root/slots",
            "create offer root/h100 acme",
            "create offer acme/cut acme-vision",
            "create policy acme/at-most-8",
        ]
        assert titles(fleet.plan(FLEET)) == titles(first)  # a plan changes nothing
        fleet.apply(FLEET)
        assert titles(fleet.plan(FLEET)) == []
        # The site that every server begins with, in which nothing is.
        assert titles(fleet.plan(FLEET, prune=True)) == ["delete site root/main"]
        exported = fleet.export()
        assert titles(fleet.plan(exported, prune=True)) == []
        fleet.apply(exported, prune=True)
        assert fleet.export() == exported
        return exported

    exported = await in_thread(work)
    print(exported)

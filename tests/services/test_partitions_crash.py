"""Whatever statement a step of the gate dies at, nothing is half-done, and the next makes up."""

from contextlib import suppress

import pytest
from partitions_world import LARGE, SMALL, Nodes
from test_services_crash import Killer

from apportion.errors import UnavailableError
from apportion.testing.builders import pool_of

pytestmark = pytest.mark.anyio
ROWS = "SELECT state, granted, pending FROM node_layouts"
HOLDS = """
    SELECT 1 FROM bookings WHERE partition_id IS NOT NULL AND voided_at IS NULL
        AND upper_inf(during)"""


async def test_a_gate_and_a_report_that_die_anywhere_are_made_up_for(world, monkeypatch):
    mig = Nodes(world, await world.pool(pool_of("H100", "mig", migLayout=SMALL)))
    await mig.join("n1", gpus=2)
    killer = Killer(monkeypatch)
    died = 0
    for statement in range(1, 40):
        layout = LARGE if statement % 2 else SMALL
        await mig.change(migLayout=layout)
        [before] = await world.rows(ROWS)
        killer.left = statement
        with suppress(UnavailableError):
            await world.gate.advance()
        killed, killer.left = killer.left is not None and killer.left <= 0, None
        [after] = await world.rows(ROWS)
        assert after["state"] in (before["state"], "granted")
        assert len(await world.rows(HOLDS)) == (2 if after["state"] == "granted" else 0)
        died += killed
        await world.gate.advance()
        assert await mig.state() == "granted"
        node = mig.nodes["n1"]
        node.read(await mig.spec("n1"))
        node.apply()
        message = node.report()
        killer.left = statement
        try:
            await mig.deliver("n1", message)
        except UnavailableError:
            killer.left = None
            assert await mig.state() == "granted"
            assert (await mig.deliver("n1", message)).accepted
        killer.left = None
        assert await mig.state() == "settled"
        assert await world.rows(HOLDS) == []
        world.clock.advance(minutes=1)
    assert died > 20

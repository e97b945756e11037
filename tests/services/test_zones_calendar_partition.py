"""A change of what a GPU is cut into stands in its calendar like whatever else holds it."""

import pytest
from partitions_world import HOUR, LARGE, Nodes

from apportion.reservations.calendar import gpu_calendar
from apportion.testing.builders import MONDAY, pool_of

pytestmark = pytest.mark.anyio


async def test_a_scheduled_change_holds_the_gpu_from_the_last_end_on(world):
    mig = Nodes(world, await world.pool(pool_of("H100", "mig")))
    await mig.join("n1", gpus=1)
    held = await mig.place(start=MONDAY + HOUR, duration="3h")
    await mig.change(migLayout=LARGE)
    await mig.world.gate.advance()
    gpu_id = held.bookings[0].gpu_id
    told = await gpu_calendar(world.runtime, world.caller, gpu_id, None, None)
    first, change = told.windows
    assert (first.what, first.reservation_id, first.end) == (
        "reservation",
        held.id,
        MONDAY + 4 * HOUR,
    )
    assert (change.what, change.reservation_id, change.name) == ("partition", None, None)
    assert (change.units, change.start, change.end) == ("{[0,)}", MONDAY + 4 * HOUR, None)
    assert change.held_until is None

"""What the demo says at its end is read from the database."""

from fractions import Fraction

import pytest

from apportion.demo.summary import summarize
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]


async def test_each_pool_has_a_line_of_what_is_there_and_what_is_held(world):
    pool = await world.pool(
        pool_of("H100", name="a"), inventory("n1", gpu("H100", 0), gpu("H100", 1))
    )
    for _ in range(3):
        await world.create(ask(pool.id, device(), duration="1h"))
    told = await summarize(world.runtime, world.reservations, world.caller)
    [line] = told.pools
    assert (line.name, line.nodes, line.gpus, line.stale_gpus) == ("a", 1, 2, 0)
    assert (line.allocated, line.live) == (Fraction(2), 2)
    assert sum(told.waiting.values()) == 1

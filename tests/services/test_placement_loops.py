"""The clock's loop of a server: whatever a step runs into, the next one makes up for it."""

import asyncio
import io
from contextlib import redirect_stdout

import pytest

from apportion.server.system import _tick
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio


async def test_a_step_that_breaks_is_made_up_for_by_the_next(world, monkeypatch):
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))
    view = await world.create(ask(pool.id, device(), duration="1h"))
    world.clock.advance(hours=2)
    lifecycle = world.reservations.lifecycle
    advance, broke, done = lifecycle.advance, asyncio.Event(), asyncio.Event()

    async def breaks_once():
        if not broke.is_set():
            broke.set()
            lifecycle.hint.set()
            raise ZeroDivisionError
        await advance()
        done.set()

    monkeypatch.setattr(lifecycle, "advance", breaks_once)
    with redirect_stdout(io.StringIO()) as said:
        loop = asyncio.create_task(_tick(world.reservations))
        async with asyncio.timeout(10):
            await done.wait()
        loop.cancel()
        await asyncio.wait([loop])
    assert (await world.get(view)).state == "ended"
    assert "ZeroDivisionError" in said.getvalue()

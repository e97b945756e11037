"""The clock's loop of a server: whatever a step runs into, the next one makes up for it."""

import asyncio
import io
from contextlib import redirect_stdout

import pytest

from apportion.partitions.service import Gate
from apportion.server.system import _tick
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio


async def ticks_until(done, gate, reservations):
    """Let the loop run until ``done`` is set, and return what it logged."""
    with redirect_stdout(io.StringIO()) as said:
        lifecycle = reservations.lifecycle
        steps = {"gate": gate.advance, "lifecycle": lifecycle.advance}
        loop = asyncio.create_task(_tick(steps, lifecycle.hint))
        async with asyncio.timeout(20):
            await done.wait()
        loop.cancel()
        await asyncio.wait([loop])
    return said.getvalue()


@pytest.fixture
async def over(world):
    """Give a reservation whose window is over, though no tick has said so."""
    pool = await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))
    view = await world.create(ask(pool.id, device(), duration="1h"))
    world.clock.advance(hours=2)
    return view


async def test_a_step_that_breaks_is_made_up_for_by_the_next(world, over, monkeypatch):
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
    said = await ticks_until(done, Gate(world.runtime), world.reservations)
    assert "ZeroDivisionError" in said
    assert (await world.get(over)).state == "ended"


async def test_one_kind_of_step_that_always_breaks_keeps_no_other_from_its_work(
    world, over, monkeypatch
):
    gate, lifecycle = Gate(world.runtime), world.reservations.lifecycle
    advance, done = lifecycle.advance, asyncio.Event()

    async def breaks():
        raise ZeroDivisionError

    async def notes():
        await advance()
        done.set()

    monkeypatch.setattr(gate, "advance", breaks)
    monkeypatch.setattr(lifecycle, "advance", notes)
    await ticks_until(done, gate, world.reservations)
    assert (await world.get(over)).state == "ended"

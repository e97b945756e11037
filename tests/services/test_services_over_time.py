"""Slots over time: what never exceeds the count at any instant is placed, in any order."""

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st
from services_world import open_world

from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

HOURS = 8

WINDOWS = st.lists(
    st.tuples(st.integers(1, HOURS - 1), st.integers(1, 4), st.integers(1, 3)).map(
        lambda drawn: (drawn[0], min(drawn[0] + drawn[1], HOURS), drawn[2])
    ),
    min_size=3,
    max_size=14,
)


def level(windows, hour):
    return sum(units for start, end, units in windows if start <= hour < end)


def those_that_fit(windows, slots):
    """Keep, in order, each that never raises the level above the slots."""
    kept = []
    for window in windows:
        if all(level([*kept, window], hour) <= slots for hour in range(window[0], window[1])):
            kept.append(window)
    return kept


async def place(world, number, slots, windows):
    """Ask for each window in turn; return which of them were placed."""
    name = f"pool-{number}"
    pool = await world.pool(
        pool_of("T4", "timeslice", name=name, replicas=slots),
        inventory("n1", gpu("T4", 0, node=name)),
    )
    views = [
        await world.create(
            ask(
                pool.id,
                device("gpu.slot", units=units),
                start=MONDAY + timedelta(hours=start),
                end=MONDAY + timedelta(hours=end),
            )
        )
        for start, end, units in windows
    ]
    return [window for view, window in zip(views, windows, strict=True) if view.state == "placed"]


def test_what_never_exceeds_the_count_is_placed_in_any_order(template):
    numbers = count()

    @settings(max_examples=settings().max_examples // 2, deadline=None)
    @given(windows=WINDOWS, slots=st.integers(3, 6), data=st.data())
    def property_holds(windows, slots, data):
        fitting = data.draw(st.permutations(those_that_fit(windows, slots)))
        placed = runner.run(place(world, next(numbers), slots, fitting))
        assert placed == list(fitting)

    @settings(max_examples=settings().max_examples // 2, deadline=None)
    @given(windows=WINDOWS, slots=st.integers(3, 6))
    def the_rest_waits(windows, slots):
        placed = runner.run(place(world, next(numbers), slots, windows))
        assert placed == those_that_fit(windows, slots)

    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        world = runner.run(open_world(stack, template))
        try:
            property_holds()
            the_rest_waits()
            assert runner.run(world.findings()) == []
        finally:
            runner.run(stack.aclose())

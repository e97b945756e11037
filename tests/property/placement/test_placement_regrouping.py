"""Regrouping: no way needs fewer moves, by trying them all; and what is told can be done."""

from itertools import product

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from placement_judge import Booking, Gpu, Node, World
from placement_strategies import LAYOUTS

from apportion.placement import (
    FOREVER,
    Ask,
    DeviceAsk,
    Expression,
    Movable,
    Offer,
    Selector,
    Wanted,
    regroup,
)

ATOMS = LAYOUTS[-1]
SOLVED = settings(max_examples=max(10, settings.default.max_examples // 4))


def profile(name):
    return Ask(
        (DeviceAsk("gpu.mig", selector=Selector((Expression("migProfile", "In", (name,)),))),)
    )


@st.composite
def fleets(draw):
    """Draw MIG GPUs of one node each or of one, and who lies on them in what window."""
    gpus = [Gpu(at, "mig", 8, index=at, atoms=ATOMS) for at in range(draw(st.integers(1, 2)))]
    nodes = [Node(at, (gpu,)) for at, gpu in enumerate(gpus)]
    world = World(tuple(nodes) if draw(st.booleans()) else (Node(0, tuple(gpus)),))
    for number in range(draw(st.integers(0, 4))):
        gpu = draw(st.sampled_from(gpus))
        units, name = draw(st.sampled_from(ATOMS))
        start = draw(st.integers(0, 2))
        booking = Booking(
            gpu.id,
            (f"{name}/{number}", 0),
            start,
            start + draw(st.integers(1, 4)),
            frozenset(units),
        )
        if not any(booking.meets(other) for other in world.bookings):
            world.bookings.append(booking)
    return world


def options(world, name):
    return [
        (gpu.id, frozenset(units))
        for node in world.nodes
        for gpu in node.gpus
        for units, own in gpu.atoms
        if own == name
    ]


def fewest(world, movable, wanted, now):
    """Try every way: the most that can be placed, and the fewest moves for that."""
    fixed = [b for b in world.bookings if b.key[0] not in movable]
    items = [
        (b.key[0].split("/")[0], max(b.start, now), b.end, (b.gpu, b.units))
        for b in world.bookings
        if b.key[0] in movable
    ]
    items += [(name, start, end, None) for name, start, end in wanted]
    best = None
    choices = [options(world, name) + ([None] if was is None else []) for name, _, _, was in items]
    for ways in product(*choices):
        placed = [
            Booking(way[0], ("x", 0), start, end, way[1])
            for (_, start, end, _), way in zip(items, ways, strict=True)
            if way is not None
        ]
        everything = [*fixed, *placed]
        if any(a.meets(b) for i, a in enumerate(everything) for b in everything[i + 1 :]):
            continue
        moves = sum(
            was is not None and way != was for (_, _, _, was), way in zip(items, ways, strict=True)
        )
        rank = (sum(way is None for way in ways), moves)
        best = rank if best is None or rank < best else best
    return best


@SOLVED
@given(st.data(), fleets())
def test_no_way_makes_as_much_room_with_fewer_moves(data, world):
    now = data.draw(st.integers(0, 1))
    live = [b for b in world.bookings if b.end > now]
    world.bookings[:] = live
    index = world.index()
    holders = data.draw(
        st.lists(st.sampled_from([b.key[0] for b in live] or ["none"]), max_size=3, unique=True)
    )
    movable = [
        Movable(b.key[0], profile(b.key[0].split("/")[0]), (b.gpu,), max(b.start, now), b.end)
        for b in live
        if b.key[0] in holders
    ]
    wanted = [("4g", now, now + data.draw(st.integers(1, 4)))]
    before = index.largest("gpu.mig", now, FOREVER, now)
    plan = regroup(
        index,
        [Wanted(name, profile(name), start, end) for name, start, end in wanted],
        movable,
        now,
    )
    judged = fewest(world, {m.holder for m in movable}, wanted, now)
    event(f"{judged}")
    assert (len(plan.unplaced), len(plan.moves)) == judged
    assert plan.optimal
    assert plan.bound == len(plan.moves)
    held = {(gpu.id, key) for node in index.nodes.values() for gpu in node.gpus for key in gpu.held}
    assert held == {(b.gpu, b.key) for b in live}, "telling changed what is held"
    for moved, offer in plan.moves:
        world.bookings[:] = [b for b in world.bookings if b.key[0] != moved.holder]
        _take(world, offer, moved.holder, moved.start, moved.end)
    for each, offer in plan.placed:
        _take(world, offer, "new", each.start, each.end)
    assert world.clashes() == []
    then = world.index().largest("gpu.mig", now, FOREVER, now)
    assert (plan.largest_now, plan.largest_then) == ((before,), (then,))


def _take(world, offer: Offer, holder, start, end):
    for number, piece in enumerate(offer.pieces):
        units = frozenset(u for u in range(8) if piece.units >> u & 1)
        world.bookings.append(Booking(piece.gpu, (holder, number), start, end, units))


@pytest.mark.parametrize(
    ("names", "freed", "moves"),
    [(["1g", "1g"], 1, 1), (["2g", "1g", "1g"], 2, 2), (["4g", "1g"], 0, 0), (["1g"], 0, 0)],
)
def test_small_ones_are_gathered_so_that_whole_gpus_are_free(names, freed, moves):
    units = {"1g": {0}, "2g": {0, 1}, "4g": {0, 1, 2, 3}}
    world = World(tuple(Node(at, (Gpu(at, "mig", 8, atoms=ATOMS),)) for at in range(len(names))))
    world.bookings = [
        Booking(at, (f"{name}/{at}", 0), 0, 9, frozenset(units[name]))
        for at, name in enumerate(names)
    ]
    movable = [Movable(b.key[0], profile(b.key[0][:2]), (b.gpu,), 0, 9) for b in world.bookings]
    plan = regroup(world.index(), [], movable, 0)
    assert (plan.freed, len(plan.moves), plan.optimal) == (freed, moves, True)
    [then] = plan.largest_then
    assert (then.profile == "4g") == (freed > 0)


def test_a_gpu_is_not_freed_by_taking_another_that_was_free():
    world = World((Node(0, tuple(Gpu(at, "slots", 4, index=at) for at in range(2))),))
    world.bookings = [Booking(0, (f"r{at}", 0), 0, 9, frozenset({at})) for at in range(2)]
    one = Ask((DeviceAsk("gpu.slot"),))
    plan = regroup(world.index(), [], [Movable(f"r{at}", one, (0,), 0, 9) for at in range(2)], 0)
    assert (plan.freed, plan.moves, plan.optimal) == (0, (), True)
    assert plan.largest_then == plan.largest_now


def test_slots_of_two_gpus_are_gathered_on_one():
    world = World((Node(0, tuple(Gpu(at, "slots", 4, index=at) for at in range(2))),))
    world.bookings = [Booking(at, (f"r{at}", 0), 0, 9, frozenset({at})) for at in range(2)]
    one = Ask((DeviceAsk("gpu.slot"),))
    movable = [Movable(f"r{at}", one, (at,), 0, 9) for at in range(2)]
    want = Wanted("all", Ask((DeviceAsk("gpu.slot", 1, 4),)), 1, 5)
    plan = regroup(world.index(), [want], movable, 0)
    assert [each.key for each, _ in plan.placed] == ["all"]
    assert len(plan.moves) == 1
    assert plan.optimal


def test_nobody_moves_where_nothing_is_gained():
    world = World((Node(0, (Gpu(0, "slots", 4),)),))
    world.bookings = [Booking(0, ("r0", 0), 0, 9, frozenset({0}))]
    movable = [Movable("r0", Ask((DeviceAsk("gpu.slot"),)), (0,), 0, 9)]
    want = Wanted("all", Ask((DeviceAsk("gpu.slot", 1, 4),)), 1, 5)
    plan = regroup(world.index(), [want], movable, 0)
    assert (plan.moves, plan.placed, plan.unplaced) == ((), (), (want,))

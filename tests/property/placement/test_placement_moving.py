"""Making room by moving one: what is told can be done, and telling changes nothing."""

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from placement_judge import Gpu, Node, World
from placement_strategies import LAYOUTS, asks, windows, worlds

from apportion.placement import Ask, DeviceAsk, Expression, Movable, Offer, Selector, Verdict


def profile(name):
    return Ask(
        (DeviceAsk("gpu.mig", selector=Selector((Expression("migProfile", "In", (name,)),))),)
    )


def held_of(index):
    return {
        (gpu.id, key): held
        for node in index.nodes.values()
        for gpu in node.gpus
        for key, held in gpu.held.items()
    }, {node.id: dict(node.held) for node in index.nodes.values()}


def lift(world, index, holder):
    """Take away all that one holds: here, and in the index."""
    for booking in [b for b in world.bookings if b.key[0] == holder]:
        world.bookings.remove(booking)
        index.free(booking.gpu, booking.key)
    for host in [h for h in world.hosts if h.holder == holder]:
        world.hosts.remove(host)
        index.free_host(host.node, holder)


def check(world, offer, ask, window):
    world.check(offer, ask, 0)
    [node] = [node for node in world.nodes if node.id == offer.node]
    assert world.hosts_fit(node, ask, *window)


@given(st.data(), worlds(max_nodes=2), windows)
def test_what_is_told_can_be_done_and_telling_changes_nothing(data, world, window):
    index = world.index()
    movable = []
    for number in range(data.draw(st.integers(1, 4))):
        ask, own = data.draw(asks(world)), data.draw(windows)
        offer = index.place(ask, *own, 0)
        if isinstance(offer, Offer) and offer.pieces:
            world.apply(index, offer, ask, own, f"r{number}")
            gpus = tuple(sorted({piece.gpu for piece in offer.pieces}))
            movable.append(Movable(f"r{number}", ask, gpus, *own))
    ask = data.draw(asks(world))
    index.advance(0)
    before, freed = held_of(index), index.freed
    relief = index.with_one_move(ask, *window, 0, movable)
    assert held_of(index) == before
    assert index.freed == freed
    event(f"relief: {relief is not None}")
    if relief is None:
        return
    lift(world, index, relief.moved.holder)
    check(world, relief.offer, ask, window)
    world.apply(index, relief.offer, ask, window, "new")
    own = (relief.moved.start, relief.moved.end)
    check(world, relief.to, relief.moved.ask, own)
    world.apply(index, relief.to, relief.moved.ask, own, "moved")
    assert world.clashes() == []


@pytest.fixture
def two_halves():
    """Two GPUs with a 1g at the start of each: room for a 4g only if one of them goes."""
    gpus = tuple(Gpu(at, "mig", 8, index=at, atoms=LAYOUTS[-1]) for at in range(2))
    world = World((Node(0, gpus),))
    index = world.index()
    for at in range(2):
        offer = Offer(0, (index.place(profile("1g"), 0, 9, 0).pieces[0]._replace(gpu=at),))
        [piece] = offer.pieces
        atom = gpus[at].atom_id(0)
        world.apply(
            index, Offer(0, (piece._replace(units=1, atom=atom),)), profile("1g"), (0, 9), f"r{at}"
        )
    return world, index


def test_one_small_instance_makes_way_for_a_large_one(two_halves):
    world, index = two_halves
    assert isinstance(index.place(profile("4g"), 0, 5, 0), Verdict)
    movable = [Movable(f"r{at}", profile("1g"), (at,), 0, 9) for at in range(2)]
    relief = index.with_one_move(profile("4g"), 0, 5, 0, movable)
    assert relief is not None
    [new], [to] = relief.offer.pieces, relief.to.pieces
    assert new.gpu == relief.moved.gpus[0]
    assert to.gpu != new.gpu
    lift(world, index, relief.moved.holder)
    world.apply(index, relief.offer, profile("4g"), (0, 5), "new")
    world.apply(index, relief.to, profile("1g"), (0, 9), "moved")
    assert world.clashes() == []


def test_nobody_is_moved_who_may_not_be(two_halves):
    _, index = two_halves
    assert index.with_one_move(profile("4g"), 0, 5, 0, []) is None


def test_nobody_is_moved_where_there_is_nowhere_to_go(two_halves):
    world, index = two_halves
    for at, units in ((0, 0b110), (1, 0b110)):
        gpu = world.nodes[0].gpus[at]
        for bit in (1, 2):
            if units >> bit & 1:
                piece = index.place(profile("1g"), 0, 9, 0).pieces[0]
                own = piece._replace(gpu=at, units=1 << bit, atom=gpu.atom_id(bit))
                world.apply(index, Offer(0, (own,)), profile("1g"), (0, 9), f"stays-{at}-{bit}")
    movable = [Movable(f"r{at}", profile("1g"), (at,), 0, 9) for at in range(2)]
    assert index.with_one_move(profile("4g"), 0, 5, 0, movable) is None

"""Exact batches, judged by trying every way to place a few requests on small fleets."""

import random
import sys
from datetime import timedelta
from itertools import product

import pytest
from bench.replay.mig import PLACES, PROFILES, SLICES, fewest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from placement_judge import Booking, Gpu, Node, World, near_enough
from placement_strategies import asks, windows, worlds

from apportion.errors import InvalidInputError
from apportion.placement import Ask, DeviceAsk, Expression, Offer, Selector, Verdict
from apportion.placement.exact import Batch, place_batch_exact

NO_TIME = timedelta(microseconds=1)


def held_of(index):
    gpus = {
        (gpu.id, key): held
        for node in index.nodes.values()
        for gpu in node.gpus
        for key, held in gpu.held.items()
    }
    return gpus, {node.id: dict(node.held) for node in index.nodes.values()}


def placed(world, batch, members, window, now=0):
    """Take the whole batch and judge every offer; return (how many placed, GPUs touched)."""
    index = world.index()
    offers = []
    for number, (answer, ask) in enumerate(zip(batch.answers, members, strict=True)):
        if isinstance(answer, Offer):
            world.check(answer, ask, now)
            node = next(node for node in world.nodes if node.id == answer.node)
            assert node.healthy
            assert world.hosts_fit(node, ask, *window)
            world.apply(index, answer, ask, window, f"b{number}")
            offers.append(answer)
    assert world.clashes() == []
    touched = {piece.gpu for offer in offers for piece in offer.pieces}
    assert batch.gpus == len(touched)
    return len(offers), len(touched)


def best(world, members, window):
    """Return (most placed, fewest GPUs touched by so many): every way is tried."""
    found = (0, 0)

    def go(at, taken, hosts):
        nonlocal found
        count = len(hosts)
        if count + len(members) - at < found[0]:
            return
        if at == len(members):
            found = max(found, (count, -len({gpu.id for _, _, (gpu, _) in taken})))
            return
        ask = members[at]
        pieces = [(n, device) for n, device in enumerate(ask.devices) for _ in range(device.count)]
        for node in world.nodes:
            beside = [ask, *(other for other, where in hosts if where is node)]
            vcpu = sum(each.vcpu_milli for each in beside)
            memory = sum(each.memory_mib for each in beside)
            if not node.healthy or not world.hosts_fit(node, Ask((), vcpu, memory), *window):
                continue
            options = [
                [o for gpu in node.gpus for o in gpu.options(node.name, d)] for _, d in pieces
            ]
            for ways in product(*options):
                more = [((at, n), d, way) for (n, d), way in zip(pieces, ways, strict=True)]
                if near_enough(ask, [gpu for gpu, _ in ways]) and world._assignable(
                    [*taken, *more], *window
                ):
                    go(at + 1, [*taken, *more], [*hosts, (ask, node)])
        go(at + 1, taken, hosts)

    go(0, [], [])
    return found[0], -found[1]


def one_by_one(world, members, window):
    """Place by the default policy, one after the other; return (how many placed, GPUs touched)."""
    after = World(world.nodes, list(world.bookings), list(world.hosts))
    index = after.index()
    offers = []
    for number, ask in enumerate(members):
        answer = index.place(ask, *window, 0)
        if isinstance(answer, Offer):
            after.apply(index, answer, ask, window, f"o{number}")
            offers.append(answer)
    return len(offers), len({piece.gpu for offer in offers for piece in offer.pieces})


def copy(world):
    return World(world.nodes, list(world.bookings), list(world.hosts))


@st.composite
def batches(draw, most=3):
    world = draw(worlds(max_nodes=2))
    few = asks(world).filter(lambda ask: sum(device.count for device in ask.devices) <= 2)
    members = draw(st.lists(few, min_size=1, max_size=most))
    if draw(st.booleans()):
        members += members[:1]  # requests that are alike are one kind
    return world, members[:most], draw(windows)


@settings(max_examples=100)
@given(batches())
def test_no_way_places_more_or_touches_fewer_gpus(case):
    world, members, window = case
    index = world.index()
    index.advance(0)
    before, freed = held_of(index), index.freed
    batch = place_batch_exact(index, members, (*window, 0))
    assert held_of(index) == before
    assert index.freed == freed
    most, fewest = best(world, members, window)
    assert placed(copy(world), batch, members, window) == (most, fewest)
    assert (batch.optimal, batch.bound, batch.searched) == (True, fewest, len(members))
    event(f"placed {most} of {len(members)}")


@given(batches(most=5))
def test_without_time_it_is_never_worse_than_one_by_one_and_claims_nothing_false(case):
    world, members, window = case
    batch = place_batch_exact(world.index(), members, (*window, 0), NO_TIME)
    count, touched = placed(copy(world), batch, members, window)
    plain, plainly = one_by_one(world, members, window)
    assert (-count, touched) <= (-plain, plainly)
    assert batch.bound <= touched


def test_requests_that_the_default_would_scatter_share_gpus():
    mig = tuple(((unit,), "1g") for unit in range(4))
    world = World(tuple(Node(at, (Gpu(at, "mig", 8, atoms=mig),)) for at in range(3)))
    world.bookings = [
        Booking(0, ("held", 0), 0, 9, frozenset({0})),
        Booking(1, ("held", 0), 0, 9, frozenset({2})),
    ]
    members = [Ask((DeviceAsk("gpu.mig", 1, 1),), 1, 1) for _ in range(4)]
    batch = place_batch_exact(world.index(), members, (0, 9, 0))
    assert placed(world, batch, members, (0, 9)) == (4, 1)
    assert batch.optimal


H100 = [
    (tuple(unit for unit in range(SLICES) if place >> unit & 1), profile)
    for profile in PROFILES
    for place in PLACES[profile]
]


def profiles(seed, count, host=0):
    """Draw as many requests for one instance each."""
    names = random.Random(seed).choices(PROFILES, k=count)
    asks = [
        Ask(
            (DeviceAsk("gpu.mig", selector=Selector((Expression("migProfile", "In", (name,)),))),),
            host,
        )
        for name in names
    ]
    return asks, {name: names.count(name) for name in PROFILES}


@pytest.mark.parametrize("host", [0, 1])
def test_on_an_idle_fleet_the_optimum_over_the_28_patterns_is_met(host):
    fleet = [
        Node(at, tuple(Gpu(8 * at + each, "mig", 8, atoms=H100) for each in range(8)), vcpu=64)
        for at in range(12)
    ]
    members, counts = profiles(5, 120, host)
    world = World(tuple(fleet))
    batch = place_batch_exact(world.index(), members, (0, 5, 0))
    assert batch.gpus == fewest(counts)
    assert (batch.optimal, batch.bound) == (True, batch.gpus)
    assert placed(world, batch, members, (0, 5)) == (120, batch.gpus)


def test_where_hosts_are_short_the_pieces_go_where_hosts_have_enough():
    # Both would lie on one GPU, and no host has enough for both.
    fleet = tuple(Node(at, (Gpu(at, "slots", 2),), vcpu=3) for at in range(2))
    members = [Ask((DeviceAsk("gpu.slot"),), 2)] * 3
    world = World(fleet)
    batch = place_batch_exact(world.index(), members, (0, 5, 0))
    assert placed(world, batch, members, (0, 5)) == (2, 2)
    assert (batch.optimal, batch.bound) == (True, 2)


def test_requests_for_hosts_alone_touch_no_gpu_even_where_others_would():
    world = World((Node(0, (Gpu(0, "slots", 2),), memory=6),))
    members = [Ask((), 0, 3), Ask((DeviceAsk("gpu.slot"),), 0, 1), Ask((), 0, 3)]
    batch = place_batch_exact(world.index(), members, (0, 5, 0))
    assert placed(world, batch, members, (0, 5)) == (2, 0)
    assert (batch.optimal, batch.bound) == (True, 0)


def test_where_nodes_are_too_many_to_weigh_nothing_is_claimed(monkeypatch):
    monkeypatch.setattr("apportion.placement.exact.PAIRS_MAX", 1)
    fleet = tuple(Node(at, (Gpu(at, "slots", 2),), vcpu=3 + at) for at in range(3))
    members = [Ask((DeviceAsk("gpu.slot", 2),), 4)] * 2
    world = World(fleet)
    batch = place_batch_exact(world.index(), members, (0, 5, 0))
    assert placed(world, batch, members, (0, 5)) == (2, 2)
    assert (batch.optimal, batch.bound) == (False, 1)


def test_what_has_no_room_beside_the_others_says_why():
    world = World((Node(0, (Gpu(0, "slots", 3),)),))
    members = [Ask((DeviceAsk("gpu.slot", 1, units),)) for units in (3, 2, 1)]
    batch = place_batch_exact(world.index(), members, (0, 5, 0))
    refused, *taken = batch.answers
    assert isinstance(refused, Verdict)
    assert refused.code == "units_booked"
    assert all(isinstance(answer, Offer) for answer in taken)
    assert (batch.optimal, batch.gpus, batch.bound) == (True, 1, 1)


def test_requests_beyond_what_is_searched_are_placed_one_by_one_and_nothing_is_claimed(monkeypatch):
    monkeypatch.setattr("apportion.placement.exact.ASKS_MAX", 2)
    world = World((Node(0, (Gpu(0, "slots", 3), Gpu(1, "slots", 3))),))
    members = [Ask((DeviceAsk("gpu.slot"),))] * 5
    batch = place_batch_exact(world.index(), members, (0, 5, 0))
    assert placed(world, batch, members, (0, 5)) == (5, 2)
    assert (batch.optimal, batch.searched) == (False, 2)
    assert batch.bound <= 2


def test_where_nothing_can_lie_that_is_certain():
    world = World((Node(0, (Gpu(0, "slots", 3),)),))
    batch = place_batch_exact(world.index(), [Ask((DeviceAsk("gpu.mig"),))], (0, 5, 0))
    assert isinstance(batch.answers[0], Verdict)
    assert (batch.optimal, batch.gpus, batch.bound) == (True, 0, 0)


def test_an_empty_batch_has_no_answers():
    batch = place_batch_exact(World((Node(0),)).index(), [], (0, 5, 0))
    assert batch == Batch((), 0, optimal=True, bound=0, searched=0)


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools", None)
    with pytest.raises(InvalidInputError, match=r"pip install 'apportion\[exact\]'") as caught:
        place_batch_exact(World((Node(0),)).index(), [], (0, 5, 0))
    assert caught.value.field == "policy"

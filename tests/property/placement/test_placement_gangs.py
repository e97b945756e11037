"""Gangs: whole or not at all, each member beside the others, and nothing held afterwards."""

from hypothesis import event, given
from hypothesis import strategies as st
from placement_judge import Booking, Gpu, Node, World
from placement_strategies import asks, puzzles, windows, worlds

from apportion.placement import POLICIES, Ask, DeviceAsk, Offer, Verdict


def held_of(index):
    return {
        (gpu.id, key): held
        for node in index.nodes.values()
        for gpu in node.gpus
        for key, held in gpu.held.items()
    }


def judge(world, members, start, end, *, policy="fragmentation"):
    index = world.index()
    index.advance(0)
    before, freed = held_of(index), index.freed
    answer = index.place_gang(members, start, end, 0, policy)
    assert held_of(index) == before
    assert index.freed == freed
    if isinstance(answer, Verdict):
        return answer
    for number, (offer, ask) in enumerate(zip(answer, members, strict=True)):
        world.check(offer, ask, 0)
        world.apply(index, offer, ask, (start, end), f"g{number}")
    assert world.clashes() == []
    return answer


@given(st.data(), worlds(), windows, st.sampled_from(sorted(POLICIES)))
def test_each_member_gets_what_it_asks_beside_the_others(data, world, window, policy):
    members = [data.draw(asks(world)) for _ in range(data.draw(st.integers(1, 3)))]
    answer = judge(world, members, *window, policy=policy)
    event(f"whole: {not isinstance(answer, Verdict)}")


@given(puzzles())
def test_bookings_that_move_for_a_member_are_where_they_were_afterwards(case):
    world, ask, start, end, _ = case
    judge(world, [ask, ask], start, end)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_members_that_are_alike_are_refused_only_where_there_are_too_few_places(nodes, gpus, size):
    fleet = [
        Node(at, tuple(Gpu(10 * at + each, "slots", 4) for each in range(gpus)), 8, 8)
        for at in range(nodes)
    ]
    world = World(tuple(fleet), [Booking(0, ("held", 0), 0, 5, frozenset({0}))])
    places = sum(free // size for free in [3, *[4] * (nodes * gpus - 1)])
    ask = Ask((DeviceAsk("gpu.slot", 1, size),))
    assert isinstance(judge(world, [ask] * (places + 1), 0, 5), Verdict)
    if places:
        assert all(isinstance(each, Offer) for each in judge(world, [ask] * places, 0, 5))


def test_a_member_that_is_moved_for_a_later_one_says_where_it_lies_in_the_end():
    world = World((Node(0, (Gpu(0, "slots", 3),)),))
    world.bookings = [
        Booking(0, ("before", 0), 0, 2, frozenset({0})),
        Booking(0, ("after", 0), 2, 3, frozenset({2})),
    ]
    ask = Ask((DeviceAsk("gpu.slot"),))
    first, second = judge(world, [ask, ask], 1, 3)
    assert first.pieces[0].units != second.pieces[0].units

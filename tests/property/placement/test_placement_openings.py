"""When it could start: exactly the instants at which a node gets room, by trying every one."""

from itertools import islice

from hypothesis import event, given
from hypothesis import strategies as st
from placement_judge import HORIZON
from placement_strategies import cases

LATE = 3 * HORIZON


def starts(world, ask, length, now):
    """List the instants from now on at which some node has room that had none just before."""

    def fits(node, start):
        return world.fits(node, ask, start, start + length)

    return [
        start
        for start in range(now, HORIZON + 2)
        if any(fits(n, start) and (start == now or not fits(n, start - 1)) for n in world.nodes)
    ]


@given(cases(max_nodes=2), st.integers(1, 4))
def test_an_ask_could_start_exactly_when_a_node_gets_room(case, length):
    world, ask, _, _, now = case
    world.bookings = [each for each in world.bookings if each.end > now]
    world.hosts = [each for each in world.hosts if each.end > now]
    found = list(world.index().openings(ask, length, now))
    assert [each.start for each in found] == starts(world, ask, length, now)
    event(f"openings: {len(found)}")


@given(cases(max_nodes=2), st.integers(1, 4))
def test_the_room_that_is_told_of_is_there_until_just_then(case, length):
    world, ask, _, _, now = case
    index = world.index()
    for each in islice(index.openings(ask, length, now), 3):
        node = next(node for node in world.nodes if node.id == each.offer.node)
        until = min(each.until, LATE)
        assert until >= each.start + length
        assert world.fits(node, ask, each.start, until)
        assert each.until > LATE or not world.fits(node, ask, each.start, until + 1)
        world.check(each.offer, ask, now)


@given(cases(max_nodes=2), st.integers(1, 4), st.integers(0, HORIZON), st.integers(0, HORIZON))
def test_within_bounds_the_first_is_the_earliest_start_that_fits(case, length, first, last):
    world, ask, _, _, now = case
    world.bookings = [each for each in world.bookings if each.end > now]
    world.hosts = [each for each in world.hosts if each.end > now]
    fitting = [
        start
        for start in range(max(first, now), last + 1)
        if any(world.fits(node, ask, start, start + length) for node in world.nodes)
    ]
    found = list(world.index().openings(ask, length, now, first=first, last=last))
    assert [each.start for each in found[:1]] == fitting[:1]
    assert all(each.start <= last for each in found)
    event("some fit" if fitting else "none fits")

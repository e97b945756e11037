"""Gangs: whole or not at all, each member beside the others, and nothing held afterwards."""

from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from placement_judge import CLASSES, Booking, Gpu, Node, World
from placement_strategies import LAYOUTS, asks, puzzles, seldom_selectors, windows, worlds

from apportion.placement import POLICIES, Ask, DeviceAsk, Offer, Verdict

MORE = settings(max_examples=6 * settings.default.max_examples)


def held_of(index):
    return {
        (gpu.id, key): held
        for node in index.nodes.values()
        for gpu in node.gpus
        for key, held in gpu.held.items()
    }


def judge(world, members, start, end, *, policy="fragmentation", apart=False):
    index = world.index()
    index.advance(0)
    before, freed = held_of(index), index.freed
    answer = index.place_gang(members, start, end, 0, policy, apart=apart)
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


@st.composite
def small_asks(draw, world):
    """Draw an ask of few pieces: the judge tries every way to place all members."""
    ask = draw(asks(world))
    if 1 <= sum(device.count for device in ask.devices) <= 2:
        return ask
    return Ask((), draw(st.integers(1, 3)), ask.memory_mib)


@st.composite
def gangs(draw, world):
    """Draw members, some of them alike."""
    first = draw(small_asks(world))
    others = st.one_of(st.just(first), small_asks(world))
    return [first, *draw(st.lists(others, max_size=2))]


@st.composite
def contested(draw):
    """Draw an idle fleet just about as large as a gang, whose members want the same of it."""
    split = draw(st.sampled_from(["slots", "shares", "mig", "mig", "none"]))
    numbers = st.integers(1, 3)
    fleet = tuple(
        Node(
            at,
            tuple(
                Gpu(
                    10 * at + each,
                    split,
                    {"none": 1, "mig": 8}.get(split) or draw(numbers),
                    numa=draw(st.sampled_from([0, 1])),
                    index=each,
                    atoms=draw(st.sampled_from(LAYOUTS[1:])) if split == "mig" else (),
                )
                for each in range(draw(numbers))
            ),
            draw(numbers),
            8,
        )
        for at in range(draw(st.integers(1, 2)))
    )
    devices = st.builds(
        DeviceAsk,
        st.just(CLASSES[split]),
        st.sampled_from([1, 1, 2]),
        st.sampled_from([1, 2]) if split in ("slots", "shares") else st.just(1),
        seldom_selectors,
    )
    pairs = st.builds(
        Ask,
        st.one_of(st.tuples(devices), st.tuples(devices, devices)),
        st.integers(0, 2),
        together=st.sampled_from(["node", "node", "numa", "gpu"]),
        apart=st.booleans(),
    )
    first = draw(pairs)
    members = [first, *draw(st.lists(st.one_of(st.just(first), pairs), min_size=1, max_size=2))]
    pieces = [device for ask in members for device in ask.devices for _ in range(device.count)]
    assume(len(pieces) <= 5)  # the judge tries every way
    return World(fleet), members


@MORE
@given(contested(), st.sampled_from(sorted(POLICIES)), st.sampled_from([False, False, True]))
def test_members_that_want_the_same_place_are_given_others_where_there_are_some(
    case, policy, apart
):
    world, members = case
    fits = world.gang_fits(members, 0, 1, apart=apart)
    answer = judge(world, members, 0, 1, policy=policy, apart=apart)
    event(f"alike: {len(set(members)) == 1}, whole: {fits}")
    assert isinstance(answer, Verdict) != fits


@MORE
@given(st.data(), worlds(max_nodes=2), windows, st.sampled_from(sorted(POLICIES)), st.booleans())
def test_a_gang_is_refused_only_where_no_way_to_place_all_members_exists(
    data, world, window, policy, apart
):
    members = data.draw(gangs(world))
    fits = world.gang_fits(members, *window, apart=apart)
    answer = judge(world, members, *window, policy=policy, apart=apart)
    event(f"alike: {len(set(members)) == 1}, whole: {fits}")
    assert isinstance(answer, Verdict) != fits
    if not fits:
        assert sum(each.count for each in answer.reasons) == len(world.nodes)
    elif apart:
        assert len({offer.node for offer in answer}) == len(members)


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

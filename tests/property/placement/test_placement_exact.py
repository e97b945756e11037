"""Accepted exactly when some assignment on some node exists, and never over what is held."""

from collections import Counter
from dataclasses import replace

from hypothesis import event, given, settings
from hypothesis import strategies as st
from placement_judge import World
from placement_strategies import asks, cases, puzzles, windows, worlds

from apportion.placement import POLICIES, Offer, Verdict
from apportion.placement.reasons import why_not

# Interesting cases are rare among these, and each is quick.
MORE = settings(max_examples=6 * settings.default.max_examples)


policies = st.sampled_from(sorted(POLICIES))


def judge(world: World, ask, start, end, now, *, policy="fragmentation"):
    """Place the ask and compare the answer with what the judge finds."""
    index = world.index()
    answer = index.place(ask, start, end, now, policy)
    possible = any(world.fits(node, ask, start, end) for node in world.nodes)
    event(f"possible: {possible}")
    assert isinstance(answer, Offer) == possible, answer
    if isinstance(answer, Offer):
        event(f"moves: {len(answer.moves)}")
        world.check(answer, ask, now)
        world.apply(index, answer, ask, (start, end), "new")
        assert world.clashes() == []
    else:
        assert answer.nodes == len(world.nodes)
        assert sum(reason.count for reason in answer.reasons) == answer.nodes
        assert all(reason.count > 0 for reason in answer.reasons)


@MORE
@given(cases(), policies)
def test_an_ask_is_accepted_exactly_when_some_assignment_on_one_node_exists(case, policy):
    judge(*case, policy=policy)


@MORE
@given(puzzles())
def test_slots_and_shares_are_refused_only_when_no_deal_of_units_makes_room(case):
    judge(*case)


@MORE
@given(cases(splits=[("mig",), ("none",), ("mig", "none")], max_nodes=2), policies)
def test_whole_pieces_are_refused_only_when_no_choice_of_them_is_free(case, policy):
    judge(*case, policy=policy)


@MORE
@given(
    cases(splits=[("none",), ("none",), ("none", "shares"), ("mig",)], max_nodes=2),
    policies,
    st.sampled_from(["numa", "numa", "nvlink", "gpu"]),
    st.booleans(),
)
def test_pieces_lie_together_and_apart_exactly_where_some_assignment_does(
    case, policy, together, apart
):
    world, ask, *when = case
    judge(world, replace(ask, together=together, apart=apart), *when, policy=policy)


@MORE
@given(cases())
def test_a_refusal_counts_for_each_node_what_stands_in_its_way(case):
    world, ask, start, end, now = case
    index = world.index()
    answer = index.place(ask, start, end, now)
    if isinstance(answer, Verdict):
        one_by_one = Counter(why_not(node, ask, start, end) for node in index.nodes.values())
        assert {reason.code: reason.count for reason in answer.reasons} == one_by_one


@given(st.data(), worlds())
def test_the_same_calls_get_the_same_answers(data, world):
    calls = [(data.draw(asks(world)), *data.draw(windows)) for _ in range(3)]
    first, second = world.index(), world.index()
    for ask, start, end in calls:
        assert first.place(ask, start, end, 0) == second.place(ask, start, end, 0)


@given(cases())
def test_asking_holds_nothing(case):
    world, *call = case
    index = world.index()
    assert index.place(*call) == index.place(*call)
    now = call[-1]
    held = {
        (gpu.id, key): held
        for node in index.nodes.values()
        for gpu in node.gpus
        for key, held in gpu.held.items()
    }
    assert held == {(b.gpu, b.key): b.held() for b in world.bookings if b.end > now}

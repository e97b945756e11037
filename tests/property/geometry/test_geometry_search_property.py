"""Placing is judged by brute force over the raw table, for every board whose geometry is known."""

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mig_bruteforce import KNOWN, UNKNOWN, Judge

from apportion.errors import InvalidStateError
from apportion.geometry import addable, board_by_key, place_all, stranded, why_not
from apportion.quantities.units import WHOLE

EXAMPLES = settings(max_examples=30, deadline=None)


@st.composite
def legal_instances(draw, judge):
    """Draw instances that can live together, as jobs of many sizes leave them behind."""
    names = draw(st.lists(st.sampled_from(sorted(judge.profiles)), max_size=6))
    kept = []
    for name in names:
        instance = (name, draw(st.sampled_from(judge.starts(name))))
        if judge.legal([*kept, instance]):
            kept.append(instance)
    return kept


def some_names(judge, most=6):
    small = [n for n, p in judge.profiles.items() if p["compute_slices"] <= 2]
    either = st.sampled_from(sorted(judge.profiles)) | st.sampled_from(small)
    return st.lists(either, max_size=most)


def mask_of(board, instances):
    mask = 0
    for name, start in instances:
        mask |= next(p.mask for p in board.profile(name).placements if p.start == start)
    return mask


def pairs(placements):
    return [(p.profile, p.start) for p in placements]


@pytest.mark.parametrize("key", KNOWN)
@EXAMPLES
@given(data=st.data())
def test_a_set_is_placed_exactly_when_some_legal_assignment_exists(key, data):
    judge, board = Judge(key), board_by_key(key)
    there = data.draw(legal_instances(judge))
    names = data.draw(some_names(judge))
    wanted = [board.profile(name) for name in names]
    occupied = mask_of(board, there)

    placed = place_all(board, wanted, occupied)

    assert (placed is not None) == judge.fits(names, there)
    assert (why_not(board, wanted, occupied) is None) == (placed is not None)
    if placed is not None:
        assert [p.profile for p in placed] == names
        assert judge.legal([*there, *pairs(placed)])
        assert all(p.start in judge.starts(p.profile) for p in placed)


@pytest.mark.parametrize("key", ["a100-sxm4-40gb", "a30-24gb", "rtx-pro-6000-blackwell-server"])
def test_every_small_set_is_judged_as_brute_force_judges_it(key):
    judge, board = Judge(key), board_by_key(key)
    for size in range(1, 5 if len(judge.profiles) < 10 else 4):
        for names in itertools.combinations_with_replacement(sorted(judge.profiles), size):
            placed = place_all(board, [board.profile(name) for name in names])
            assert (placed is not None) == judge.fits(names), names


@pytest.mark.parametrize("key", KNOWN)
@settings(EXAMPLES, max_examples=8)
@given(data=st.data())
def test_what_can_be_added_and_what_is_stranded_is_what_brute_force_says(key, data):
    judge, board = Judge(key), board_by_key(key)
    there = data.draw(legal_instances(judge))
    occupied = mask_of(board, there)
    used = sum(judge.profiles[name]["compute_slices"] for name, _ in there)
    single = [
        (name, start)
        for name in judge.profiles
        for start in judge.starts(name)
        if judge.legal([*there, (name, start)])
    ]
    covered = set().union(*map(judge.slices, [*there, *single]))

    lost = stranded(board, occupied, compute_used=used)

    for name, more in addable(board, occupied).items():
        assert judge.fits([name] * more, there)
        assert not judge.fits([name] * (more + 1), there)
    assert lost.memory_slices == judge.gpu["memory_slices"] - len(covered)
    assert lost.compute_slices == judge.gpu["compute_slices"] - used - most_compute(judge, there)


def most_compute(judge, there):
    """Add instances one by one, in every way, with the plainest profile of each shape."""
    best = 0
    for name, profile in judge.profiles.items():
        for start in judge.starts(name):
            if judge.legal([*there, (name, start)]):
                here = [*there, (name, start)]
                more = profile["compute_slices"] + most_compute_after(judge, here, start)
                best = max(best, more)
    return best


def most_compute_after(judge, there, start):
    best = 0
    for name, profile in judge.profiles.items():
        for later in judge.starts(name):
            if later > start and judge.legal([*there, (name, later)]):
                here = [*there, (name, later)]
                more = profile["compute_slices"] + most_compute_after(judge, here, later)
                best = max(best, more)
    return best


@pytest.mark.parametrize("key", ["a100-sxm4-80gb", "h100-sxm5-80gb", "a30-24gb"])
@EXAMPLES
@given(data=st.data())
def test_the_chosen_places_leave_as_many_profiles_possible_as_any_others(key, data):
    judge, board = Judge(key), board_by_key(key)
    there = data.draw(legal_instances(judge))
    names = data.draw(some_names(judge, most=3))
    placed = place_all(board, [board.profile(name) for name in names], mask_of(board, there))
    if placed is None:
        return

    def still_possible(instances):
        return sum(judge.fits([name], [*there, *instances]) for name in judge.profiles)

    best = max(still_possible(way) for way in judge.ways(names, there))
    assert still_possible(pairs(placed)) == best


@pytest.mark.parametrize("key", KNOWN)
def test_disjoint_masks_are_exactly_the_pairs_that_can_live_together(key):
    judge, board = Judge(key), board_by_key(key)
    places = [p for profile in board.profiles for p in profile.placements]
    for one, other in itertools.combinations_with_replacement(places, 2):
        apart = not one.mask & other.mask
        assert apart == judge.legal(pairs([one, other])), (one, other)


@pytest.mark.parametrize("key", UNKNOWN)
def test_a_board_of_unknown_geometry_is_never_guessed_at(key):
    board = board_by_key(key)
    assert not board.placements_known
    assert board.ruler is None
    for ask in (place_all, why_not):
        with pytest.raises(InvalidStateError, match="geometry unknown"):
            ask(board, [board.profiles[0]])
    for question in (addable, stranded):
        with pytest.raises(InvalidStateError, match="geometry unknown"):
            question(board)


def test_four_boards_are_unknown_and_twenty_seven_known():
    assert (len(UNKNOWN), len(KNOWN)) == (4, 27)


@pytest.mark.parametrize("key", KNOWN)
def test_nothing_fits_beside_a_gpu_that_is_booked_whole(key):
    board = board_by_key(key)
    assert set(addable(board, WHOLE).values()) == {0}
    assert place_all(board, [board.profiles[0]], WHOLE) is None
    assert place_all(board, [], WHOLE) == ()


@pytest.mark.parametrize(
    ("key", "placed", "maximal", "multisets"),
    [("h100-sxm5-80gb", 723, 78, 38), ("a30-24gb", 26, 5, 4)],
)
def test_the_number_of_layouts_of_plain_profiles_is_the_one_known(key, placed, maximal, multisets):
    board = board_by_key(key)
    places = [p for profile in board.profiles if not profile.attributes for p in profile.placements]
    layouts = {frozenset(): 0}
    for place in places:
        layouts |= {
            held | {place}: mask | place.mask
            for held, mask in layouts.items()
            if not mask & place.mask
        }
    full = [held for held, mask in layouts.items() if all(mask & place.mask for place in places)]
    kinds = {frozenset(Counter(p.profile for p in held).items()) for held in full}
    assert (len(layouts), len(full), len(kinds)) == (placed, maximal, multisets)

"""A window that reaches past the time from which GPUs are kept to be cut otherwise is told so."""

import pytest
from placement_acting import ask, book, place
from placement_builders import gpu, node, one_of, pool, slots, whole

from apportion.placement import DeviceAsk, Offer, Selector

WHOLE = DeviceAsk("gpu")
RECUT = "partition:GPU-1:then"


def told(answer):
    return {each.code: each.count for each in answer.reasons}


@pytest.fixture
def index():
    """Give three nodes of a GPU each: to be cut otherwise from 10 on, booked till 12, and ill."""
    fleet = pool(node(1, whole(1)), node(2, whole(2)), node(3, whole(3), healthy=False))
    book(fleet, 1, RECUT, (10, 99), -1)
    book(fleet, 2, "held", (0, 12), -1)
    return fleet


def test_what_is_over_by_then_is_placed(index):
    assert isinstance(place(index, WHOLE, at=(0, 10)), Offer)


def test_what_is_not_is_told_so_and_counts_add_up(index):
    answer = place(index, WHOLE, at=(0, 11))
    assert told(answer) == {
        "layout_change_scheduled": 1,
        "units_booked": 1,
        "node_unhealthy": 1,
    }
    assert answer.nodes == 3
    assert [each.code for each in index.explain(_ask(), 0, 11, 0)] == [
        each.code for each in answer.reasons
    ]


def test_also_where_a_name_or_the_host_is_asked_for(index):
    answer = place(index, WHOLE, at=(0, 11), vcpu=1000)
    assert told(answer)["layout_change_scheduled"] == 1
    by_name = DeviceAsk("gpu", selector=_named(1))
    assert told(place(index, by_name, at=(0, 11)))["layout_change_scheduled"] == 1
    short = place(index, WHOLE, at=(0, 11), vcpu=99_000_000)
    assert "layout_change_scheduled" not in told(short)


def test_a_node_with_a_gpu_that_stays_as_it_is_is_booked(index):
    index.add_node(node(1, whole(1), whole(4)))
    book(index, 1, RECUT, (10, 99), -1)
    book(index, 4, "held", (0, 12), -1)
    assert told(place(index, WHOLE, at=(0, 11)))["units_booked"] == 2


def test_the_same_that_was_refused_before_is_told_anew():
    fleet = pool(node(1, whole(1)))
    book(fleet, 1, "held", (0, 12), -1)
    assert told(place(fleet, WHOLE, at=(5, 20))) == {"units_booked": 1}
    book(fleet, 1, RECUT, (12, 99), -1)
    assert told(place(fleet, WHOLE, at=(5, 20))) == {"layout_change_scheduled": 1}


def test_when_it_is_let_go_it_is_told_no_more(index):
    index.free(1, (RECUT, 0))
    assert isinstance(place(index, WHOLE, at=(0, 11)), Offer)
    book(index, 1, "held", (0, 12), -1)
    assert told(place(index, WHOLE, at=(0, 11)))["units_booked"] == 2


def test_slots_are_told_as_well():
    fleet = pool(node(1, gpu(1)))
    book(fleet, 1, RECUT, (10, 99), -1)
    assert told(place(fleet, slots(1), at=(5, 11))) == {"layout_change_scheduled": 1}


def _ask():
    return ask(WHOLE)


def _named(number):
    return Selector((one_of("gpuIndex", str(number)),))

"""What is told beside a refusal and beside a free sum: the largest, until when, what if."""

import pytest
from placement_acting import ask, book, book_host, place
from placement_builders import gpu, mig, node, one_of, pool, profile, share, shared, slots, whole

from apportion.placement import FOREVER, Ask, DeviceAsk, Finding, Held, Largest, Offer


def largest(index, cls, at=(0, FOREVER)):
    return index.largest(cls, *at, at[0])


def explain(index, *devices, at=(0, 4), **resources):
    return index.explain(ask(*devices, **resources), *at, at[0])


def test_the_largest_count_of_whole_gpus_is_that_of_one_node():
    index = pool(node(1, whole(1), whole(2), whole(3)), node(2, whole(4), whole(5), whole(6)))
    assert largest(index, "gpu") == Largest("gpu", count=3)
    for taken in (1, 2, 4):
        book(index, taken, "r", (0, 9), -1)
    # Three are free, and no node has them.
    assert largest(index, "gpu").count == 2
    for taken in (3, 5, 6):
        book(index, taken, "r", (0, 9), -1)
    assert largest(index, "gpu").count == 0
    assert largest(index, "gpu", (9, FOREVER)).count == 3


def test_the_largest_piece_of_a_shared_gpu_is_that_of_one_gpu():
    index = pool(node(1, shared(1), shared(2)))
    assert largest(index, "gpu.share") == Largest("gpu.share", units=100)
    for each in (1, 2):
        book(index, each, "r", (0, 9), (1 << 60) - 1 | 1 << 100)
    assert largest(index, "gpu.share").units == 40
    assert largest(pool(node(1, gpu(1, ruler=7))), "gpu.slot").units == 7


def test_the_largest_profile_goes_by_what_it_takes():
    index = pool(node(1, mig(1, "1g", "2g", "4g")))
    assert largest(index, "gpu.mig") == Largest("gpu.mig", profile="4g")
    book(index, 1, "r", (0, 9), 0b1111000)
    assert largest(index, "gpu.mig").profile == "2g"
    assert largest(index, "gpu.mig", (9, 10)).profile == "4g"


@pytest.mark.parametrize("cls", ["gpu", "gpu.mig", "gpu.slot", "gpu.share"])
def test_nothing_is_the_largest_where_there_is_none(cls):
    nothing = Largest(cls)
    assert largest(pool(), cls) == nothing
    assert largest(pool(node(1)), cls) == nothing
    other = whole(1) if cls != "gpu" else gpu(1)
    assert largest(pool(node(1, other)), cls) == nothing


def test_where_there_is_room_there_is_nothing_to_explain():
    assert explain(pool(node(1, gpu(1))), slots(1)) == ()


def test_what_is_booked_says_when_the_first_node_gets_room_and_what_moving_would_do():
    index = pool(node(1, gpu(1), gpu(2)), node(2, gpu(3), gpu(4)), node(3, healthy=False))
    for each in (1, 2):
        book(index, each, "r", (0, 7), 0b0011)
    for each in (3, 4):
        book(index, each, "r", (0, 6), 0b0111)
    # Two pieces of 2 go together on one GPU; two of 3 do not.
    assert explain(index, slots(4)) == (
        Finding("units_booked", 2, until=6, after_defragmentation=1),
        Finding("node_unhealthy", 1),
    )


def test_room_that_a_later_booking_takes_again_is_not_room():
    index = pool(node(1, gpu(1)))
    book(index, 1, "r", (0, 4), 0b1111)
    index.book(1, ("later", 0), Held(5, 9, 0b1111))
    (finding,) = explain(index, slots(1), at=(0, 3))
    assert finding.until == 9
    (finding,) = explain(index, slots(1), at=(0, 1))
    assert finding.until == 4


def test_what_is_held_for_ever_has_no_until():
    index = pool(node(1, gpu(1)))
    book(index, 1, "r", (0, FOREVER), 0b1111)
    assert explain(index, slots(1)) == (Finding("units_booked", 1, full=1),)


def test_hosts_that_are_short_say_when_the_first_is_not():
    index = pool(node(1, gpu(1), vcpu=1000), node(2, gpu(2), vcpu=1000))
    book_host(index, 1, "r", (0, 5), vcpu=900)
    book_host(index, 2, "r", (0, 8), vcpu=900)
    assert explain(index, slots(1), vcpu=500) == (Finding("host_resources_short", 2, until=5),)


def test_instances_are_moved_to_places_of_their_profile_only():
    index = pool(node(1, mig(1, "1g", "3g"), mig(2, "1g", "3g")))
    book(index, 1, "a", (0, 9), 0b1)
    book(index, 2, "b", (0, 9), 0b1110)
    # The other 3g is free, and the other 1g: asking for two of one profile finds no third place.
    (finding,) = explain(index, profile("3g", 2))
    assert finding.after_defragmentation == 0


def test_what_holds_a_whole_gpu_is_not_moved():
    index = pool(node(1, gpu(1), gpu(2)))
    book(index, 1, "r", (0, 9), -1)
    book(index, 2, "r", (0, 9), 0b1)
    (finding,) = explain(index, slots(4))
    assert finding.after_defragmentation == 0


def test_shares_are_packed_by_their_hundredths():
    index = pool(node(1, shared(1), shared(2)))
    for each in (1, 2):
        book(index, each, "r", (0, 9), (1 << 40) - 1 | 1 << 100)
    (finding,) = explain(index, share(61))
    assert finding.after_defragmentation == 1
    (finding,) = explain(index, share(61, 2))
    assert finding.after_defragmentation == 0


def test_pieces_that_lie_together_are_not_reckoned():
    index = pool(node(1, gpu(1), gpu(2)))
    for each in (1, 2):
        book(index, each, "r", (0, 9), 0b1)
    together = Ask((slots(2, 2),), together="gpu")
    assert index.explain(together, 0, 4, 0) == (Finding("units_booked", 1, until=9),)


def test_a_node_that_is_named_is_explained_by_itself():
    index = pool(node(1, gpu(1), gpu(2)))
    for each in (1, 2):
        book(index, each, "r", (0, 9), 0b1)
    (finding,) = explain(index, slots(4, 1, one_of("node", "n1")))
    assert finding == Finding("units_booked", 1, until=9, after_defragmentation=1)


def test_explaining_holds_nothing():
    index = pool(node(1, gpu(1)))
    book(index, 1, "r", (0, 9), 0b1)
    explain(index, slots(4))
    assert isinstance(place(index, slots(3)), Offer)
    assert largest(index, "gpu.slot").units == 3
    assert isinstance(place(index, DeviceAsk("gpu.slot", 1, 3)), Offer)

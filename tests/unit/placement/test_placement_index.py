"""The picture is kept up with what is held: noted twice, late, or for things it does not know."""

from placement_acting import HOURS, book, book_host, place
from placement_builders import gpu, node, pool, slots

from apportion.placement import FOREVER, Held, HostHeld, Offer, Verdict
from apportion.placement.skyline import Skyline


def test_noting_a_booking_twice_changes_nothing():
    index = pool(node(1, gpu(1)))
    book(index, 1, "r", (0, 4), 0b1111)
    freed = index.freed
    book(index, 1, "r", (0, 4), 0b1111)
    book_host(index, 1, "r", (0, 4), vcpu=1000)
    book_host(index, 1, "r", (0, 4), vcpu=1000)
    assert index.freed == freed
    assert index.nodes[1].vcpu_free == 95_000


def test_noting_a_booking_otherwise_replaces_it():
    index = pool(node(1, gpu(1)))
    book(index, 1, "r", (0, 8), 0b1111)
    assert isinstance(place(index, slots(1), at=(4, 8)), Verdict)
    book(index, 1, "r", (0, 4), 0b1111)
    assert isinstance(place(index, slots(1), at=(4, 8)), Offer)
    assert isinstance(place(index, slots(4), at=(4, 8)), Offer)
    book_host(index, 1, "r", (0, 8), vcpu=96_000)
    assert isinstance(place(index, vcpu=95_000), Verdict)
    book_host(index, 1, "r", (0, 8), vcpu=1000)
    assert isinstance(place(index, vcpu=95_000), Offer)


def test_freeing_what_is_not_held_is_fine():
    index = pool(node(1, gpu(1)))
    freed = index.freed
    index.free(1, ("nobody", 0))
    index.free_host(1, "nobody")
    assert index.freed == freed


def test_what_belongs_to_another_pool_is_passed_over():
    index = pool(node(1, gpu(1)))
    index.book(99, ("r", 0), Held(0, 1, 1))
    index.free(99, ("r", 0))
    index.book_host(99, "r", HostHeld(0, 1, 1, 1))
    index.free_host(99, "r")
    index.remove_node(99)
    assert list(index.nodes) == [1]
    assert not index.nodes[1].held


def test_freeing_one_thing_leaves_the_times_of_the_others_known():
    index = pool(node(1, gpu(1), vcpu=8000))
    book_host(index, 1, "freed", (0, 4), vcpu=8000)
    book_host(index, 1, "later", (4, 8), vcpu=8000)
    index.free_host(1, "freed")
    assert isinstance(place(index, vcpu=8000, at=(0, 4)), Offer)
    book(index, 1, "freed", (0, 4), -1)
    book(index, 1, "later", (4, 8), -1)
    index.free(1, ("freed", 0))
    assert isinstance(place(index, slots(4), at=(0, 4)), Offer)


def test_what_has_ended_is_let_go_and_what_was_shortened_or_lengthened_is_not_mistaken():
    index = pool(node(1, gpu(1)))
    book(index, 1, "longer", (0, 4), 0b0001)
    book(index, 1, "longer", (0, 8), 0b0001)
    book(index, 1, "ended", (0, 5), 0b0010)
    book_host(index, 1, "longer", (0, 4), vcpu=1000)
    book_host(index, 1, "longer", (0, 8), vcpu=1000)
    book_host(index, 1, "ended", (0, 5), vcpu=1000)
    index.advance(5)
    held = index.nodes[1]
    assert list(held.gpus[0].held) == [("longer", 0)]
    assert list(held.held) == ["longer"]
    index.advance(8)
    assert not held.gpus[0].held
    assert not held.held


def test_a_gpu_and_a_host_of_one_number_may_be_held_until_one_instant():
    index = pool(node(1, gpu(1)))
    book(index, 1, "r", (0, 4), 0b0001)
    book_host(index, 1, "r", (0, 4), vcpu=1000)
    index.advance(4)
    assert not index.nodes[1].held


def test_time_gives_room_back_without_being_told():
    index = pool(node(1, gpu(1)))
    book(index, 1, "r", (0, 4), -1)
    assert isinstance(place(index, slots(1), at=(3, 6), now=3), Verdict)
    assert isinstance(place(index, slots(1), at=(4, 6), now=4), Offer)


def test_a_refusal_stands_until_something_is_given_back():
    index = pool(node(1, gpu(1)))
    book(index, 1, "r", (0, HOURS), -1)
    first = place(index, slots(1))
    assert place(index, slots(1)) is first
    freed = index.freed
    index.free(1, ("r", 0))
    assert index.freed > freed
    assert isinstance(place(index, slots(1)), Offer)


def test_a_node_that_comes_replaces_the_one_of_its_number():
    index = pool(node(1, gpu(1), gpu(2)), node(2, gpu(3)))
    book(index, 2, "r", (0, HOURS), -1)
    book_host(index, 1, "r", (0, HOURS), vcpu=96_000)
    index.add_node(node(1, gpu(1, ruler=2)))
    assert place(index, slots(2), vcpu=96_000).pieces[0].gpu == 1
    assert isinstance(place(index, slots(2), slots(4), slots(4)), Verdict)


def test_a_node_that_left_offers_nothing_and_its_bookings_end_in_peace():
    index = pool(node(1, gpu(1)), node(2, gpu(2)))
    book(index, 2, "r", (0, 4), 0b0001)
    book_host(index, 2, "r", (0, 4), vcpu=1000)
    index.remove_node(2)
    assert isinstance(place(index, slots(4), slots(4)), Verdict)
    index.advance(HOURS)
    assert place(index, slots(4)).node == 1


def test_a_node_may_come_with_what_is_held_on_it():
    busy = node(1, gpu(1))
    busy.gpus[0].put(("r", 0), Held(0, 4, 0b0111))
    busy.put("r", HostHeld(0, 4, 96_000, 0))
    index = pool(busy)
    assert isinstance(place(index, slots(2)), Verdict)
    assert isinstance(place(index, slots(1), vcpu=1), Verdict)
    assert isinstance(place(index, slots(4), vcpu=1, at=(4, 5), now=4), Offer)
    assert not busy.held


def test_what_is_freed_early_leaves_nothing_behind():
    index = pool(node(1, gpu(1)))
    for number in range(1000):
        book(index, 1, f"r{number}", (0, FOREVER), 0b0001)
        index.free(1, (f"r{number}", 0))
        book_host(index, 1, f"r{number}", (0, FOREVER), vcpu=1000)
        index.free_host(1, f"r{number}")
    assert len(index._endings) < 100
    book(index, 1, "last", (0, 5), -1)
    index.advance(5)
    assert isinstance(place(index, slots(4), at=(5, 6), now=5), Offer)


def test_refusals_are_remembered_only_so_far():
    index = pool(node(1, gpu(1)))
    for end in range(1, 1100):
        assert isinstance(place(index, slots(5), at=(0, end)), Verdict)
    assert len(index._refusals) <= 1024


def test_a_skyline_keeps_no_steps_of_what_came_and_went():
    skyline = Skyline()
    for start in range(100):
        skyline.add(start, start + 5, 1)
    assert (skyline.top, skyline.peak(0, 1), skyline.peak(3, 200)) == (5, 1, 5)
    for start in range(100):
        skyline.add(start, start + 5, -1)
    assert (skyline.top, len(skyline._times)) == (0, 1)

"""Which GPU is chosen, which units, and what moves for it."""

import pytest
from placement_acting import HOURS, book, book_host, place
from placement_builders import gpu, mig, node, one_of, pool, profile, share, shared, slots, whole

from apportion.placement import (
    DeviceAsk,
    Expression,
    Held,
    Move,
    Offer,
    PoolIndex,
    Selector,
    Verdict,
)


def test_a_whole_gpu_is_every_unit_whatever_the_length_of_the_ruler():
    offer = place(pool(node(1, whole(1))), DeviceAsk("gpu"))
    assert [(p.gpu, p.units, p.atom) for p in offer.pieces] == [(1, -1, 1001)]


def test_a_slot_lies_beside_the_slots_that_are_held():
    index = pool(node(1, gpu(1)))
    book(index, 1, "first", (0, HOURS), 0b0011)
    assert place(index, slots(2)).pieces[0].units == 0b1100


def test_a_share_takes_its_hundredths_and_one_seat():
    offer = place(pool(node(1, shared(1))), share(81))
    assert offer.pieces[0].units == ((1 << 81) - 1) | 1 << 100


def test_the_tightest_gpu_that_fits_is_taken():
    index = pool(node(1, gpu(1), gpu(2), gpu(3)))
    book(index, 1, "a", (0, HOURS), 0b0001)
    book(index, 2, "b", (0, HOURS), 0b0011)
    book(index, 3, "c", (0, HOURS), 0b0111)
    offer = place(index, slots(2))
    assert offer.pieces[0].gpu == 2
    assert offer.leftover == 0


def test_several_whole_gpus_are_taken_of_one_node_that_has_them():
    index = pool(node(1, whole(1), whole(2)), node(2, whole(3)))
    assert place(index, DeviceAsk("gpu", 2)).node == 1


def test_a_mig_instance_comes_from_the_gpu_with_the_fewest_left():
    index = pool(node(1, mig(1, "3g", "1g", "1g"), mig(2, "3g", "1g")))
    offer = place(index, profile("1g"), policy="best")
    assert (offer.pieces[0].gpu, offer.pieces[0].atom, offer.leftover) == (2, 201, 1)


def test_host_resources_alone_go_where_they_cost_the_gpus_least():
    index = pool(node(1, whole(1), vcpu=8000), node(2, vcpu=64_000), node(3, whole(3)))
    assert place(index, vcpu=4000).node == 2
    assert place(index, vcpu=70_000).node == 3


def test_several_shares_of_one_ask_lie_on_gpus_of_their_own():
    index = pool(node(1, shared(1), shared(2)))
    offer = place(index, share(30, 2))
    assert sorted(p.gpu for p in offer.pieces) == [1, 2]
    assert isinstance(place(index, share(30, 3)), Verdict)


def test_slots_and_instances_of_one_ask_may_lie_on_one_gpu():
    offer = place(pool(node(1, gpu(1))), slots(1, 3), slots(1))
    assert [p.units for p in offer.pieces] == [0b0001, 0b0010, 0b0100, 0b1000]
    assert [p.device for p in offer.pieces] == [0, 0, 0, 1]
    offer = place(pool(node(1, mig(1, "1g", "1g"))), profile("1g", 2))
    assert sorted(p.atom for p in offer.pieces) == [100, 101]


def test_all_pieces_lie_on_one_node_or_none_is_placed():
    index = pool(node(1, whole(1)), node(2, whole(2)))
    assert isinstance(place(index, DeviceAsk("gpu", 2)), Verdict)


def test_a_choice_that_blocks_another_piece_is_taken_back():
    index = pool(node(1, gpu(1, ruler=3), gpu(2, ruler=4)))
    offer = place(index, slots(2), slots(2), slots(3))
    assert [p.gpu for p in offer.pieces] == [2, 2, 1]


def test_gpus_that_only_other_pieces_can_use_are_told_apart():
    index = pool(node(1, whole(1), whole(2), whole(3)))
    not_third = DeviceAsk("gpu", 1, 1, Selector((Expression("gpuIndex", "NotIn", ("3",)),)))
    not_second = DeviceAsk("gpu", 1, 1, Selector((Expression("gpuIndex", "NotIn", ("2",)),)))
    offer = place(index, not_third, not_second, not_second)
    assert [p.gpu for p in offer.pieces] == [2, 1, 3]


def test_two_short_bookings_on_different_slots_do_not_keep_out_one_across_both():
    index = pool(node(1, gpu(1, ruler=2)))
    book(index, 1, "morning", (2, 4), 0b01)
    book(index, 1, "evening", (4, 6), 0b10)
    offer = place(index, slots(1), at=(1, 7))
    assert offer.pieces[0].units == 0b01
    assert offer.moves == (Move(1, ("morning", 0), 0b10),)
    assert index.nodes[1].gpus[0].held["morning", 0] == Held(2, 4, 0b01)


def test_what_has_begun_keeps_its_slot():
    index = pool(node(1, gpu(1, ruler=2)))
    book(index, 1, "running", (0, 4), 0b10)
    book(index, 1, "later", (4, 6), 0b01)
    offer = place(index, slots(1), at=(1, 7), now=1)
    assert offer.pieces[0].units == 0b01
    assert offer.moves == (Move(1, ("later", 0), 0b10),)


def test_two_pieces_get_room_on_one_gpu_that_only_moving_others_makes():
    index = pool(node(1, gpu(1, ruler=3)))
    book(index, 1, "a", (2, 3), 0b001)
    book(index, 1, "b", (3, 4), 0b010)
    book(index, 1, "c", (4, 5), 0b100)
    offer = place(index, slots(1, 2), at=(2, 5))
    assert isinstance(offer, Offer)
    assert len({p.units for p in offer.pieces}) == 2
    assert len(offer.moves) == 2


def test_a_hold_of_every_unit_to_come_is_not_moved_and_bounds_what_fits():
    index = pool(node(1, gpu(1)))
    book(index, 1, "layout-change", (6, 8), -1)
    assert isinstance(place(index, slots(1), at=(5, 7)), Verdict)
    assert isinstance(place(index, slots(4), at=(0, 6)), Offer)
    assert isinstance(place(index, slots(4), at=(8, 9)), Offer)


@pytest.mark.parametrize(("holders", "fits"), [(47, True), (48, False)])
def test_a_shared_gpu_serves_48_holders(holders, fits):
    index = pool(node(1, shared(1)))
    for number in range(holders):
        book(index, 1, f"h{number}", (0, HOURS), 1 << number | 1 << (100 + number))
    assert isinstance(place(index, share(1)), Offer) == fits
    assert index.nodes[1].gpus[0].idle == (53 if fits else 0)


def test_all_48_seats_are_counted_at_each_instant_and_not_in_sum():
    index = pool(node(1, shared(1)))
    for number in range(48):
        at = (0, 4) if number < 24 else (4, 8)
        book(index, 1, f"h{number}", at, 1 << number | 1 << (100 + number))
    assert isinstance(place(index, share(1), at=(0, 8)), Offer)
    for number in range(24, 48):
        book(index, 1, f"more{number}", (0, 4), 1 << number | 1 << (100 + number))
    assert isinstance(place(index, share(1), at=(3, 8)), Verdict)
    assert isinstance(place(index, share(1), at=(4, 8)), Offer)


def test_a_gpu_without_seats_does_not_keep_a_piece_from_the_next_gpu():
    index = pool(node(1, shared(1), shared(2)))
    for number in range(48):
        book(index, 1, f"h{number}", (0, 4), 1 << number | 1 << (100 + number))
    book(index, 1, "later", (6, 8), 1 | 1 << 100)
    assert place(index, share(1), at=(3, 5)).pieces[0].gpu == 2


def test_what_begins_when_the_window_ends_is_not_in_its_way():
    index = pool(node(1, gpu(1)))
    book(index, 1, "next", (1, 8), -1)
    assert isinstance(place(index, slots(4), at=(0, 1)), Offer)
    book(index, 1, "before", (0, 1), -1)
    assert isinstance(place(index, slots(4), at=(8, 9)), Offer)


def test_host_resources_are_counted_at_each_instant_of_the_window():
    index = pool(node(1, vcpu=8000, memory=64))
    book_host(index, 1, "early", (0, 4), vcpu=6000, memory=60)
    book_host(index, 1, "late", (4, 8), vcpu=6000, memory=60)
    assert isinstance(place(index, vcpu=2000, memory=4, at=(0, 8)), Offer)
    assert isinstance(place(index, vcpu=2001, at=(0, 8)), Verdict)
    assert isinstance(place(index, memory=5, at=(3, 4)), Verdict)
    assert isinstance(place(index, vcpu=8000, memory=64, at=(8, 9)), Offer)


def test_an_overcommitted_host_that_shrank_still_gives_what_it_is_not_short_of():
    index = pool(node(1, gpu(1), vcpu=2000, memory=64))
    book_host(index, 1, "before", (0, HOURS), vcpu=4000)
    assert isinstance(place(index, slots(1), memory=64), Offer)
    assert isinstance(place(index, memory=64), Offer)
    assert isinstance(place(index, vcpu=1), Verdict)


def test_selectors_narrow_to_one_node_one_gpu_or_one_kind():
    first = node(1, gpu(1, group={"numaNode": 0}), gpu(2, group={"numaNode": 1}))
    second = node(2, gpu(3, group={"gpuModel": "A100"}))
    index = pool(first, second)
    assert place(index, slots(1, 1, one_of("gpuModel", "a100"))).pieces[0].gpu == 3
    assert place(index, slots(1, 1, one_of("numaNode", "1"))).pieces[0].gpu == 2
    assert place(index, slots(1, 1, one_of("gpuUuid", "GPU-1"))).pieces[0].gpu == 1
    assert isinstance(place(index, slots(3, 2, one_of("gpuIndex", "1"))), Verdict)


def test_a_named_gpu_is_found_by_name_and_forgotten_with_its_node():
    index = pool(*(node(at, gpu(at)) for at in (1, 2, 3)))
    named = slots(1, 1, one_of("gpuUuid", "GPU-2", "GPU-9"))
    assert place(index, named).node == 2
    index.remove_node(2)
    assert place(index, named).code == "selector_matches_nothing"
    index.add_node(node(2, gpu(2)))
    assert place(index, named).node == 2


def test_more_pieces_than_python_has_frames_are_placed():
    index = pool(node(1, *(gpu(at, ruler=48) for at in range(24))))
    asked = [slots(1, 64, one_of("gpuIndex", *map(str, range(24)))) for _ in range(18)]
    assert len(place(index, *asked).pieces) == 18 * 64
    assert isinstance(place(index, *asked, slots(1)), Verdict)


def test_a_selector_on_an_instance_sees_its_own_memory_and_its_gpus_model():
    index = pool(node(1, mig(1, "3g", "1g")))
    big = (one_of("gpuModel", "h100"), Expression("vramGiB", "Gt", ("20",)))
    assert place(index, DeviceAsk("gpu.mig", 1, 1, Selector(big))).pieces[0].atom == 100


def test_pieces_with_different_selectors_each_get_theirs():
    index = pool(node(1, whole(1), whole(2, group={"numaNode": 1})))
    there = DeviceAsk("gpu", 1, 1, Selector((one_of("numaNode", "1"),)))
    assert [p.gpu for p in place(index, DeviceAsk("gpu"), there).pieces] == [1, 2]


def test_a_picture_that_holds_more_than_there_is_gives_no_offer_and_no_error():
    index = pool(node(1, gpu(1, ruler=2)))
    book(index, 1, "first", (1, 2), 0b10)
    book(index, 1, "stale", (2, 9), 0b01)
    book(index, 1, "layout-change", (4, 6), -1)
    assert isinstance(place(index, slots(1), at=(0, 2)), Offer)
    assert place(index, slots(1), at=(1, 3)).code == "units_booked"


def test_an_empty_pool_says_so():
    verdict = place(PoolIndex(), slots(1))
    assert (verdict.code, verdict.message) == ("pool_empty", "the pool has no nodes")


@pytest.mark.parametrize("wanted", range(1, 9))
def test_one_piece_lies_on_the_very_gpu_that_its_selector_names(wanted):
    index = pool(*(node(at, *(gpu(4 * at + each) for each in range(1, 5))) for at in range(2)))
    [piece] = place(index, slots(1, 1, one_of("gpuIndex", str(wanted)))).pieces
    assert piece.gpu == wanted


@pytest.mark.parametrize("wanted", range(3))
def test_one_instance_is_the_very_one_that_its_selector_names(wanted):
    index = pool(node(1, mig(1, "1g", "1g", "1g")))
    [piece] = place(
        index, DeviceAsk("gpu.mig", selector=Selector((one_of("giId", str(wanted)),)))
    ).pieces
    assert piece.units == 1 << wanted

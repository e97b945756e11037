"""Which of equal GPUs: those that reach each other best; and what that is worth."""

import pytest
from placement_acting import HOURS, ask, book, place
from placement_builders import gpu, mig, node, one_of, pool, slots, whole

from apportion.placement import Ask, DeviceAsk, Offer, Topology, Verdict


def placed_at(gpu_id, **where):
    """Build a whole GPU; ``numa`` is of its group, the other places tell it apart."""
    numa = where.pop("numa", None)
    made = whole(gpu_id, group={} if numa is None else {"numaNode": numa})
    made.attributes = {**made.attributes, **where}
    return made


def halves(node_id, first=0, **resources):
    """Build a node of eight GPUs, four at each of two NUMA nodes."""
    gpus = (placed_at(first + at, numa=at // 4) for at in range(8))
    return node(node_id, *gpus, **resources)


def gpus_of(index, count, *, policy="fragmentation", at=(0, HOURS), **resources):
    offer = place(index, DeviceAsk("gpu", count), policy=policy, at=at, **resources)
    assert isinstance(offer, Offer), offer
    return sorted(piece.gpu for piece in offer.pieces)


def hold(index, *gpus):
    for each in gpus:
        book(index, each, "held", (0, 2 * HOURS), -1)


@pytest.mark.parametrize(
    ("one", "other", "score", "link"),
    [
        ({"nvlinkDomain": 7}, {"nvlinkDomain": 7, "numa": 1}, 4, "nvlink"),
        ({"pcieRoot": "a", "numa": 0}, {"pcieRoot": "a", "numa": 0}, 3, "pcie"),
        ({"pcieRoot": "a", "numa": 0}, {"pcieRoot": "b", "numa": 0}, 2, "numa"),
        ({"numa": 0}, {"numa": 1}, 1, "node"),
        ({}, {}, 1, "node"),
    ],
)
def test_two_gpus_are_graded_by_the_nearest_thing_they_share(one, other, score, link):
    index = pool(node(1, placed_at(1, **one), placed_at(2, **other)))
    assert index.topology([1, 2]) == Topology(score, link)


def test_the_worst_pair_is_what_counts_and_pieces_of_one_gpu_are_connected():
    gpus = (placed_at(1, nvlinkDomain=1), placed_at(2, nvlinkDomain=1), placed_at(3, numa=0))
    index = pool(node(1, *gpus))
    assert index.topology([1, 2, 3]) == Topology(1, "node")
    assert index.topology([1, 1]) == Topology(4, "same_gpu")
    assert index.topology([1, 1, 2]) == Topology(4, "nvlink")
    assert index.topology([]) == index.topology([99]) == Topology(4, "same_gpu")


@pytest.mark.parametrize("policy", ["first", "best", "spread", "fragmentation"])
def test_several_gpus_lie_at_one_numa_node_if_they_can(policy):
    index = pool(halves(1))
    hold(index, 1)
    # Three are left at the first NUMA node and four at the second.
    assert gpus_of(index, 4, policy=policy) == [4, 5, 6, 7]
    assert gpus_of(index, 3, policy=policy) == [0, 2, 3]
    assert len(gpus_of(index, 5, policy=policy)) == 5


def test_what_is_left_stays_together():
    index = pool(halves(1))
    hold(index, 4, 5)
    # Two of the first four would part those; the other two leave them as they are.
    assert gpus_of(index, 2) == [6, 7]


def test_of_nodes_as_good_the_one_whose_gpus_are_nearer():
    for far, near in ((1, 2), (2, 1)):
        index = pool(halves(far, 10 * far), halves(near, 10 * near))
        hold(index, *(10 * far + at for at in (0, 1, 2, 4, 5, 6)))
        hold(index, *(10 * near + at for at in range(6)))
        assert gpus_of(index, 2) == [10 * near + 6, 10 * near + 7]
        assert gpus_of(index, 2, vcpu=1000) == [10 * near + 6, 10 * near + 7]


def test_nvlink_counts_more_than_numa():
    bridges = [placed_at(at, numa=at // 2, nvlinkDomain=at % 2) for at in range(4)]
    assert gpus_of(pool(node(1, *bridges)), 2) in ([0, 2], [1, 3])


def test_windows_that_need_a_gap_are_placed_as_near():
    index = pool(halves(1))
    for each in range(8):
        book(index, each, "later", (10, 12), -1)
    book(index, 0, "now", (0, 2), -1)
    assert gpus_of(index, 4, at=(0, 10)) == [4, 5, 6, 7]
    assert gpus_of(index, 4, at=(2, 10)) in ([0, 1, 2, 3], [4, 5, 6, 7])


def test_eight_gpus_of_two_numa_nodes_are_one_request():
    index = pool(halves(1), halves(2, 8))
    hold(index, 3)
    assert gpus_of(index, 8) == list(range(8, 16))
    hold(index, 9)
    refused = place(index, DeviceAsk("gpu", 8))
    assert isinstance(refused, Verdict)
    assert refused.code == "units_booked"


def test_in_one_numa_node_is_found_however_many_are_free_elsewhere():
    index = pool(halves(1), halves(2, 8))
    hold(index, 0, 4, 8)
    together = Ask((DeviceAsk("gpu", 4),), together="numa")
    offer = index.place(together, 0, HOURS, 0)
    assert isinstance(offer, Offer)
    assert sorted(piece.gpu for piece in offer.pieces) == [12, 13, 14, 15]
    hold(index, 12)
    assert isinstance(index.place(together, 0, HOURS, 0), Verdict)
    assert isinstance(index.place(ask(DeviceAsk("gpu", 6)), 0, HOURS, 0), Offer)


def test_gpus_of_unlike_products_serve_one_request_where_no_other_does():
    pair = (gpu(1, "none", 1, atom=1), gpu(2, "none", 1, atom=2, group={"gpuProduct": "other"}))
    assert gpus_of(pool(node(1, *pair)), 2) == [1, 2]


def test_a_numa_node_that_is_selected_is_kept_to():
    index = pool(halves(1))
    hold(index, 0)
    first = one_of("numaNode", "0")
    assert isinstance(place(index, slots(1, 3, first)), Verdict)
    only = Ask((DeviceAsk("gpu", 3, 1, slots(1, 3, first).selector),))
    offer = index.place(only, 0, HOURS, 0)
    assert isinstance(offer, Offer)
    assert sorted(piece.gpu for piece in offer.pieces) == [1, 2, 3]
    more = Ask((DeviceAsk("gpu", 4, 1, slots(1, 3, first).selector),))
    assert isinstance(index.place(more, 0, HOURS, 0), Verdict)
    both = one_of("numaNode", "0", "1")
    either = Ask((DeviceAsk("gpu", 7, 1, slots(1, 3, both).selector),))
    assert isinstance(index.place(either, 0, HOURS, 0), Offer)


def test_instances_that_take_whole_gpus_lie_near_too():
    gpus = [mig(at, "7g", group={"numaNode": at // 2}) for at in range(4)]
    index = pool(node(1, *gpus))
    hold(index, 0)
    offer = place(index, DeviceAsk("gpu.mig", 2))
    assert sorted(piece.gpu for piece in offer.pieces) == [2, 3]

"""What each policy prefers, and that the order of nodes decides nothing but ties."""

import pytest
from placement_acting import HOURS, book, book_host, place
from placement_builders import gpu, mig, node, one_of, pool, profile, share, shared, slots, whole

from apportion.placement import (
    POLICIES,
    Ask,
    AtomState,
    DeviceAsk,
    Expression,
    GpuState,
    Held,
    HostHeld,
    NodeState,
    Offer,
    PoolIndex,
    Selector,
    Verdict,
)
from apportion.placement.keys import Keys, mixed

ALWAYS = (0, HOURS)


def on_demand(gpu_id):
    """Make a GPU that is cut when somebody asks: all places of three profiles."""
    places = [*((1, at) for at in range(7)), *((4, at) for at in (0, 4)), (8, 0)]
    atoms = tuple(
        AtomState(100 * gpu_id + at, ((1 << size) - 1) << start, f"{size}g", {})
        for at, (size, start) in enumerate(places)
    )
    return gpu(gpu_id, "mig", 8, atoms=atoms)


def test_first_takes_the_first_node_of_the_order_whatever_is_held_there():
    index = pool(*(node(at, gpu(at)) for at in range(1, 6)))
    first = min(range(1, 6), key=mixed)
    book(index, first, "held", ALWAYS, 0b0001)
    others = [at for at in range(1, 6) if at != first]
    book(index, others[0], "held", ALWAYS, 0b0011)
    assert place(index, slots(1), policy="first").node == first


def test_best_takes_the_gpu_that_keeps_the_fewest_units():
    index = pool(*(node(at, gpu(at)) for at in range(1, 4)))
    book(index, 2, "held", ALWAYS, 0b0001)
    book(index, 3, "held", ALWAYS, 0b0011)
    assert place(index, slots(2), policy="best").node == 3
    assert place(index, slots(3), policy="best").node == 2


def test_spread_takes_an_idle_gpu_of_the_node_with_the_most():
    index = pool(node(1, gpu(1)), node(2, gpu(2), gpu(3)), node(4, gpu(4), gpu(5), gpu(6)))
    book(index, 4, "held", ALWAYS, 0b0001)
    book(index, 5, "held", ALWAYS, 0b0001)
    assert place(index, slots(1), policy="spread").node == 2


def test_fragmentation_fills_a_gpu_in_use_before_it_opens_another():
    index = pool(*(node(at, shared(at)) for at in range(1, 4)))
    book(index, 2, "held", ALWAYS, (1 << 70) - 1 | 1 << 100)
    assert place(index, share(20)).node == 2
    assert place(index, share(40)).node != 2


def test_fragmentation_uses_gpus_that_their_host_cannot_serve_any_more():
    index = pool(*(node(at, shared(at), vcpu=16_000) for at in range(1, 4)))
    book_host(index, 2, "held", ALWAYS, vcpu=15_000)
    assert place(index, share(50)).node == 2
    assert place(index, share(50), vcpu=1000).node == 2
    assert place(index, share(50), vcpu=2000).node != 2


def test_fragmentation_cuts_an_instance_where_it_spoils_least():
    index = pool(node(1, on_demand(1)), node(2, on_demand(2)))
    book(index, 2, "held", ALWAYS, 0b0001_0000)
    offer = place(index, profile("1g"))
    assert offer.node == 2
    assert offer.pieces[0].units in (0b0010_0000, 0b0100_0000)
    assert place(index, profile("8g")).node == 1


def test_instances_that_overlap_are_not_both_taken():
    index = pool(node(1, on_demand(1)))
    offer = place(index, profile("4g", 2))
    assert sorted(piece.units for piece in offer.pieces) == [0b0000_1111, 0b1111_0000]
    assert isinstance(place(index, profile("4g", 2), profile("1g")), Verdict)
    assert isinstance(place(index, profile("4g"), profile("1g", 3)), Offer)
    assert isinstance(place(index, profile("4g"), profile("1g", 5)), Verdict)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_fills_a_fleet_to_the_last_slot(policy):
    index = pool(*(node(at, gpu(10 * at), gpu(10 * at + 1)) for at in range(1, 8)))
    for number in range(7 * 2 * 4):
        offer = place(index, slots(1), policy=policy)
        book(index, offer.pieces[0].gpu, f"r{number}", ALWAYS, offer.pieces[0].units)
    assert isinstance(place(index, slots(1), policy=policy), Verdict)


# -- near and far ----------------------------------------------------------------------------------


def near(index, *devices, **how):
    return index.place(Ask(devices, 0, 0, **how), *ALWAYS, 0)


def test_pieces_that_belong_together_lie_on_one_gpu():
    index = pool(node(1, gpu(1), gpu(2)), node(2, gpu(3), gpu(4)))
    book(index, 1, "held", ALWAYS, 0b0111)
    book(index, 2, "held", ALWAYS, 0b0111)
    offer = near(index, slots(1, 2), together="gpu")
    assert offer.node == 2
    assert len({piece.gpu for piece in offer.pieces}) == 1
    assert isinstance(near(index, slots(2, 3), together="gpu"), Verdict)


def test_pieces_that_belong_apart_lie_on_gpus_of_their_own():
    index = pool(node(1, gpu(1), gpu(2)))
    offer = near(index, slots(1, 2), apart=True)
    assert sorted(piece.gpu for piece in offer.pieces) == [1, 2]
    assert near(index, slots(1, 3), apart=True).code == "larger_than_any_node"
    held = near(index, slots(1), slots(1), apart=True)
    assert sorted(piece.gpu for piece in held.pieces) == [1, 2]
    cut = pool(node(1, mig(1, "1g", "1g"), mig(2, "1g")))
    assert len({piece.gpu for piece in near(cut, profile("1g", 2), apart=True).pieces}) == 2
    assert isinstance(near(cut, profile("1g", 3), apart=True), Verdict)


def test_gpus_of_one_numa_node_or_nvlink_domain_are_taken_together():
    gpus = [whole(at, group={"numaNode": at // 3}) for at in range(1, 6)]
    index = pool(node(1, *gpus))
    offer = near(index, DeviceAsk("gpu", 3), together="numa")
    assert {piece.gpu for piece in offer.pieces} == {3, 4, 5}
    assert near(index, DeviceAsk("gpu", 4), together="numa").code == "larger_than_any_node"
    linked = [whole(at) for at in range(1, 4)]
    for each in linked[1:]:
        each.attributes = {**each.attributes, "nvlinkDomain": 7}
    index = pool(node(1, *linked))
    offer = near(index, DeviceAsk("gpu", 2), together="nvlink")
    assert {piece.gpu for piece in offer.pieces} == {2, 3}
    assert isinstance(near(index, DeviceAsk("gpu", 3), together="nvlink"), Verdict)


# -- many ------------------------------------------------------------------------------------------


def allocated(numbers):
    """Fill a fleet of three builds whose nodes have these numbers; count what is handed out."""
    builds = [(1, 8_000), (2, 104_000), (4, 32_000), (8, 96_000)] * 12
    nodes = [
        NodeState(
            number,
            f"n{number}",
            vcpu,
            10**9,
            tuple(
                GpuState(number * 10 + at, "shares", 100, {"gpuModel": "X"}, {})
                for at in range(gpus)
            ),
        )
        for number, (gpus, vcpu) in zip(numbers, builds, strict=True)
    ]
    index = PoolIndex(nodes)
    held = 0
    sizes = [(81, 9), (47, 5), (100, 12), (32, 4), (100, 6), (65, 12), (23, 2)]
    for at in range(600):
        units, cpus = sizes[at * 11 % 7]
        offer = index.place(Ask((share(units),), cpus * 1000), *ALWAYS, 0)
        if isinstance(offer, Offer):
            piece = offer.pieces[0]
            index.book(piece.gpu, (f"t{at}", 0), Held(*ALWAYS, piece.units))
            index.book_host(offer.node, f"t{at}", HostHeld(*ALWAYS, cpus * 1000, 0))
            held += units
    return held


def test_how_nodes_are_numbered_makes_no_difference():
    numbers = list(range(48))
    by_build = [*range(0, 48, 4), *range(1, 48, 4), *range(2, 48, 4), *range(3, 48, 4)]
    results = [allocated(each) for each in (numbers, numbers[::-1], by_build, by_build[::-1])]
    capacity = 100 * 12 * (1 + 2 + 4 + 8)
    assert max(results) - min(results) <= capacity // 50


def test_more_kinds_of_requests_than_are_kept_in_order_change_nothing():
    index = pool(*(node(at, gpu(at, ruler=4)) for at in range(1, 4)))
    for number in range(1200):
        some = Selector((Expression("gpuModel", "NotIn", (f"M{number}",)),))
        assert place(index, DeviceAsk("gpu.slot", 1, 4, some)).pieces[0].units == 0b1111
    book(index, 1, "held", ALWAYS, -1)
    book(index, 2, "held", ALWAYS, -1)
    assert place(index, slots(1, 1, one_of("gpuModel", "H100"))).node == 3


def test_keys_are_in_order_however_many_come_and_go():
    keys = Keys()
    numbers = [mixed(number) for number in range(3000)]
    for number in numbers:
        keys.add(number)
    assert list(keys) == sorted(numbers)
    for number in numbers[:2990]:
        keys.remove(number)
    assert list(keys) == sorted(numbers[2990:])
    assert keys.first == min(numbers[2990:])
    for number in numbers[2990:]:
        keys.remove(number)
    assert not keys
    keys.add(5)
    keys.add(3)
    assert keys.first == 3

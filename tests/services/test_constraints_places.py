"""Where an ask says that its pieces are to lie, they lie, or it waits; and by the policy named."""

import pytest
from services_world import World

from apportion.errors import InvalidInputError
from apportion.nodes.schemas import NvLink
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio
FOUR = ("GPU-n1-0", "GPU-n1-1", "GPU-n1-2", "GPU-n1-3")


def where(view):
    return sorted(each.gpu_id for each in view.bookings)


def linked(*pairs, node="n1", count=4):
    """Report GPUs of two NUMA nodes, each link by one of its ends alone."""
    peers = [
        [NvLink(peer=f"GPU-{node}-{other}", links=4) for one, other in pairs if one == at]
        for at in range(count)
    ]
    return inventory(
        node,
        *(
            gpu(
                "H100",
                at,
                node=node,
                numa_node=at // 2,
                nvlink=[each.model_dump() for each in peer],
            )
            for at, peer in enumerate(peers)
        ),
    )


async def test_pieces_lie_in_one_numa_node_or_wait(world: World):
    pool = await world.pool(pool_of("H100"), linked())
    one = await world.create(ask(pool.id, device(where=[("gpuUuid", "In", [FOUR[1]])])))
    pair = ask(pool.id, device(count=2), placement={"together": "numa"})
    view = await world.create(pair)
    assert where(view) == [FOUR[2], FOUR[3]]
    assert view.placement.together == "numa"
    waiting = await world.create(pair)
    assert (waiting.state, waiting.bookings) == ("pending", [])
    await world.release(view)
    await world.release(one)
    # What waited is held to the same conditions as when it came.
    placed = await world.get(waiting)
    assert {each[-1] for each in where(placed)} in ({"0", "1"}, {"2", "3"})


async def test_pieces_lie_in_one_nvlink_domain_which_a_way_of_links_makes(world: World):
    pool = await world.pool(pool_of("H100"), linked((0, 2), (3, 2)))
    three = ask(pool.id, device(count=3), placement={"together": "nvlink"})
    assert where(await world.create(three)) == [FOUR[0], FOUR[2], FOUR[3]]
    alone = ask(pool.id, device(), placement={"together": "nvlink"})
    assert where(await world.create(alone)) == [FOUR[1]]


async def test_gpus_without_links_share_no_nvlink_domain(world: World):
    pool = await world.pool(pool_of("H100"), linked())
    pair = await world.create(ask(pool.id, device(count=2), placement={"together": "nvlink"}))
    assert pair.state == "pending"
    assert pair.reason["reasons"] == [{"code": "larger_than_any_node", "count": 1}]


async def test_slots_lie_on_one_gpu_or_each_on_its_own(world: World):
    pool = await world.pool(
        pool_of("T4", "timeslice", replicas=4),
        inventory("n1", *(gpu("T4", at) for at in range(3))),
    )
    slots = device("gpu.slot", count=3)
    near = await world.create(ask(pool.id, slots, placement={"together": "gpu"}))
    assert len(set(where(near))) == 1
    apart = await world.create(ask(pool.id, slots, placement={"apart": True}))
    assert len(set(where(apart))) == 3
    # Four are free, three of them nowhere together.
    for _ in range(2):
        await world.create(ask(pool.id, device("gpu.slot"), placement={"policy": "spread"}))
    assert (await world.create(ask(pool.id, slots, placement={"together": "gpu"}))).bookings == []
    assert len((await world.create(ask(pool.id, slots))).bookings) == 3


async def test_hundredths_of_several_sizes_lie_on_one_gpu_or_each_on_its_own(world: World):
    pool = await world.pool(
        pool_of("T4", "timeslice", shares=100), inventory("n1", gpu("T4", 0), gpu("T4", 1))
    )
    sizes = device("gpu.share", units=30), device("gpu.share", units=20)
    near = await world.create(ask(pool.id, *sizes, placement={"together": "gpu"}))
    assert len(set(where(near))) == 1
    apart = await world.create(ask(pool.id, *sizes, placement={"apart": True}))
    assert len(set(where(apart))) == 2
    three = device("gpu.share", units=10), *sizes
    waits = await world.create(ask(pool.id, *three, placement={"apart": True}))
    assert (waits.state, waits.reason["code"]) == ("pending", "larger_than_any_node")


async def test_instances_lie_on_one_gpu_or_each_on_its_own(world: World):
    halves = [gpu("H100", at, "3g.40gb@0", "3g.40gb@4") for at in range(3)]
    pool = await world.pool(pool_of("H100", "mig"), inventory("n1", *halves))
    both = device("gpu.mig", count=2, profile="3g.40gb")
    apart = await world.create(ask(pool.id, both, placement={"apart": True}))
    assert len(set(where(apart))) == 2
    near = await world.create(ask(pool.id, both, placement={"together": "gpu"}))
    assert len(set(where(near))) == 1
    assert (await world.create(ask(pool.id, both, placement={"together": "gpu"}))).bookings == []
    assert len(set(where(await world.create(ask(pool.id, both))))) == 2


async def two_taken(world: World, placement, policy):
    """Let two slots be taken one after the other; return of how many GPUs they are."""
    pool = await world.pool(
        pool_of("T4", "timeslice", replicas=4, **policy),
        inventory("n1", gpu("T4", 0), gpu("T4", 1)),
    )
    request = ask(pool.id, device("gpu.slot"), placement=placement)
    return len({(await world.create(request)).bookings[0].gpu_id for _ in range(2)})


@pytest.mark.parametrize(
    ("pool_says", "ask_says", "gpus"),
    [
        ({}, {}, 1),
        ({"placement": "spread"}, {}, 2),
        ({}, {"policy": "spread"}, 2),
        ({"placement": "spread"}, {"policy": "best"}, 1),
        ({"placement": "spread"}, {"policy": None}, 2),
    ],
)
async def test_the_pools_policy_places_unless_the_ask_names_one(
    world: World, pool_says, ask_says, gpus
):
    assert await two_taken(world, ask_says, pool_says) == gpus


@pytest.mark.parametrize(("second", "gpus"), [("best", 1), ("spread", 2)])
async def test_what_waits_is_placed_by_the_policy_that_it_named(world: World, second, gpus):
    pool = await world.pool(
        pool_of("T4", "timeslice", replicas=2),
        inventory("n1", gpu("T4", 0), gpu("T4", 1)),
    )
    full = await world.create(ask(pool.id, device("gpu.slot", count=4)))
    waiting = []
    for policy in ("best", second):
        request = ask(pool.id, device("gpu.slot"), placement={"policy": policy})
        waiting.append(await world.create(request))
        world.clock.advance(seconds=1)
    await world.release(full)
    taken = [(await world.get(each)).bookings[0].gpu_id for each in waiting]
    assert len(set(taken)) == gpus


@pytest.mark.parametrize(
    ("devices", "placement", "field"),
    [
        ([device("gpu.slot", count=2)], {"together": "gpu", "apart": True}, "placement.apart"),
        ([device(count=2)], {"together": "gpu"}, "placement.together"),
        ([device(), device("gpu.slot")], {"together": "gpu"}, "placement.together"),
        ([device("gpu.slot", count=3, units=2)], {"together": "gpu"}, "placement.together"),
        ([], {"together": "numa"}, "placement.together"),
        ([], {"apart": True}, "placement.apart"),
    ],
)
async def test_what_could_never_be_is_refused(world: World, devices, placement, field):
    pool = await world.pool(
        pool_of("T4", "timeslice", replicas=4), inventory("n1", gpu("T4", 0), gpu("T4", 1))
    )
    with pytest.raises(InvalidInputError) as refused:
        await world.create(ask(pool.id, *devices, placement=placement, vcpu=1))
    assert refused.value.field == field
    assert await world.rows("SELECT FROM reservations") == []


async def test_shares_on_one_gpu_are_one_piece_of_more_units(world: World):
    pool = await world.pool(pool_of("T4", "mps", shares=100), inventory("n1", gpu("T4", 0)))
    near = {"together": "gpu"}
    for pieces, field in (
        ([device("gpu.share", count=2, units=10)], "devices[0].count"),
        ([device("gpu.share", units=60), device("gpu.share", units=41)], "placement.together"),
    ):
        with pytest.raises(InvalidInputError) as refused:
            await world.create(ask(pool.id, *pieces, placement=near))
        assert refused.value.field == field
    pieces = [device("gpu.share", units=60), device("gpu.share", units=40)]
    assert len((await world.create(ask(pool.id, *pieces, placement=near))).bookings) == 2


async def test_one_piece_may_say_that_it_lies_on_one_gpu(world: World):
    pool = await world.pool(pool_of("H100"), linked())
    view = await world.create(ask(pool.id, device(), placement={"together": "gpu"}))
    assert view.state == "active"


async def test_one_key_with_other_conditions_is_another_ask(world: World):
    pool = await world.pool(pool_of("H100"), linked())
    first = await world.create(ask(pool.id, device(count=2), key="k"))
    same = ask(pool.id, device(count=2), key="k", placement={"together": "node"})
    assert (await world.create(same)).id == first.id
    [other] = await world.reservations.create_many(
        world.caller, [ask(pool.id, device(count=2), key="k", placement={"together": "numa"})]
    )
    assert other.code == "CONFLICT"

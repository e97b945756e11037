"""MIG on demand: every legal place is there to book, whole GPUs too where no reset is needed."""

import pytest

from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio


ON = {"mig": {"current": True, "pending": True}}


def on_demand(model, name=None):
    return pool_of(model, "mig", name=name, migLayout="dynamic")


async def reasons(world, pool):
    return {atom.id.partition("/")[2]: atom.reason for atom in await world.atoms(pool)}


async def seven(world, pool, profile):
    """Ask for seven instances one by one and say which of them are placed."""
    states = []
    for _ in range(7):
        made = await world.create(ask(pool.id, device("gpu.mig", profile=profile)))
        states.append(made.state)
    return states


@pytest.mark.parametrize(("model", "small"), [("A100", "1g.5gb"), ("H100", "1g.10gb")])
async def test_seven_small_instances_fill_a_gpu_and_the_eighth_waits(world, model, small):
    pool = await world.pool(on_demand(model), inventory("n1", gpu(model, 0, **ON)))
    assert await seven(world, pool, small) == ["active"] * 7
    eighth = await world.create(ask(pool.id, device("gpu.mig", profile=small)))
    assert (eighth.state, eighth.reason["code"]) == ("pending", "units_booked")


async def test_a_whole_gpu_is_served_from_the_same_pool_where_no_reset_is_needed(world):
    pool = await world.pool(on_demand("H100"), inventory("n1", gpu("H100", 0), gpu("H100", 1)))
    part = await world.create(ask(pool.id, device("gpu.mig", profile="1g.10gb")))
    whole = await world.create(ask(pool.id, device("gpu")))
    assert whole.state == "active"
    assert whole.bookings[0].gpu_id != part.bookings[0].gpu_id
    assert (whole.bookings[0].units, str(whole.bookings[0].share)) == ("{[0,)}", "1")
    other = await world.create(ask(pool.id, device("gpu")))
    assert (other.state, other.reason["code"]) == ("pending", "units_booked")
    beside = await world.create(ask(pool.id, device("gpu.mig", profile="4g.40gb")))
    assert beside.bookings[0].gpu_id == part.bookings[0].gpu_id


async def test_where_the_mode_needs_a_reset_the_other_kind_is_refused_with_that_reason(world):
    on = await world.pool(on_demand("A100"), inventory("n1", gpu("A100", 0, **ON)))
    whole = await world.create(ask(on.id, device("gpu")))
    assert (whole.state, whole.reason["code"]) == ("pending", "mig_mode_needs_reset")
    assert "reset" in whole.reason["message"]
    off = await world.pool(on_demand("A100", "off"), inventory("n2", gpu("A100", 0, node="n2")))
    assert (await world.create(ask(off.id, device("gpu")))).state == "active"
    part = await world.create(ask(off.id, device("gpu.mig", profile="1g.10gb")))
    assert (part.state, part.reason["code"]) == ("pending", "mig_mode_needs_reset")


async def test_an_instance_nobody_asked_for_is_shown_and_never_booked(world):
    pool = await world.pool(on_demand("H100"), inventory("n1", gpu("H100", 0, "3g.40gb@0")))
    found = await reasons(world, pool)
    assert found["mig/9@0"] == "foreign_instance"
    assert found["mig/19@3"] == "foreign_instance", "lies within it"
    assert found[""] == "foreign_instance", "the whole GPU overlaps it"
    assert found["mig/19@4"] is None
    whole = await world.create(ask(pool.id, device("gpu")))
    assert whole.state == "pending"
    beside = await world.create(ask(pool.id, device("gpu.mig", profile="3g.40gb")))
    assert beside.bookings[0].atom == "GPU-n1-0/mig/9@4"
    second = await world.create(ask(pool.id, device("gpu.mig", profile="3g.40gb")))
    assert second.state == "pending"


async def test_an_instance_made_for_a_holder_gets_its_names_and_keeps_the_atom(world):
    pool = await world.pool(on_demand("H100"), inventory("n1", gpu("H100", 0)))
    held = await world.create(ask(pool.id, device("gpu.mig", profile="3g.40gb")))
    [atom] = [a for a in await world.atoms(pool) if a.id == held.bookings[0].atom]
    assert "migUuid" not in atom.attributes
    assert atom.attributes["migProfile"] == "3g.40gb"
    start = int(atom.id.rpartition("@")[2])
    await world.report(pool, inventory("n1", gpu("H100", 0, f"3g.40gb@{start}")))
    [named] = [a for a in await world.atoms(pool) if a.id == atom.id]
    assert named.attributes["migUuid"].startswith("MIG-")
    assert named.reason is None
    beside = await world.create(ask(pool.id, device("gpu.mig", profile="3g.40gb")))
    assert beside.state == "active"


async def test_what_its_node_made_is_no_stranger_when_its_holder_has_gone(world):
    made = gpu("H100", 0, "3g.40gb@0")
    made.mig.instances[0].managed = True
    pool = await world.pool(on_demand("H100"), inventory("n1", made))
    assert set((await reasons(world, pool)).values()) == {None}


async def test_a_toggle_of_our_own_keeps_nobody_out_where_it_needs_no_reset(world):
    toggling = {"mig": {"current": False, "pending": True}}
    pool = await world.pool(on_demand("H100"), inventory("n1", gpu("H100", 0, **toggling)))
    assert (await world.create(ask(pool.id, device("gpu.mig", profile="1g.10gb")))).state == (
        "active"
    )
    other = await world.pool(
        on_demand("A100"), inventory("n2", gpu("A100", 0, node="n2", **toggling))
    )
    assert set((await reasons(world, other)).values()) == {"partitionPending"}


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"sm_count": 60, "memory_mib": 40448}, None),
        ({"sm_count": 59}, "delivered_less"),
        ({"memory_mib": 37000}, "delivered_less"),
        ({"memory_mib": 40000}, None),
    ],
)
async def test_what_was_delivered_is_held_against_what_was_promised(world, found, reason):
    made = gpu("H100", 0, "3g.40gb@0", "3g.40gb@4")
    made.mig.instances[0] = made.mig.instances[0].model_copy(update=found)
    pool = await world.pool(pool_of("H100", "mig"), inventory("n1", made))
    assert (await reasons(world, pool))["mig/9@0"] == reason
    assert (await reasons(world, pool))["mig/9@4"] is None
    both = [
        await world.create(ask(pool.id, device("gpu.mig", profile="3g.40gb"))) for _ in range(2)
    ]
    assert [each.state for each in both] == ["active", "pending" if reason else "active"]


async def granted(world, model, *wanted):
    """Ask one GPU that is cut on demand for one thing after the other; say which it gives."""
    pool = await world.pool(on_demand(model), inventory("n1", gpu(model, 0, **ON)))
    states = []
    for each in wanted:
        what = device("gpu") if each == "whole" else device("gpu.mig", profile=each)
        states.append((await world.create(ask(pool.id, what))).state == "active")
    return states


@pytest.mark.parametrize(
    ("model", "wanted", "given"),
    [
        ("A100", ["1g.5gb"] * 8, [True] * 7 + [False]),
        ("H100", ["1g.10gb"] * 8, [True] * 7 + [False]),
        # A 4g begins at the first slice only, so the 1g before it goes to the other half.
        ("A100", ["1g.5gb", "4g.20gb"], [True, True]),
        ("H100", ["1g.10gb", "4g.40gb"], [True, True]),
        ("H100", ["4g.40gb", "4g.40gb"], [True, False]),
        ("A100", ["3g.20gb", "3g.20gb", "1g.5gb"], [True, True, False]),
        ("H100", ["3g.40gb", "3g.40gb", "1g.10gb"], [True, True, False]),
        # One optical flow engine: the second instance that wants it waits.
        ("A100", ["1g.5gb+me", "1g.5gb+me", "1g.5gb"], [True, False, True]),
        ("H100", ["1g.10gb+me", "1g.10gb+me", "1g.10gb"], [True, False, True]),
        ("H100", ["1g.10gb", "7g.80gb", "whole"], [True, False, False]),
        ("H100", ["7g.80gb", "1g.10gb", "whole"], [True, False, False]),
        ("H100", ["whole", "1g.10gb", "7g.80gb"], [True, False, False]),
        ("A100", ["1g.5gb", "7g.40gb"], [True, False]),
    ],
)
async def test_one_gpu_gives_what_the_hardware_would(world, model, wanted, given):
    assert await granted(world, model, *wanted) == given

"""A node is asked for what has begun on it and nothing else; its reports make that ready."""

from datetime import timedelta

import pytest
from partitions_world import LARGE, SMALL, Nodes

from apportion.errors import ConflictError
from apportion.reservations.schemas import ReservationUpdate
from apportion.reservations.service import Reservations
from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio
HOUR = timedelta(hours=1)


@pytest.fixture
async def mig(world):
    nodes = Nodes(world, await world.pool(pool_of("H100", "mig", migLayout=SMALL)))
    await nodes.join("n1")
    return nodes


@pytest.fixture
async def dynamic(world):
    nodes = Nodes(world, await world.pool(pool_of("H100", "mig", migLayout="dynamic")))
    await nodes.join("n1", layout=None)
    return nodes


async def devices(nodes, name="n1"):
    spec = await nodes.spec(name)
    return spec.generation, spec.units["devices"]["assignments"]


def standing(booking):
    return booking.allocation.state, booking.allocation.reason["code"]


async def told(world):
    rows = await world.rows(
        "SELECT type, data FROM events WHERE type LIKE 'reservation.device%%' ORDER BY id"
    )
    return [(row["type"].rpartition("_")[2], row["data"]["reason"]["code"]) for row in rows]


async def test_what_begins_at_once_is_asked_for_reported_and_withdrawn(mig):
    world = mig.world
    before, none = await devices(mig)
    held = await mig.place(duration="2h")
    assert none == []
    generation, [asked] = await devices(mig)
    assert generation == before + 1
    [booking] = held.bookings
    place = booking.atom.rpartition("@")[2]
    assert asked == {
        "allocation_id": f"{held.id}.0",
        "reservation_id": held.id,
        "gpu": booking.gpu_id,
        "class": "gpu.mig",
        "share": "1/7",
        "begins": "2026-03-02T09:00:00Z",
        "ends": "2026-03-02T11:00:00Z",
        "profile": "1g.10gb",
        "start": int(place),
    }
    assert (booking.allocation.id, booking.allocation.state) == (f"{held.id}.0", "asked")
    assert booking.attributes == {"migProfile": "1g.10gb", "vramGiB": 80}
    assert booking == (await world.get(held)).bookings[0], "as it is read back"
    await mig.converge("n1")
    [booking] = (await world.get(held)).bookings
    assert standing(booking) == ("ready", "device_there")
    assert booking.attributes["migUuid"].startswith("MIG-")
    assert {"giId", "ciId"} <= booking.attributes.keys()
    ended = await world.release(held)
    assert ended.bookings == [] or ended.bookings[0].allocation.state == "withdrawn"
    assert await devices(mig) == (generation + 1, [])
    assert await told(world) == [("ready", "device_there")]


async def test_what_begins_later_is_asked_for_when_its_window_begins_and_no_more_when_it_ends(mig):
    before, _ = await devices(mig)
    held = await mig.place(start=MONDAY + HOUR, duration="1h")
    assert held.bookings[0].allocation is None
    assert await devices(mig) == (before, [])
    await mig.world.tick(hours=1)
    generation, [asked] = await devices(mig)
    assert (generation, asked["reservation_id"]) == (before + 1, held.id)
    await mig.world.tick(minutes=59)
    assert (await devices(mig))[0] == generation
    await mig.world.tick(minutes=1)
    assert await devices(mig) == (generation + 1, [])


async def test_an_end_that_moves_is_another_spec(mig):
    held = await mig.place(duration="1h")
    generation, _ = await devices(mig)
    for number, hours in enumerate((3, 2), 1):
        request = ReservationUpdate(duration=f"{hours}h")
        await mig.world.reservations.update(mig.world.caller, held.id, request)
        now, [asked] = await devices(mig)
        assert (now, asked["ends"]) == (generation + number, f"2026-03-02T{9 + hours}:00:00Z")


async def test_an_end_that_cannot_move_leaves_the_spec_as_it_is(mig):
    held = await mig.place(duration="1h")
    await mig.change(migLayout=LARGE)
    await mig.world.gate.advance()
    before = await devices(mig)
    request = ReservationUpdate(duration="5h")
    with pytest.raises(ConflictError):
        await mig.world.reservations.update(mig.world.caller, held.id, request)
    assert await devices(mig) == before


async def test_what_is_over_makes_way_for_what_begins_before_a_tick_says_so(world):
    pool = await world.pool(pool_of("H100"))
    whole = Nodes(world, pool)
    await whole.join("n1", gpus=1, layout=None)
    # A server that has looked before there was anything knows of no window that ends.
    another = Reservations(world.runtime)
    await another.lifecycle.advance()
    first = await world.create(ask(pool.id, device(), duration="1h"))
    generation, [asked] = await devices(whole)
    assert (asked["class"], asked["reservation_id"]) == ("gpu", first.id)
    assert "profile" not in asked
    world.clock.advance(hours=1)
    second = await another.create(world.caller, ask(pool.id, device(), duration="1h"))
    now, [asked] = await devices(whole)
    assert (now, asked["reservation_id"]) == (generation + 1, second.id)
    assert await world.findings() == []
    await world.tick(seconds=1)
    assert (await devices(whole))[0] == now


async def test_a_window_without_an_end_has_none_in_the_spec(world):
    pool = await world.pool(pool_of("H100", openEnded=True))
    whole = Nodes(world, pool)
    await whole.join("n1", gpus=1, layout=None)
    await world.create(ask(pool.id, device(), open_ended=True))
    _, [asked] = await devices(whole)
    assert asked["ends"] is None


async def test_slots_and_hundredths_are_named(world):
    slots = Nodes(world, await world.pool(pool_of("H100", "mps", replicas=4)))
    await slots.join("n1", gpus=1, layout=None)
    await world.create(ask(slots.pool.id, device("gpu.slot", units=2)))
    _, [asked] = await devices(slots)
    assert (asked["slots"], asked["share"]) == ([0, 1], "1/2")
    pool = await world.pool(pool_of("H100", "timeslice", name="free", shares=100))
    shares = Nodes(world, pool)
    await shares.join("n2", gpus=1, layout=None)
    held = await world.create(ask(pool.id, device("gpu.share", units=81)))
    _, [asked] = await devices(shares, "n2")
    assert (asked["hundredths"], asked["share"]) == (81, "81/100")
    await shares.converge("n2")
    assert (await world.get(held)).bookings[0].allocation.state == "ready"


async def test_how_devices_are_taken_back_is_asked_of_each_node_at_once(world):
    nodes = Nodes(world, await world.pool(pool_of("H100")))
    await nodes.join("n1", gpus=1, layout=None)
    spec = await nodes.spec("n1")
    assert spec.units["devices"]["release"] == {"grace_seconds": 0, "reset": False}
    await nodes.change(endGrace="90s", resetOnRelease=True)
    after = await nodes.spec("n1")
    assert after.units["devices"]["release"] == {"grace_seconds": 90, "reset": True}
    assert after.generation == spec.generation + 1


async def sharing(nodes, name="n1"):
    spec = await nodes.spec(name)
    return spec.generation, spec.units["gpu-sharing"]


async def test_mps_is_asked_to_let_each_process_have_what_the_widest_holder_has(world):
    slots = Nodes(world, await world.pool(pool_of("H100", "mps", replicas=4)))
    await slots.join("n1", gpus=1, layout=None)
    before, asked = await sharing(slots)
    assert asked == {"mode": "mps", "replicas": 4, "mps_units": 25, "widest": {}}
    await world.create(ask(slots.pool.id, device("gpu.slot"), duration="3h"))
    assert (await sharing(slots))[1]["widest"] == {"GPU-n1-0": "1/4"}
    wide = await world.create(ask(slots.pool.id, device("gpu.slot", units=2), duration="2h"))
    generation, asked = await sharing(slots)
    assert (asked["widest"], generation) == ({"GPU-n1-0": "1/2"}, before + 2)
    await world.release(wide)
    assert (await sharing(slots))[1]["widest"] == {"GPU-n1-0": "1/4"}


async def test_a_length_of_time_slices_is_asked_of_each_node_at_once(world):
    pool = await world.pool(pool_of("H100", "timeslice", replicas=4))
    slots = Nodes(world, pool)
    await slots.join("n1", gpus=1, layout=None)
    before, asked = await sharing(slots)
    assert asked == {"mode": "timeslice", "replicas": 4}
    await world.create(ask(pool.id, device("gpu.slot")))
    await slots.change(replicas=4, timeSlice="short")
    after, asked = await sharing(slots)
    assert asked == {"mode": "timeslice", "replicas": 4, "time_slice": "short"}
    assert after == before + 2


async def unit(nodes, name="n1"):
    return (await nodes.spec(name)).units["mig-layout"]


async def test_a_node_is_asked_for_each_instance_while_somebody_has_it(dynamic):
    world = dynamic.world
    idle = {"gpu": "GPU-n1-0", "mig": None, "instances": []}
    other = {**idle, "gpu": "GPU-n1-1"}
    assert await unit(dynamic) == {
        "layout": "dynamic",
        "mode_change": "idle",
        "gpus": [idle, other],
    }
    part = await dynamic.place("3g.40gb", duration="2h")
    [piece] = part.bookings
    start = int(piece.atom.rpartition("@")[2])
    instance = {"allocation_id": f"{part.id}.0", "profile": "3g.40gb", "start": start}
    by_gpu = {each["gpu"]: each for each in (await unit(dynamic))["gpus"]}
    assert by_gpu[piece.gpu_id] == {"gpu": piece.gpu_id, "mig": True, "instances": [instance]}
    assert (piece.attributes, piece.allocation.state) == (
        {"migProfile": "3g.40gb", "vramGiB": 40},
        "asked",
    )
    await dynamic.converge("n1")
    [made] = (await world.get(part)).bookings
    assert made.allocation.state == "ready"
    assert made.attributes["migUuid"] == "MIG-n1-made-1"
    await world.release(part)
    assert (await unit(dynamic))["gpus"] == [idle, other]
    await dynamic.converge("n1")
    assert dynamic.nodes["n1"].cuts == [(), ()]
    again = await dynamic.place("3g.40gb")
    await dynamic.converge("n1")
    [made] = (await world.get(again)).bookings
    assert made.attributes["migUuid"] == "MIG-n1-made-2"


async def test_a_whole_gpu_has_its_mode_switched_for_its_window_alone(dynamic):
    world = dynamic.world
    parts = [await dynamic.place("4g.40gb", duration="1h") for _ in range(2)]
    await dynamic.converge("n1")
    assert dynamic.nodes["n1"].modes == {0: True, 1: True}
    whole = await world.create(ask(dynamic.pool.id, device(), start=MONDAY + HOUR, duration="1h"))
    await world.tick(hours=1)
    [piece] = whole.bookings
    by_gpu = {each["gpu"]: each for each in (await unit(dynamic))["gpus"]}
    assert by_gpu[piece.gpu_id]["mig"] is False
    assert {each["mig"] for each in by_gpu.values()} == {False, None}
    view = await world.get(whole)
    assert (view.state, view.bookings[0].allocation.state) == ("placed", "asked")
    node = dynamic.nodes["n1"]
    node.read(await dynamic.spec("n1"))
    await dynamic.deliver("n1", node.report())
    [piece] = (await world.get(whole)).bookings
    assert standing(piece) == ("asked", "mig_mode_on")
    assert piece.allocation.since == MONDAY + HOUR
    await dynamic.converge("n1")
    assert (await world.get(whole)).bookings[0].allocation.state == "ready"
    assert [(await world.get(part)).state for part in parts] == ["ended", "ended"]


async def test_the_word_of_a_node_alone_makes_nothing_ready(dynamic):
    world = dynamic.world
    held = await dynamic.place("3g.40gb")
    node = dynamic.nodes["n1"]
    node.read(await dynamic.spec("n1"))
    node.converged = dict.fromkeys(node.spec.units, node.spec.generation)
    await dynamic.deliver("n1", node.report())
    [piece] = (await world.get(held)).bookings
    assert standing(piece) == ("missing", "device_missing")
    node.apply()
    [made] = node.made.values()
    made.memory_mib = 1000
    await dynamic.deliver("n1", node.report())
    [piece] = (await world.get(held)).bookings
    assert standing(piece) == ("missing", "delivered_less")
    made.memory_mib, made.allocation_id = None, "res_other.0"
    await dynamic.deliver("n1", node.report())
    assert (await world.get(held)).bookings[0].allocation.reason["code"] == "instance_of_another"
    made.allocation_id = f"{held.id}.0"
    await dynamic.deliver("n1", node.report())
    assert (await world.get(held)).bookings[0].allocation.state == "ready"
    node.cuts = [(), ()]
    await dynamic.deliver("n1", node.report())
    [piece] = (await world.get(held)).bookings
    assert (piece.allocation.state, "migUuid" in piece.attributes) == ("missing", False)
    assert await told(world) == [
        ("missing", "device_missing"),
        ("ready", "device_there"),
        ("missing", "device_missing"),
    ]


async def test_a_report_from_before_the_ask_says_nothing_of_it(dynamic):
    first = await dynamic.place("3g.40gb", duration="1h")
    await dynamic.converge("n1")
    await dynamic.world.release(first)
    second = await dynamic.place("3g.40gb", duration="1h")
    node = dynamic.nodes["n1"]
    await dynamic.deliver("n1", node.report())  # it still has the first one's
    [piece] = (await dynamic.world.get(second)).bookings
    assert piece.allocation.state == "asked"
    assert "migUuid" not in piece.attributes


async def test_what_is_there_all_along_is_ready_when_its_node_has_read_who_is_to_have_it(mig):
    held = await mig.place()
    await mig.deliver("n1", mig.nodes["n1"].report())  # of the spec before
    [piece] = (await mig.world.get(held)).bookings
    assert standing(piece) == ("asked", "device_asked")
    await mig.converge("n1")
    assert (await mig.world.get(held)).bookings[0].allocation.state == "ready"


async def test_what_is_over_at_a_grant_is_in_its_spec_no_more_though_no_tick_has_said_so(mig):
    held = await mig.place(duration="1h")
    await mig.change(migLayout=LARGE)
    mig.world.clock.advance(hours=1)
    await mig.world.gate.advance()
    assert await mig.state() == "granted"
    assert (await mig.world.get(held)).state == "placed", "no tick"
    spec = await mig.spec("n1")
    assert spec.units["mig-layout"]["layout"] == LARGE
    assert spec.units["devices"]["assignments"] == []
    await mig.world.tick()
    assert (await mig.spec("n1")).generation == spec.generation


async def test_a_node_that_joins_is_not_done_while_it_has_instances_of_nobody(world):
    nodes = Nodes(world, await world.pool(pool_of("H100", "mig", migLayout="dynamic")))
    await nodes.join("n1", gpus=1, layout=None, converged=False)
    node = nodes.nodes["n1"]
    node.read(await nodes.spec("n1"))
    node.apply()
    node.cuts = [("3g.40gb@0",)]
    report = node.report()
    report.inventory.gpus[0].mig.instances[0].managed = True
    await nodes.deliver("n1", report)
    assert (await nodes.place("3g.40gb")).state == "pending"
    await nodes.converge("n1")
    assert (await nodes.place("3g.40gb")).state == "placed"


async def test_nobody_is_asked_where_nobody_follows_a_spec(world):
    pool = await world.pool(
        pool_of("H100", "mig"), inventory("n1", gpu("H100", 0, "3g.40gb@0", "3g.40gb@4"))
    )
    held = await world.create(ask(pool.id, device("gpu.mig", profile="3g.40gb")))
    [piece] = held.bookings
    assert piece.allocation is None
    assert piece.attributes["migUuid"].startswith("MIG-"), "what is there is what it has"
    assert piece == (await world.get(held)).bookings[0]
    assert await world.rows("SELECT FROM assignments") == []


async def test_a_node_that_gets_an_agent_is_asked_for_what_runs_there(world):
    pool = await world.pool(pool_of("H100"))
    nodes = Nodes(world, pool)
    await nodes.join("n1", gpus=2, layout=None, agent=None)
    held = await world.create(ask(pool.id, device(), duration="2h"))
    later = await world.create(ask(pool.id, device(), start=MONDAY + HOUR, duration="1h"))
    node = nodes.nodes["n1"]
    node.agent = "simulated"
    await nodes.converge("n1")
    _, [asked] = await devices(nodes)
    assert asked["reservation_id"] == held.id
    await world.tick(hours=1)
    _, both = await devices(nodes)
    assert {each["reservation_id"] for each in both} == {held.id, later.id}


async def test_a_deleted_tenants_devices_are_withdrawn(mig):
    held = await mig.place(duration="2h")
    other = await mig.place(duration="2h")
    generation, both = await devices(mig)
    assert len(both) == 2
    await mig.world.reservations.release(mig.world.caller, held.id)
    await mig.world.reservations.release(mig.world.caller, held.id)
    now, [left] = await devices(mig)
    assert (now, left["reservation_id"]) == (generation + 1, other.id), "once, not twice"

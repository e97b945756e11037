"""What is told of a refusal and of free sums, held against the judge that tries everything."""

from dataclasses import replace

from hypothesis import event, given
from hypothesis import strategies as st
from placement_judge import CLASSES, HORIZON, Booking, Gpu, Node, World
from placement_strategies import LAYOUTS, cases, windows, worlds

from apportion.placement import Ask, DeviceAsk, Expression, Selector


def profile(name):
    return Selector((Expression("migProfile", "In", (name,)),))


def fits(world, device, window):
    return any(world.fits(node, Ask((device,)), *window) for node in world.nodes)


@given(worlds(), windows)
def test_the_largest_that_is_told_fits_and_nothing_larger_does(world, window):
    index = world.index()
    for cls in sorted(set(CLASSES.values()) - {"gpu.mig"}):
        told = index.largest(cls, *window, 0)
        least = told.count if cls == "gpu" else told.units
        for size in range(1, 7):
            device = DeviceAsk(cls, size) if cls == "gpu" else DeviceAsk(cls, 1, size)
            assert fits(world, device, window) == (size <= least), (cls, size)


@given(worlds([("mig",), ("mig", "none")]), windows)
def test_no_instance_larger_than_the_largest_that_is_told_fits(world, window):
    told = world.index().largest("gpu.mig", *window, 0).profile
    sizes = {"1g": 1, "2g": 2, "3g": 4, "4g": 4, "7g": 8}
    for name, size in sizes.items():
        possible = fits(world, DeviceAsk("gpu.mig", selector=profile(name)), window)
        if told is None or size > sizes[told]:
            assert not possible, name
        if name == told:
            assert possible


@given(cases(max_nodes=2))
def test_a_refusal_says_when_the_first_node_gets_room(case):
    world, ask, start, end, _ = case
    found = world.index().explain(ask, start, end, 0)
    length = end - start

    def possible(at):
        return any(world.fits(node, ask, at, at + length) for node in world.nodes)

    if not found:
        assert possible(start)
        return
    told = [finding.until for finding in found if finding.until is not None]
    first = next((at for at in range(start, 3 * HORIZON) if possible(at)), None)
    event(f"until: {first is not None}")
    assert told == ([] if first is None else [first])
    assert sum(finding.count for finding in found) == len(world.nodes)


@st.composite
def scattered(draw):
    """Draw a node on which small pieces lie about, and a piece that may need them to move."""
    split = draw(st.sampled_from(["slots", "shares", "mig"]))
    atoms = LAYOUTS[-1] if split == "mig" else ()
    gpus = tuple(Gpu(at, split, 8 if atoms else 4, index=at, atoms=atoms) for at in range(2))
    world = World((Node(0, gpus),))
    for number in range(draw(st.integers(1, 4))):
        gpu = draw(st.sampled_from(gpus))
        if atoms:
            units = frozenset(draw(st.sampled_from(atoms))[0])
        else:
            units = draw(st.frozensets(st.integers(0, 3), min_size=1, max_size=2))
            units |= {4 + number} if split == "shares" else set()
        held = Booking(gpu.id, (f"h{number}", 0), 0, 9, units, whole=draw(st.integers(0, 9)) == 9)
        if not any(held.meets(other) for other in world.bookings):
            world.bookings.append(held)
    if atoms:
        return world, DeviceAsk("gpu.mig", selector=profile(draw(st.sampled_from(["2g", "4g"]))))
    return world, DeviceAsk(CLASSES[split], draw(st.integers(1, 2)), draw(st.integers(2, 4)))


@given(scattered())
def test_moving_would_help_exactly_where_all_can_lie_side_by_side(case):
    world, device = case
    ask = Ask((device,))
    for finding in world.index().explain(ask, 0, 5, 0):
        helps = packs(world.nodes[0], ask, world.bookings)
        event(f"helps: {helps}")
        assert finding.after_defragmentation == (helps and finding.code == "units_booked")


def packs(node, ask, held):
    """Tell whether the ask and what is held could lie side by side on the node's GPUs."""
    fixed = {b.gpu for b in held if b.whole}
    free = Node(node.id, tuple(gpu for gpu in node.gpus if gpu.id not in fixed))
    others = [as_asked(free, booking) for booking in held if booking.gpu not in fixed]
    both = replace(ask, devices=(*ask.devices, *others), vcpu_milli=0, memory_mib=0)
    return World((free,)).fits(free, both, 0, 1)


def as_asked(node, booking):
    gpu = next(gpu for gpu in node.gpus if gpu.id == booking.gpu)
    if gpu.split != "mig":
        return DeviceAsk(CLASSES[gpu.split], 1, len([u for u in booking.units if u < gpu.ruler]))
    name = next(name for units, name in gpu.atoms if frozenset(units) == booking.units)
    return DeviceAsk("gpu.mig", selector=profile(name))

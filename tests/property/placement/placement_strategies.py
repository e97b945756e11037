"""Small fleets, partly held, and asks for them."""

from hypothesis import strategies as st
from placement_judge import CLASSES, HORIZON, SEATS, Booking, Gpu, HostBooking, Node, World

from apportion.placement import Ask, DeviceAsk, Expression, Selector

LAYOUTS = (
    (((0, 1, 2, 3), "3g"), ((4, 5), "2g"), ((6,), "1g")),
    (((0,), "1g"), ((1,), "1g"), ((2, 3), "2g")),
    (((0,), "1g"), ((1,), "1g")),
    # Made on demand: places that overlap, and the whole GPU.
    (
        ((0,), "1g"),
        ((0, 1), "2g"),
        ((2, 3), "2g"),
        (tuple(range(8)), "7g"),
        (tuple(range(8)), None),
    ),
    # Places that overlap, of instances alone.
    (
        ((0,), "1g"),
        ((1,), "1g"),
        ((2,), "1g"),
        ((0, 1), "2g"),
        ((2, 3), "2g"),
        ((0, 1, 2, 3), "4g"),
    ),
)
EXPRESSIONS = (
    Expression("gpuModel", "In", ("H100",)),
    Expression("gpuModel", "NotIn", ("a100",)),
    Expression("numaNode", "In", ("0",)),
    Expression("numaNode", "Gt", ("0",)),
    Expression("gpuIndex", "Lt", ("1",)),
    Expression("node", "In", ("node-0",)),
    Expression("node", "NotIn", ("node-1",)),
    Expression("migProfile", "In", ("1g",)),
    Expression("migProfile", "In", ("1g", "2g")),
    Expression("vramGiB", "Gt", ("10",)),
    Expression("migProfile", "DoesNotExist"),
)

# A pool shares its GPUs in one way; beside those, some may be unsplit or cut by MIG all the same.
SPLITS = (
    ("slots",),
    ("slots", "none"),
    ("shares",),
    ("shares", "mig"),
    ("mig",),
    ("none",),
    ("none", "mig", "slots", "shares"),
)

windows = st.tuples(st.integers(0, HORIZON - 1), st.integers(1, HORIZON)).map(
    lambda pair: (pair[0], min(HORIZON, pair[0] + pair[1]))
)
selectors = st.lists(st.sampled_from(EXPRESSIONS), max_size=2).map(lambda e: Selector(tuple(e)))
seldom_selectors = st.integers(0, 2).flatmap(
    lambda roll: selectors if roll == 2 else st.just(Selector())
)


@st.composite
def gpus(draw, gpu_id, index, splits):
    split = draw(st.sampled_from(splits))
    return Gpu(
        id=gpu_id,
        split=split,
        ruler={"none": 1, "mig": 8}.get(split) or draw(st.integers(2, 5)),
        model=draw(st.sampled_from(["h100", "a100"])),
        numa=draw(st.sampled_from([0, 0, 1, 1, None])),
        index=index,
        nvlink=draw(st.sampled_from([None, None, 0, 1])),
        atoms=draw(st.sampled_from(LAYOUTS)) if split == "mig" else (),
        bookable=draw(st.integers(0, 9)) < 9,
    )


@st.composite
def nodes(draw, node_id, splits):
    count = draw(st.sampled_from([1, 2, 2, 3, 3, 0]))
    return Node(
        id=node_id,
        gpus=tuple(draw(gpus(10 * node_id + index, index, splits)) for index in range(count)),
        vcpu=draw(st.integers(3, 8)),
        memory=draw(st.integers(3, 8)),
        healthy=draw(st.integers(0, 9)) < 9,
    )


@st.composite
def worlds(draw, splits=SPLITS, max_nodes=3):
    """Draw a fleet on which things are held as no engine would have put them."""
    kinds = draw(st.sampled_from(splits))
    count = draw(st.integers(1, max_nodes))
    world = World(tuple(draw(nodes(node_id, kinds)) for node_id in range(count)))
    for gpu in [gpu for node in world.nodes for gpu in node.gpus]:
        for number in range(draw(st.integers(0, 6))):
            _hold(draw, world, gpu, number)
    for number in range(draw(st.sampled_from([0, 0, 1, 2, 4]))):
        start, end = draw(windows)
        node = draw(st.sampled_from(world.nodes))
        # Also more than the node has: an overcommitted host may have shrunk since.
        size = draw(st.integers(0, 5)), draw(st.integers(0, 5))
        world.hosts.append(HostBooking(node.id, f"host-{number}", start, end, *size))
    return world


def _hold(draw, world, gpu, number):
    start, end = draw(windows)
    whole = gpu.split == "none" or draw(st.integers(0, 9)) == 9
    if whole:
        units = frozenset(range(gpu.ruler + SEATS))
    elif gpu.split == "mig":
        units = frozenset(draw(st.sampled_from(gpu.atoms))[0])
    else:
        units = draw(st.frozensets(st.integers(0, gpu.ruler - 1), min_size=1, max_size=2))
        if gpu.split == "shares":
            units |= {gpu.ruler + draw(st.integers(0, 3))}
    booking = Booking(gpu.id, (f"held-{number}", 0), start, end, units, whole)
    if not any(booking.meets(other) for other in world.bookings):
        world.bookings.append(booking)


@st.composite
def asks(draw, world, selector=seldom_selectors):
    """Draw an ask, mostly of the classes that the world has."""
    present = sorted({CLASSES[gpu.split] for node in world.nodes for gpu in node.gpus})
    classes = [*present * 4, "gpu", "gpu.mig", "gpu.slot", "gpu.share"]
    devices = []
    # At most four pieces: the judge tries every assignment of them.
    for count in draw(st.sampled_from([(1,), (1,), (2,), (3,), (1, 1), (1, 2), (2, 2), ()])):
        cls = draw(st.sampled_from(classes))
        units = draw(st.sampled_from([1, 1, 1, 2, 2, 3])) if cls in ("gpu.slot", "gpu.share") else 1
        devices.append(DeviceAsk(cls, count, units, draw(selector)))
    small = st.sampled_from([0, 0, 0, 1, 3])
    together = draw(st.sampled_from(["node"] * 5 + ["gpu", "numa", "nvlink"]))
    apart = draw(st.integers(0, 5)) == 5
    return Ask(tuple(devices), draw(small), draw(small), together, apart)


@st.composite
def cases(draw, splits=SPLITS, max_nodes=3):
    """Draw a world, an ask for it, a window, and an instant no later than its start."""
    world = draw(worlds(splits, max_nodes))
    start, end = draw(windows)
    return world, draw(asks(world)), start, end, draw(st.integers(0, start))


@st.composite
def puzzles(draw):
    """Draw GPUs of few slots or shares, small bookings all over them, and pieces to squeeze in."""
    split = draw(st.sampled_from(["slots", "shares"]))
    gpus = tuple(Gpu(at, split, draw(st.integers(2, 4)), index=at) for at in range(2))
    world = World((Node(0, gpus[: draw(st.sampled_from([1, 1, 2]))]),))
    for gpu in world.nodes[0].gpus:
        for number in range(draw(st.integers(4, 10))):
            start = draw(st.integers(0, HORIZON - 1))
            end = start + draw(st.integers(1, 3))
            units = {draw(st.integers(0, gpu.ruler - 1))}
            if split == "shares":
                units |= {gpu.ruler + draw(st.integers(0, 3))}
            booking = Booking(gpu.id, (f"held-{number}", 0), start, end, frozenset(units))
            if not any(booking.meets(other) for other in world.bookings):
                world.bookings.append(booking)
    sizes = draw(st.lists(st.sampled_from([1, 1, 1, 2]), min_size=1, max_size=2))
    counts = [draw(st.sampled_from([1, 1, 2])) for _ in sizes]
    pairs = zip(counts, sizes, strict=True)
    ask = Ask(tuple(DeviceAsk(CLASSES[split], count, size) for count, size in pairs))
    start = draw(st.integers(0, HORIZON - 3))
    now = draw(st.sampled_from([0, 0, start // 2, start]))
    return world, ask, start, start + draw(st.integers(2, 6)), now

"""Short ways to write GPUs, nodes and what is asked for in examples."""

from apportion.placement import (
    AtomState,
    DeviceAsk,
    Expression,
    GpuState,
    NodeState,
    PoolIndex,
    Selector,
)


def gpu(gpu_id, split="slots", ruler=4, **attributes):
    group = {"gpuModel": "H100", **attributes.pop("group", {})}
    shown = {"node": "n1", "gpuUuid": f"GPU-{gpu_id}", "gpuIndex": gpu_id}
    return GpuState(gpu_id, split, ruler, group, shown, **attributes)


def whole(gpu_id, **attributes):
    return gpu(gpu_id, "none", 1, atom=1000 + gpu_id, **attributes)


def shared(gpu_id, **attributes):
    return gpu(gpu_id, "shares", 100, **attributes)


def mig(gpu_id, *profiles, **attributes):
    """Lay instances side by side, each as long as its profile's first figure."""
    atoms = []
    start = 0
    for at, profile in enumerate(profiles):
        size = int(profile[0])
        units = ((1 << size) - 1) << start
        start += size
        own = {"migProfile": profile, "giId": at, "vramGiB": 10 * size}
        atoms.append(AtomState(100 * gpu_id + at, units, profile, own))
    return gpu(gpu_id, "mig", 8, atoms=tuple(atoms), **attributes)


def node(node_id, *gpus, vcpu=96_000, memory=393_216, healthy=True):
    return NodeState(node_id, f"n{node_id}", vcpu, memory, gpus, healthy)


def slots(units, count=1, *expressions):
    return DeviceAsk("gpu.slot", count, units, Selector(expressions))


def share(units, count=1):
    return DeviceAsk("gpu.share", count, units)


def one_of(key, *values):
    return Expression(key, "In", values)


def profile(name, count=1):
    return DeviceAsk("gpu.mig", count, 1, Selector((one_of("migProfile", name),)))


def pool(*nodes):
    return PoolIndex(nodes)

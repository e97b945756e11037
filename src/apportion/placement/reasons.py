"""Why a node has no room for an ask: the first thing that stands in the way, by its code."""

from collections.abc import Iterator

from apportion.placement.asks import CLASS_OF, Ask, DeviceAsk
from apportion.placement.search import fits_empty, selects
from apportion.placement.selectors import Selector
from apportion.placement.state import AtomState, GpuState, NodeState


def why_never(node: NodeState, devices: tuple[DeviceAsk, ...]) -> str | None:
    """Name what keeps the node's GPUs from serving these devices, whatever is held; or None."""
    if not node.healthy:
        return "node_unhealthy"
    for device in devices:
        reason = _none_matches(node, device)
        if reason is not None:
            return reason
    ask = Ask(devices)
    if not fits_empty(node, ask, bookable=False):
        return "larger_than_any_node"
    return None if fits_empty(node, ask, bookable=True) else "gpu_unbookable"


def why_not(node: NodeState, ask: Ask, start: int, end: int) -> str:
    """Name what keeps the ask from a node that has been found to have no room for it.

    A node that lacks host resources is counted so whether its GPUs have room or not.
    """
    reason = why_never(node, ask.devices)
    if reason is not None:
        return reason
    if ask.vcpu_milli > node.vcpu_milli or ask.memory_mib > node.memory_mib:
        return "larger_than_any_node"
    if not node.hosts(ask.vcpu_milli, ask.memory_mib, start, end):
        return "host_resources_short"
    return "units_booked"


def _none_matches(node: NodeState, device: DeviceAsk) -> str | None:
    of_class = list(_pieces(node, device))
    if not of_class:
        if device.cls == "gpu" and node.gpus:
            return "no_unsplit_gpu"
        return "profile_not_in_layout" if _is_mig(node, device) else "class_not_offered"
    profile = Selector(tuple(e for e in device.selector.expressions if e.key == "migProfile"))
    if device.cls == "gpu.mig" and not any(selects(profile, *piece) for piece in of_class):
        return "profile_not_in_layout"
    if not any(selects(device.selector, *piece) for piece in of_class):
        return "selector_matches_nothing"
    return None


def _pieces(node: NodeState, device: DeviceAsk) -> Iterator[tuple[GpuState, AtomState | None]]:
    """Yield what a node has of the class that is asked for, bookable or not."""
    for gpu in node.gpus:
        if CLASS_OF[gpu.split] != device.cls:
            continue
        if gpu.split != "mig":
            yield gpu, None
        for atom in gpu.atoms:
            yield gpu, atom


def _is_mig(node: NodeState, device: DeviceAsk) -> bool:
    return device.cls == "gpu.mig" and any(gpu.split == "mig" for gpu in node.gpus)

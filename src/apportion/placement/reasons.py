"""Why a node has no room for an ask: the first thing that stands in the way, by its code."""

from apportion.placement.asks import CLASS_OF, Ask, DeviceAsk
from apportion.placement.search import fits_empty, selects
from apportion.placement.selectors import Selector
from apportion.placement.state import AtomState, GpuState, NodeState


def why_never(node: NodeState, ask: Ask) -> str | None:
    """Name what keeps the node's GPUs from serving an ask, whatever is held; or None."""
    if node.stale_since is not None:
        return "node_stale"
    if not node.healthy:
        return "node_unhealthy"
    for device in ask.devices:
        reason = _none_matches(node, device)
        if reason is not None:
            return reason
    if not fits_empty(node, ask, bookable=False):
        return "larger_than_any_node"
    return None if fits_empty(node, ask, bookable=True) else "gpu_unbookable"


def why_not(node: NodeState, ask: Ask, start: int, end: int) -> str:
    """Name what keeps the ask from a node that has been found to have no room for it.

    A node that lacks host resources is counted so whether its GPUs have room or not.
    """
    return why_never(node, ask) or why_held(node, ask, start, end)


def why_held(node: NodeState, ask: Ask, start: int, end: int) -> str:
    """Name what keeps the ask from a node whose GPUs, if nothing were held, could serve it."""
    if ask.vcpu_milli > node.vcpu_milli or ask.memory_mib > node.memory_mib:
        return "larger_than_any_node"
    if not node.hosts(ask.vcpu_milli, ask.memory_mib, start, end):
        return "host_resources_short"
    return "units_booked"


def _none_matches(node: NodeState, device: DeviceAsk) -> str | None:
    gpus = [gpu for gpu in node.gpus if _is_cut_so(gpu, device)]
    if not gpus:
        return _no_such_class(node, device)
    pieces = [piece for gpu in gpus for piece in _pieces(gpu, device)]
    if not pieces and (reason := _withheld(node, device)) is not None:
        return reason
    if not pieces and not any(gpu.bookable for gpu in gpus):
        # Instances that are being made again, or whose GPU failed, are not there to be named.
        return "gpu_unbookable"
    profile = Selector(tuple(e for e in device.selector.expressions if e.key == "migProfile"))
    if device.cls == "gpu.mig" and not any(selects(profile, *piece) for piece in pieces):
        return "profile_not_in_layout"
    if not any(selects(device.selector, *piece) for piece in pieces):
        return "selector_matches_nothing"
    return None


def _withheld(node: NodeState, device: DeviceAsk) -> str | None:
    reasons = (each for gpu in node.gpus if gpu.bookable for each in gpu.withheld)
    return next((reason for cls, reason in reasons if cls == device.cls), None)


def _no_such_class(node: NodeState, device: DeviceAsk) -> str:
    reason = _withheld(node, device)
    if reason is not None:
        return reason
    if not node.gpus:
        return "class_not_offered"
    by_class = {"gpu": "no_unsplit_gpu", "gpu.mig": "profile_not_in_layout"}
    return by_class.get(device.cls, "class_not_offered")


def _is_cut_so(gpu: GpuState, device: DeviceAsk) -> bool:
    """Tell whether a GPU is one that has pieces of a class, though it may have none just now."""
    return CLASS_OF[gpu.split] == device.cls or device.cls in gpu.classes


def _pieces(gpu: GpuState, device: DeviceAsk) -> list[tuple[GpuState, AtomState | None]]:
    """Return what there is to book of a GPU, whether it can be booked now or not."""
    if gpu.split != "mig":
        return [(gpu, None)]
    return [(gpu, atom) for atom in gpu.atoms if atom.cls == device.cls]

"""What stands behind a refusal's counts: until when, and whether moving what is held would help.

Reckoned when somebody asks why, never while placing: it goes through nodes.
"""

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Final

from apportion.placement.asks import CLASS_OF, Ask, DeviceAsk
from apportion.placement.search import fits_beside
from apportion.placement.selectors import Expression, Selector
from apportion.placement.state import GpuState, NodeState

LOOKED_AT: Final = 2_000
"""An explanation goes through no more nodes, nor ends: a fleet may have a million GPUs."""
_REPACKED: Final = 200
"""How many nodes, unlike in what they hold, are packed anew."""


@dataclass(frozen=True, slots=True)
class Finding:
    """How many nodes cannot serve an ask, for one reason, and what would change that.

    ``until`` is the first instant after the window's start at which one of them has room for a
    window as long (microseconds), None where none is known. ``after_defragmentation`` counts
    those of them that would have room if what they hold in the window lay otherwise on their own
    GPUs; where nodes are many or intricate it is a lower bound. ``full`` counts those of which
    nothing of what the ask wants is free at all; the others have something, but no place for it.
    """

    code: str
    count: int
    until: int | None = None
    after_defragmentation: int = 0
    full: int = 0


def defragmentable(nodes: Iterable[NodeState], ask: Ask, start: int, end: int) -> int:
    """Count the nodes that would have room if what they hold in a window lay otherwise.

    Asks whose pieces have to lie together or apart are not reckoned: 0.
    """
    if not ask.placed_freely:
        return 0
    known: dict[Hashable, bool] = {}
    found = 0
    for node in nodes:
        movable: list[GpuState] = []
        beside: list[DeviceAsk] = []
        for gpu in node.gpus:
            pieces = [_piece(gpu, units) for units in gpu.held_in(start, end)]
            if gpu.bookable and None not in pieces:
                movable.append(gpu)
                beside.extend(piece for piece in pieces if piece is not None)
        # Pieces told apart by name may fit one node and not its twin.
        named = node.id if any(device.selector.on_atom for device in ask.devices) else None
        builds = Counter((gpu.state and gpu.state.model, gpu.ruler) for gpu in movable)
        key = named, frozenset(builds.items()), frozenset(Counter(beside).items())
        if key not in known and len(known) < _REPACKED:
            known[key] = fits_beside(movable, ask, beside)
        found += known.get(key, False)
    return found


def full(nodes: Iterable[NodeState], ask: Ask, start: int, end: int) -> int:
    """Count the nodes of which nothing of the classes that an ask wants is free in a window."""
    wanted = {device.cls for device in ask.devices}
    return sum(
        not any(
            gpu.bookable and CLASS_OF[gpu.split] in wanted and _has_room(gpu, start, end)
            for gpu in node.gpus
        )
        for node in nodes
    )


def _has_room(gpu: GpuState, start: int, end: int) -> bool:
    if gpu.split == "mig":
        return bool(gpu.free_atoms(start, end))
    return gpu.room(start, end)[0] > 0


def _piece(gpu: GpuState, units: int) -> DeviceAsk | None:
    """Say what is held of a GPU as a request; None for what cannot be had elsewhere."""
    if units < 0:
        return None
    if gpu.split != "mig":
        return DeviceAsk(CLASS_OF[gpu.split], 1, (units & gpu.capacity).bit_count())
    for atom in gpu.atoms:
        if atom.units == units and atom.profile is not None:
            return DeviceAsk("gpu.mig", selector=Selector((_profile(atom.profile),)))
    return None


def _profile(name: str) -> Expression:
    return Expression("migProfile", "In", (name,))

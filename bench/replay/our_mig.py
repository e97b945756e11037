"""Apportion's engine on MIG GPUs that are cut on demand: every legal place is an atom."""

from itertools import count

from apportion.placement import (
    FOREVER,
    Ask,
    AtomState,
    DeviceAsk,
    Expression,
    GpuState,
    Held,
    NodeState,
    Offer,
    PoolIndex,
    Selector,
)
from bench.replay.mig import BOARD, PROFILES, Lease

_GPUS_A_NODE = 8


class OurFleet:
    """The engine under its default policy."""

    def __init__(self, gpus: int) -> None:
        atoms = tuple(
            AtomState(number, place.mask, place.profile, {})
            for number, place in enumerate(
                place for name in PROFILES for place in BOARD.profile(name).placements
            )
        )
        ruler = BOARD.known_ruler().units
        states = [
            GpuState(
                gpu,
                "mig",
                ruler,
                {"gpuModel": "H100"},
                {"node": f"node-{gpu // _GPUS_A_NODE}", "gpuIndex": gpu % _GPUS_A_NODE},
                atoms=tuple(
                    AtomState(gpu * len(atoms) + atom.id, atom.units, atom.profile, {})
                    for atom in atoms
                ),
            )
            for gpu in range(gpus)
        ]
        self._index = PoolIndex(
            NodeState(at, f"node-{at}", 0, 0, tuple(states[at * _GPUS_A_NODE :][:_GPUS_A_NODE]))
            for at in range(-(-gpus // _GPUS_A_NODE))
        )
        self._asks = {
            name: Ask((DeviceAsk("gpu.mig", selector=_named(name)),)) for name in PROFILES
        }
        self.busy = [0] * gpus
        self._numbers = count()

    def place(self, profile: str) -> Lease | None:
        """Ask the engine, and hold what it offers."""
        offer = self._index.place(self._asks[profile], 0, FOREVER, 0)
        if not isinstance(offer, Offer):
            return None
        (piece,) = offer.pieces
        lease = Lease(profile, piece.gpu, piece.units, f"task-{next(self._numbers)}")
        assert not self.busy[lease.gpu] & lease.mask, lease
        self.busy[lease.gpu] |= lease.mask
        self._index.book(lease.gpu, (lease.holder, 0), Held(0, FOREVER, lease.mask))
        return lease

    def free(self, lease: Lease) -> None:
        """Let go."""
        self.busy[lease.gpu] &= ~lease.mask
        self._index.free(lease.gpu, (lease.holder, 0))


def _named(profile: str) -> Selector:
    return Selector((Expression("migProfile", "In", (profile,)),))

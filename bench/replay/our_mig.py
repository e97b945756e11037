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
    Movable,
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
        return self._hold(profile, offer, f"task-{next(self._numbers)}")

    def _hold(self, profile: str, offer: Offer, holder: str) -> Lease:
        (piece,) = offer.pieces
        lease = Lease(profile, piece.gpu, piece.units, holder)
        assert not self.busy[lease.gpu] & lease.mask, lease
        self.busy[lease.gpu] |= lease.mask
        self._index.book(lease.gpu, (lease.holder, 0), Held(0, FOREVER, lease.mask))
        return lease

    def free(self, lease: Lease) -> None:
        """Let go."""
        self.busy[lease.gpu] &= ~lease.mask
        self._index.free(lease.gpu, (lease.holder, 0))


class MovingFleet(OurFleet):
    """The engine, where what would be lost may move one that is there: one a ten arrivals."""

    def __init__(self, gpus: int) -> None:
        super().__init__(gpus)
        self._there: dict[str, Lease] = {}
        self._arrivals = self._moves = 0

    def place(self, profile: str) -> Lease | None:
        """Ask the engine; where it has no room, ask whom to move."""
        self._arrivals += 1
        lease = super().place(profile)
        if lease is None and 10 * (self._moves + 1) <= self._arrivals:
            lease = self._moved(profile)
        if lease is not None:
            self._there[lease.holder] = lease
        return lease

    def free(self, lease: Lease) -> None:
        """Let go, wherever it lies by now."""
        super().free(self._there.pop(lease.holder))

    def _moved(self, profile: str) -> Lease | None:
        relief = self._index.with_one_move(
            self._asks[profile],
            0,
            FOREVER,
            0,
            (
                Movable(each.holder, self._asks[each.profile], (each.gpu,), 0, FOREVER)
                for each in self._there.values()
            ),
        )
        if relief is None:
            return None
        self._moves += 1
        there = self._there[relief.moved.holder]
        super().free(there)
        self._there[there.holder] = self._hold(there.profile, relief.to, there.holder)
        return self._hold(profile, relief.offer, f"task-{next(self._numbers)}")


def _named(profile: str) -> Selector:
    return Selector((Expression("migProfile", "In", (profile,)),))

"""What GPUs of one build can still be used for: states of a GPU, and what each is worth.

GPUs that selectors on shared attributes cannot tell apart, cut alike, are of one model; what is
free of one is a state of its model, shared by all GPUs that are in it. How many states there are is
bounded by the build (723 for a board with 7 compute slices), not by the fleet.

A state is worth the GPU that the requests to come can use of it. Nobody knows those, so no mix of
requests is assumed: half the weight is on whole GPUs, half spread evenly over the parts of one (the
tenths of it; for MIG all weight is spread evenly over the profiles). What a host can no longer
serve is worth nothing: ``host`` is how many tenths of one GPU it has CPU and memory for, 10 for
enough.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final

from apportion.placement.asks import AtomClass, Split
from apportion.placement.selectors import Attributes, shared
from apportion.placement.state import GpuState
from apportion.quantities.units import span

HOST_FULL: Final = 10
"""The host can serve at least one more whole GPU."""
NUMA: Final = "numaNode"
GPU: Final = 1000
"""What a whole idle GPU is worth beside a host that can serve it."""
_PARTS: Final = 9
_WEIGHTS: Final = 2 * _PARTS


@dataclass(frozen=True, slots=True)
class Part:
    """What can be booked of MIG GPUs of a model; told by its place in the list."""

    cls: AtomClass
    units: int
    attributes: Attributes


@dataclass(slots=True, eq=False)
class State:
    """What is free of a GPU in every window: ``free`` units, and of MIG which parts.

    ``worths`` says by host level what of it can be used. ``stands`` are the states that a GPU in
    it is counted in: where nothing is held of it, also that of its family.
    """

    model: "Model"
    busy: int
    free: int
    parts: tuple[int, ...]
    whole: bool = field(init=False)
    """Whether nothing is held of it."""
    worths: tuple[int, ...] = field(init=False)
    stands: tuple["State", ...] = field(init=False)

    def __post_init__(self) -> None:
        """Work out once what the state is worth."""
        self.whole = not self.busy
        levels = range(HOST_FULL + 1)
        self.worths = tuple(self.model.worth(self, host) for host in levels)
        family = self.model.family
        alone = self.busy or family is self.model
        self.stands = (self,) if alone else (self, family.state(0))

    def taken(self, units: int, part: int | None) -> "State":
        """Return the state of the GPU once a piece is taken from it."""
        if part is not None:
            return self.model.state(self.busy | self.model.parts[part].units)
        return self.model.state(self.busy + units)


class Model:
    """All GPUs built and cut alike, up to what tells single ones apart.

    ``family`` is the model of all that differ from them in the NUMA node only, of which no GPU is
    itself; where none is known, the model itself.
    """

    def __init__(self, gpu: GpuState, family: "Model | None" = None) -> None:
        self.family = family or self
        self.gathers = False
        """Whether it stands for the GPUs of several models."""
        self.split: Split = gpu.split
        self.classes = gpu.classes
        self.ruler = gpu.ruler
        self.attributes: Attributes = dict(shared(gpu.shown_of(None)))
        self.parts = tuple(
            Part(atom.cls, atom.units, dict(shared(gpu.shown_of(atom)))) for atom in gpu.atoms
        )
        self._every = 0
        for part in self.parts:
            self._every |= part.units
        self.units = tuple(
            unit for unit in range(self._every.bit_length()) if self._every >> unit & 1
        )
        """The units of a MIG GPU that any of its instances takes."""
        profiles: dict[Hashable, list[int]] = {}
        for part in self.parts:
            profiles.setdefault(part.attributes.get("migProfile"), []).append(part.units)
        self._profiles = list(profiles.values())
        self._states: dict[int, State] = {}

    def state_of(self, gpu: GpuState) -> State:
        """Return the state that a GPU is in."""
        if self.split == "mig":
            return self.state(gpu.busy_ever & self._every)
        return self.state(self.ruler - gpu.idle)

    def state(self, busy: int) -> State:
        """Return a state by what is held: a mask of units for MIG, else how many units."""
        found = self._states.get(busy)
        if found is None:
            found = self._states[busy] = self._made(busy)
        return found

    def _made(self, busy: int) -> State:
        if self.split != "mig":
            return State(self, busy, self.ruler - busy, ())
        parts = tuple(at for at, part in enumerate(self.parts) if not part.units & busy)
        free = (self._every & span(0, self.ruler) & ~busy).bit_count() if parts else 0
        return State(self, busy, free, parts)

    def worth(self, state: State, host: int) -> int:
        """Return the thousandths of a GPU that can be used in this state, by equal weights."""
        if self.split == "mig":
            return self._worth_of_parts(state, host)
        parts = min(state.free * HOST_FULL // self.ruler, host)
        weight = _WEIGHTS if parts == HOST_FULL else min(parts, _PARTS)
        return GPU * state.free * weight // (_WEIGHTS * self.ruler)

    def _worth_of_parts(self, state: State, host: int) -> int:
        """Add up over the profiles what the free places of each cover."""
        if not self._profiles:
            return 0
        covered = 0
        for places in self._profiles:
            union = 0
            for units in places:
                served = host == HOST_FULL or units.bit_count() * HOST_FULL <= host * self.ruler
                if served and not units & state.busy:
                    union |= units
            covered += (union & span(0, self.ruler)).bit_count()
        # Whole multiples, so that equal losses stay equal: rounding would choose among them.
        return covered * max(1, GPU // (len(self._profiles) * self.ruler))


class Models:
    """The models of a pool's GPUs, each made once."""

    def __init__(self) -> None:
        self._models: dict[Hashable, Model] = {}
        self._families: dict[Hashable, Model] = {}

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def of(self, gpu: GpuState) -> Model:
        """Return the model of a GPU."""
        signature = _signature(gpu)
        found = self._models.get(signature)
        if found is None:
            found = self._models[signature] = Model(gpu, self._family(gpu))
        return found

    def _family(self, gpu: GpuState) -> Model | None:
        if NUMA not in gpu.group:
            return None
        group = {key: value for key, value in gpu.group.items() if key != NUMA}
        anywhere = GpuState(gpu.id, gpu.split, gpu.ruler, group, gpu.attributes, atoms=gpu.atoms)
        signature = _signature(anywhere)
        found = self._families.get(signature)
        if found is None:
            found = self._families[signature] = Model(anywhere)
            found.gathers = True
        return found


def _signature(gpu: GpuState) -> Hashable:
    return (
        gpu.split,
        gpu.ruler,
        shared(gpu.shown_of(None)),
        tuple((atom.cls, atom.units, shared(gpu.shown_of(atom))) for atom in gpu.atoms),
    )

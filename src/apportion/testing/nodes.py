"""A node that speaks the contract as an agent does, well or badly: nothing in it is a machine.

    node = SimulatedNode("n1", "H100", gpus=8)
    node.read(spec)             # what it is asked to be; an older one than it has is dropped
    node.apply()                # its GPUs are cut so, and instances are made for their holders
    message = node.report()     # what it says, at this moment: deliver it now, later, twice, never

What makes a node bad is what its owner does: not delivering a message, delivering it late or twice
or after a later one, not applying, applying to some GPUs only, forgetting all it knew, making less
than was asked for.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from apportion.geometry import Board, parse_layout
from apportion.nodes.atoms import identify
from apportion.nodes.outcomes import OwnLayout
from apportion.nodes.schemas import GpuReport, Inventory, MigInstance, NodeReport, NodeSpec
from apportion.testing.builders import gpu, inventory

AGENT = "simulated"


@dataclass(slots=True)
class Made:
    """An instance that a node made for an allocation; every one that is made has a new name."""

    allocation_id: str
    uuid: str
    memory_mib: int | None = None


@dataclass(slots=True)
class SimulatedNode:
    """A node of GPUs of one model; ``cuts`` has each GPU's instances, such as ``3g.40gb@4``.

    ``made`` has those of them that were made for an allocation, by GPU and place. ``modes`` are the
    MIG modes that were asked for by themselves; any other is on where there are instances.
    ``own_layout`` is one of its own, whatever it is asked for.
    """

    name: str
    model: str
    gpus: int = 1
    layout: str | None = None
    agent: str | None = AGENT
    cuts: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    spec: NodeSpec | None = None
    converged: dict[str, int] = field(default_factory=dict[str, int])
    sequence: int = 0
    made: dict[tuple[int, str], Made] = field(default_factory=dict[tuple[int, str], Made])
    modes: dict[int, bool] = field(default_factory=dict[int, bool])
    names: int = 0
    own_layout: str | None = None

    def __post_init__(self) -> None:
        """Cut its GPUs as they are found."""
        self.cuts = [self._instances(self.layout)] * self.gpus

    def read(self, spec: NodeSpec) -> bool:
        """Take what it is asked to be; False where it has been asked for something later."""
        if self.spec is not None and spec.generation <= self.spec.generation:
            return False
        self.spec = spec
        return True

    def apply(self, gpus: Sequence[int] | None = None) -> None:
        """Cut its GPUs as asked, or only some; it is done when all of them are cut so."""
        if self.spec is None:
            return
        units: Mapping[str, Any] = self.spec.units
        some = range(self.gpus) if gpus is None else gpus
        own = {} if self.own_layout is None else {"layout": self.own_layout}
        if self._cut(own or units.get("mig-layout", {}), some):
            self.converged = dict.fromkeys(units, self.spec.generation)

    def _cut(self, wanted: Mapping[str, Any], some: Iterable[int]) -> bool:
        """Cut some GPUs as the unit says; returns whether all of them are cut so."""
        layout = wanted.get("layout")
        if layout is None:
            return True
        if layout == "dynamic":
            asked = {int(each["gpu"].rpartition("-")[2]): each for each in wanted["gpus"]}
            for at in some:
                if at in asked:
                    self._make(at, asked[at])
            return all(self._is_made(at, each) for at, each in asked.items())
        for at in some:
            self.cuts[at] = self._instances(layout)
            self._forget(at)
        return all(cut == self._instances(layout) for cut in self.cuts)

    def _make(self, at: int, asked: Mapping[str, Any]) -> None:
        """Make what is asked for of a GPU, and destroy what is not: an instance has one holder."""
        owners = _owners(asked)
        kept = {
            place
            for place in self.cuts[at]
            if (made := self.made.get((at, place))) and made.allocation_id == owners.get(place)
        }
        for place in [place for number, place in self.made if number == at]:
            if place not in kept:
                del self.made[at, place]
        for place, allocation_id in owners.items():
            if place not in kept:
                self.names += 1
                self.made[at, place] = Made(allocation_id, f"MIG-{self.name}-made-{self.names}")
        self.cuts[at] = tuple(owners)
        if asked["mig"] is not None:
            self.modes[at] = asked["mig"]

    def _is_made(self, at: int, asked: Mapping[str, Any]) -> bool:
        made = {place: each.allocation_id for (gpu, place), each in self.made.items() if gpu == at}
        return made == _owners(asked) and asked["mig"] in (None, self._mode(at))

    def _mode(self, at: int) -> bool:
        return self.modes.get(at, bool(self.cuts[at]))

    def _forget(self, at: int) -> None:
        self.modes.pop(at, None)
        for place in [place for number, place in self.made if number == at]:
            del self.made[at, place]

    def inventory(self) -> Inventory:
        """Say all that there is about it."""
        gpus = [self._gpu(at, cut) for at, cut in enumerate(self.cuts)]
        return inventory(self.name, *gpus, agent=self.agent)

    def _gpu(self, at: int, cut: Sequence[str]) -> GpuReport:
        report = gpu(self.model, at, *cut, node=self.name)
        report.mig.current = report.mig.pending = self._mode(at)
        for number, place in enumerate(cut):
            if made := self.made.get((at, place)):
                report.mig.instances[number] = _managed(report.mig.instances[number], made)
        return report

    def report(self) -> NodeReport:
        """Say what it is now, after all that it has said before."""
        self.sequence += 1
        return NodeReport(
            sequence=self.sequence,
            observed_generation=1 if self.spec is None else self.spec.generation,
            converged=dict(self.converged),
            mig_layout=None if self.own_layout is None else OwnLayout(layout=self.own_layout),
            inventory=self.inventory(),
        )

    @property
    def board(self) -> Board:
        """The board of its GPUs."""
        board = identify(gpu(self.model, 0))
        if board is None:
            raise ValueError(f"{self.model} is no board that is known")
        return board

    def _instances(self, layout: str | None) -> tuple[str, ...]:
        if layout is None or layout == "dynamic":
            return ()
        placements = parse_layout(layout, self.board).placements
        return tuple(f"{each.profile}@{each.start}" for each in placements)


def _owners(asked: Mapping[str, Any]) -> dict[str, str]:
    return {
        f"{each['profile']}@{each['start']}": each["allocation_id"] for each in asked["instances"]
    }


def _managed(instance: MigInstance, made: Made) -> MigInstance:
    facts = {
        "uuid": made.uuid,
        "managed": True,
        "allocation_id": made.allocation_id,
        "memory_mib": made.memory_mib,
    }
    return instance.model_copy(update=facts)

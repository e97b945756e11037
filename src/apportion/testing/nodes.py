"""A node that speaks the contract as an agent does, well or badly: nothing in it is a machine.

    node = SimulatedNode("n1", "H100", gpus=8)
    node.read(spec)             # what it is asked to be; an older one than it has is dropped
    node.apply()                # its GPUs are cut so
    message = node.report()     # what it says, at this moment: deliver it now, later, twice, never

What makes a node bad is what its owner does: not delivering a message, delivering it late or twice
or after a later one, not applying, applying to some GPUs only, forgetting all it knew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from apportion.geometry import Board, parse_layout
from apportion.nodes.atoms import identify
from apportion.nodes.schemas import Inventory, NodeReport, NodeSpec
from apportion.testing.builders import gpu, inventory

AGENT = "simulated"


@dataclass(slots=True)
class SimulatedNode:
    """A node of GPUs of one model; ``cuts`` has each GPU's instances, such as ``3g.40gb@4``."""

    name: str
    model: str
    gpus: int = 1
    layout: str | None = None
    agent: str | None = AGENT
    cuts: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    spec: NodeSpec | None = None
    converged: dict[str, int] = field(default_factory=dict[str, int])
    sequence: int = 0

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
        wanted = units.get("mig-layout", {}).get("layout")
        for at in range(self.gpus) if gpus is None else gpus:
            if wanted is not None:
                self.cuts[at] = self._instances(wanted)
        done = [wanted is None or cut == self._instances(wanted) for cut in self.cuts]
        if all(done):
            self.converged = dict.fromkeys(units, self.spec.generation)

    def inventory(self) -> Inventory:
        """Say all that there is about it."""
        gpus = [gpu(self.model, at, *cut, node=self.name) for at, cut in enumerate(self.cuts)]
        return inventory(self.name, *gpus, agent=self.agent)

    def report(self) -> NodeReport:
        """Say what it is now, after all that it has said before."""
        self.sequence += 1
        return NodeReport(
            sequence=self.sequence,
            observed_generation=1 if self.spec is None else self.spec.generation,
            converged=dict(self.converged),
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

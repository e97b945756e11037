"""What is asked of a pool, already admitted: whole numbers and parsed selectors."""

from dataclasses import dataclass, field, replace
from typing import Final, Literal

from apportion.placement.selectors import ANYTHING, Selector

AtomClass = Literal["gpu", "gpu.mig", "gpu.slot", "gpu.share"]
Split = Literal["none", "mig", "slots", "shares"]
"""How a GPU is split; each way has its own class of pieces."""

CLASSES: Final[tuple[AtomClass, ...]] = ("gpu", "gpu.mig", "gpu.slot", "gpu.share")

CLASS_OF: Final[dict[Split, AtomClass]] = {
    "none": "gpu",
    "mig": "gpu.mig",
    "slots": "gpu.slot",
    "shares": "gpu.share",
}
"""The pieces that a GPU is split into; a MIG GPU that is cut on demand offers itself whole too."""


@dataclass(frozen=True, slots=True)
class DeviceAsk:
    """``count`` pieces of one class, each of ``units`` units of one GPU.

    ``units`` counts slots (``gpu.slot``) or hundredths (``gpu.share``); for ``gpu`` and
    ``gpu.mig`` it is 1 and means the whole piece. Instances and slots of one ask may lie on one
    GPU; pieces of ``gpu.share`` lie on GPUs of their own, so that several whole GPUs can be asked
    for by their shares.
    """

    cls: AtomClass
    count: int = 1
    units: int = 1
    selector: Selector = ANYTHING
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Work out the hash once: asks are looked up by it at each decision."""
        parts = (self.cls, self.count, self.units, self.selector)
        object.__setattr__(self, "_hash", hash(parts))

    def __hash__(self) -> int:
        """Return what was worked out once."""
        return self._hash

    def scarcity(self) -> tuple[int, int]:
        """Rank it among others: the one with the largest pieces has the fewest places."""
        return self.units, self.count


Together = Literal["node", "gpu", "numa", "nvlink"]
"""What all pieces of an ask share; their node they always do."""

DOMAIN_OF: Final[dict[Together, str | None]] = {
    "node": None,
    "gpu": None,
    "numa": "numaNode",
    "nvlink": "nvlinkDomain",
}
"""The attribute that GPUs of one domain have in common, where it is one."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Devices and host resources of one node, all or nothing.

    ``vcpu_milli`` is in thousandths of a CPU, ``memory_mib`` in MiB; both may be 0. An ask without
    devices takes host resources alone. ``together`` asks for all pieces on one GPU, or on GPUs of
    one NUMA node or NVLink domain (a GPU of which that is not known is a domain of its own);
    ``apart`` for each on a GPU of its own.
    """

    devices: tuple[DeviceAsk, ...] = ()
    vcpu_milli: int = 0
    memory_mib: int = 0
    together: Together = "node"
    apart: bool = False

    @property
    def on_gpus(self) -> "Ask":
        """What it asks of GPUs alone."""
        return replace(self, vcpu_milli=0, memory_mib=0)

    @property
    def placed_freely(self) -> bool:
        """Whether its pieces may lie on any GPUs of a node, or it has but one piece."""
        if self.together == "node" and not self.apart:
            return True
        return sum(device.count for device in self.devices) <= 1

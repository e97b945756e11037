"""What is asked of a pool, already admitted: whole numbers and parsed selectors."""

from dataclasses import dataclass
from typing import Final, Literal

from apportion.placement.selectors import ANYTHING, Selector

AtomClass = Literal["gpu", "gpu.mig", "gpu.slot", "gpu.share"]
Split = Literal["none", "mig", "slots", "shares"]
"""How a GPU is split; each way has its own class of pieces."""

CLASS_OF: Final[dict[Split, AtomClass]] = {
    "none": "gpu",
    "mig": "gpu.mig",
    "slots": "gpu.slot",
    "shares": "gpu.share",
}


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


@dataclass(frozen=True, slots=True)
class Ask:
    """Devices and host resources of one node, all or nothing.

    ``vcpu_milli`` is in thousandths of a CPU, ``memory_mib`` in MiB; both may be 0. An ask without
    devices takes host resources alone.
    """

    devices: tuple[DeviceAsk, ...] = ()
    vcpu_milli: int = 0
    memory_mib: int = 0

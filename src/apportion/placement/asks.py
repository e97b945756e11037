"""What is asked of a pool, already admitted: whole numbers and parsed selectors."""

from dataclasses import dataclass
from typing import Literal

from apportion.placement.selectors import Selector

AtomClass = Literal["gpu", "gpu.mig", "gpu.slot", "gpu.share"]


@dataclass(frozen=True, slots=True)
class DeviceAsk:
    """``count`` pieces of one class, each of ``units`` units of one GPU.

    ``units`` counts slots (``gpu.slot``) or hundredths (``gpu.share``); for ``gpu`` and ``gpu.mig`` it
    is 1 and means the whole piece. Pieces of ``gpu``, ``gpu.mig`` and ``gpu.slot`` may share what can be
    shared; pieces of ``gpu.share`` lie on GPUs of their own.
    """

    cls: AtomClass
    count: int = 1
    units: int = 1
    selector: Selector = Selector()


@dataclass(frozen=True, slots=True)
class Ask:
    """Devices and host resources of one node, all or nothing.

    ``vcpu_milli`` is in thousandths of a CPU, ``memory_mib`` in MiB; both may be 0. An ask without
    devices takes host resources alone.
    """

    devices: tuple[DeviceAsk, ...] = ()
    vcpu_milli: int = 0
    memory_mib: int = 0

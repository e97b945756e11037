"""What a driver answers, without handles and without the binding's structures."""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

REASONS: Final = {
    2: "invalid_argument",
    3: "not_supported",
    4: "no_permission",
    6: "not_found",
    9: "driver_not_loaded",
    10: "timeout",
    12: "library_not_found",
    13: "function_not_found",
    15: "gpu_lost",
    16: "reset_required",
    18: "driver_library_mismatch",
    19: "in_use",
    23: "insufficient_resources",
}


class DriverError(Exception):
    """The driver refused a call; ``reason`` is one of REASONS, or ``driver_error``."""

    def __init__(self, reason: str, message: str) -> None:
        """Say why, as a code and in the driver's words."""
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """Versions of the driver (`580.95.05`), of the CUDA that it can (`13.0`), and of NVML."""

    driver: str
    cuda: str
    nvml: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """What a GPU is. ``pci_device_id`` is such as `0x2330`; ``minor`` is that of its device node.

    The minor may be another after a change of the MIG mode and after a reboot.
    """

    index: int
    uuid: str
    product: str
    memory_mib: int
    pci_address: str
    pci_device_id: str
    minor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MigMode:
    """The mode now, that after the next reset, and whether a change has to wait for one."""

    current: bool
    pending: bool
    needs_reset: bool


class Place(NamedTuple):
    """Slices ``[start, start + size)``: of memory for GPU instances."""

    start: int
    size: int


class Engines(NamedTuple):
    """How many engines a GPU instance of a profile gets."""

    copy_engines: int
    decoders: int
    encoders: int
    jpeg: int
    ofa: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A kind of GPU instance as this driver has it; ``places`` are all that it can ever have.

    ``number`` is what the driver is asked by; ``id`` is what it makes instances by.
    """

    number: int
    id: int
    name: str
    compute_slices: int
    max_instances: int
    sm_count: int
    memory_mib: int
    engines: Engines
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeInstance:
    """A compute instance and its MIG device. ``profile`` is the device's name: `1c.3g.40gb`."""

    ci_id: int
    uuid: str
    profile: str
    compute_slices: int
    sm_count: int
    memory_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInstance:
    """A GPU instance, its place, and the compute instances in it."""

    gi_id: int
    profile_id: int
    place: Place
    computes: tuple[ComputeInstance, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that uses a GPU (ids None), or one compute instance of it."""

    pid: int
    gi_id: int | None
    ci_id: int | None
    mps: bool
    used_mib: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """An NVLink and what is at its other end, by PCI address."""

    up: bool
    remote: Literal["gpu", "switch", "other"]
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of a GPU or of a MIG device. What the driver keeps for itself is not ``used``."""

    total_mib: int
    reserved_mib: int
    used_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHealth:
    """How a GPU's memory is. Errors are those since the last reset; None where ECC is off.

    ``retirement_pending``: pages or rows are taken out of use at the next reset.
    ``remap_failed``: there was no spare row left for one.
    """

    ecc: bool
    corrected: int | None
    uncorrected: int | None
    retirement_pending: bool
    remap_failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A critical error (XID), of a GPU or of an instance of it."""

    gpu: str
    xid: int
    gi_id: int | None
    ci_id: int | None

"""What the simulated driver keeps of a machine, as it lies in the state file.

These structures are the one definition: Python reads and writes the file through them, and the
library's C header is printed from them, so the two sides cannot differ. Sizes of memory are MiB
where a name ends so, else bytes. A fixed table has a count beside it, or marks its free rows 0.

The file has two images of the machine. Whoever changes it holds the file's lock, changes the image
that does not count, and then points `current` at it: a process that is killed anywhere leaves the
machine as it was before its change, or as it is after.
"""

import ctypes
import hashlib
from collections.abc import Iterator
from ctypes import c_char, c_int32, c_uint32, c_uint64
from typing import Any, Final

GPUS: Final = 16
BOARDS: Final = 4
PROFILES: Final = 18
PLACEMENTS: Final = 12
COMPUTE_PROFILES: Final = 8
COMPUTE_PLACEMENTS: Final = 8
GPU_INSTANCES: Final = 16
COMPUTE_INSTANCES: Final = 8
PROCESSES: Final = 64
LINKS: Final = 36
EVENTS: Final = 128
FAULTS: Final = 32

MAGIC: Final = 0x4C4D564E_50504101
NONE: Final = 0xFFFFFFFF
"""An id that nothing has, as NVML writes it."""

KILL_BEFORE, KILL_WHILE, KILL_AFTER = 1, 2, 3
"""Where a fault kills the caller: before the call does anything, with its change half written, or
with the change made and the caller not told."""


class Place(ctypes.Structure):
    """Slices `[start, start + size)`: of memory for GPU instances, of compute for their parts."""

    _fields_ = (("start", c_uint32), ("size", c_uint32))


class ComputeProfile(ctypes.Structure):
    """A kind of compute instance that fits a kind of GPU instance."""

    _fields_ = (
        ("id", c_uint32),
        ("slices", c_uint32),
        ("instances", c_uint32),
        ("multiprocessors", c_uint32),
        ("placement_count", c_uint32),
        ("placements", Place * COMPUTE_PLACEMENTS),
        ("name", c_char * 64),
    )


class Profile(ctypes.Structure):
    """A kind of GPU instance. `number` is what queries take; `id` is what all else takes."""

    _fields_ = (
        ("number", c_uint32),
        ("id", c_uint32),
        ("slices", c_uint32),
        ("instances", c_uint32),
        ("multiprocessors", c_uint32),
        ("copy_engines", c_uint32),
        ("decoders", c_uint32),
        ("encoders", c_uint32),
        ("jpegs", c_uint32),
        ("ofas", c_uint32),
        ("memory_mib", c_uint64),
        ("name", c_char * 32),
        ("placement_count", c_uint32),
        ("placements", Place * PLACEMENTS),
        ("compute_count", c_uint32),
        ("compute", ComputeProfile * COMPUTE_PROFILES),
    )


class Board(ctypes.Structure):
    """A product. The profile `full` has all engines of the board; no profiles: no MIG."""

    _fields_ = (
        ("name", c_char * 64),
        ("architecture", c_uint32),
        ("compute_major", c_uint32),
        ("compute_minor", c_uint32),
        ("mode_needs_reset", c_uint32),
        ("mode_survives_reboot", c_uint32),
        ("asked_without_mode", c_uint32),
        ("slices", c_uint32),
        ("profile_count", c_uint32),
        ("full", c_uint32),
        ("profiles", Profile * PROFILES),
    )


class ComputeInstance(ctypes.Structure):
    """`serial` is never given twice; `mig_index` is the MIG device's, which can leave holes."""

    _fields_ = (
        ("used", c_uint32),
        ("id", c_uint32),
        ("profile", c_uint32),
        ("start", c_uint32),
        ("serial", c_uint32),
        ("mig_index", c_uint32),
        ("compute_mode", c_uint32),
        ("uuid", c_char * 48),
    )


class GpuInstance(ctypes.Structure):
    """`profile` is the row in its board's table; `left_bytes` is memory that nobody gave back."""

    _fields_ = (
        ("used", c_uint32),
        ("id", c_uint32),
        ("profile", c_uint32),
        ("start", c_uint32),
        ("size", c_uint32),
        ("serial", c_uint32),
        ("left_bytes", c_uint64),
        ("compute", ComputeInstance * COMPUTE_INSTANCES),
    )


class Pci(ctypes.Structure):
    """A PCI address."""

    _fields_ = (("domain", c_uint32), ("bus", c_uint32), ("device", c_uint32))


class Link(ctypes.Structure):
    """One NVLink: whether it is up, and whether a switch (2) or a GPU (0) is at its other end."""

    _fields_ = (("up", c_uint32), ("kind", c_uint32), ("remote", Pci))


class Gpu(ctypes.Structure):
    """One GPU as it is now."""

    _fields_ = (
        ("board", c_uint32),
        ("minor", c_uint32),
        ("uuid", c_char * 48),
        ("serial_number", c_char * 30),
        ("pci", Pci),
        ("pci_device_id", c_uint32),
        ("pci_subsystem_id", c_uint32),
        ("pcie_group", c_uint32),
        ("numa_node", c_uint32),
        ("memory_mib", c_uint64),
        ("reserved_mib", c_uint64),
        ("left_bytes", c_uint64),
        ("lost", c_uint32),
        ("recovery_action", c_uint32),
        ("mig", c_uint32),
        ("mig_pending", c_uint32),
        ("compute_mode", c_uint32),
        ("time_slice", c_uint32),
        ("persistence", c_uint32),
        ("power_limit_mw", c_uint32),
        ("ecc", c_uint32),
        ("ecc_pending", c_uint32),
        ("corrected", c_uint64 * 2),
        ("uncorrected", c_uint64 * 2),
        ("retirement_pending", c_uint32),
        ("remapped_correctable", c_uint32),
        ("remapped_uncorrectable", c_uint32),
        ("remap_pending", c_uint32),
        ("remap_failed", c_uint32),
        ("link_count", c_uint32),
        ("links", Link * LINKS),
        ("instances", GpuInstance * GPU_INSTANCES),
    )


class Process(ctypes.Structure):
    """A process that uses a GPU or a part of one.

    One that is `real` is gone when the process of that pid, begun at that tick, is.
    """

    _fields_ = (
        ("pid", c_uint32),
        ("real", c_uint32),
        ("begun", c_uint64),
        ("bytes", c_uint64),
        ("gpu", c_uint32),
        ("mps", c_uint32),
        ("gpu_instance", c_uint32),
        ("compute_instance", c_uint32),
    )


class Event(ctypes.Structure):
    """What an event set may be told; `number` counts all events of the machine from 1."""

    _fields_ = (
        ("number", c_uint64),
        ("type", c_uint64),
        ("data", c_uint64),
        ("gpu", c_uint32),
        ("gpu_instance", c_uint32),
        ("compute_instance", c_uint32),
    )


class Machine(ctypes.Structure):
    """All that changes. `serial` is the last that an instance got, `events` the last number."""

    _fields_ = (
        ("driver_version", c_char * 80),
        ("nvml_version", c_char * 80),
        ("cuda_version", c_uint32),
        ("gpu_count", c_uint32),
        ("serial", c_uint32),
        ("boots", c_uint32),
        ("driver_gone", c_uint32),
        ("boot_id", c_char * 48),
        ("events", c_uint64),
        ("gpus", Gpu * GPUS),
        ("processes", Process * PROCESSES),
        ("event_ring", Event * EVENTS),
    )


class Fault(ctypes.Structure):
    """What goes wrong with calls of one function; `hits` counts those that it went wrong with.

    The first `after` calls are spared; then `times` calls (0: all) wait for `delay_ms` and end with
    `result` (0: as they would have), or kill their caller.
    """

    _fields_ = (
        ("function", c_char * 80),
        ("gpu", c_uint32),
        ("result", c_uint32),
        ("after", c_uint32),
        ("times", c_uint32),
        ("delay_ms", c_uint32),
        ("kill", c_uint32),
        ("seen", c_uint32),
        ("hits", c_uint32),
    )


class State(ctypes.Structure):
    """The file."""

    _fields_ = (
        ("magic", c_uint64),
        ("layout", c_uint32),
        ("current", c_uint32),
        ("faults", Fault * FAULTS),
        ("boards", Board * BOARDS),
        ("images", Machine * 2),
    )


_CTYPES: Final[dict[Any, str]] = {
    c_char: "char",
    c_int32: "int32_t",
    c_uint32: "uint32_t",
    c_uint64: "uint64_t",
}
_STRUCTURES: Final = (
    Place, ComputeProfile, Profile, Board, ComputeInstance, GpuInstance, Pci, Link, Gpu, Process,
    Event, Machine, Fault, State,
)  # fmt: skip
_NUMBERS: Final = (
    "GPUS", "BOARDS", "PROFILES", "GPU_INSTANCES", "COMPUTE_INSTANCES", "PROCESSES", "LINKS",
    "EVENTS", "FAULTS", "NONE", "KILL_BEFORE", "KILL_WHILE", "KILL_AFTER",
)  # fmt: skip


def header() -> str:
    """Return `state.h`, which declares these structures to the library."""
    return f"#define SIM_LAYOUT 0x{fingerprint():08x}u\n{_declarations()}"


def fingerprint() -> int:
    """Return what tells this layout from any other, 32 bits."""
    return int(hashlib.sha256(_declarations().encode()).hexdigest()[:8], 16)


def _declarations() -> str:
    lines = ["#include <stdint.h>", f"#define SIM_MAGIC 0x{MAGIC:x}ull"]
    lines += [f"#define SIM_{name} {globals()[name]}u" for name in _NUMBERS]
    for each in _STRUCTURES:
        lines += [f"struct {_tag(each)} {{", *_members(each), "};"]
        lines.append(
            f'_Static_assert(sizeof(struct {_tag(each)}) == {ctypes.sizeof(each)}, "{_tag(each)}");'
        )
    return "\n".join(lines) + "\n"


def _members(structure: type[ctypes.Structure]) -> Iterator[str]:
    for name, kind, *_ in structure._fields_:
        array = issubclass(kind, ctypes.Array)
        of: Any = kind._type_ if array else kind
        text = _CTYPES.get(of) or f"struct {_tag(of)}"
        yield f"    {text} {name}{f'[{kind._length_}]' if array else ''};"


def _tag(structure: type[ctypes.Structure]) -> str:
    """Return the name of a structure in C: `GpuInstance` is `gpu_instance`."""
    name = structure.__name__
    return name[0].lower() + "".join(f"_{c.lower()}" if c.isupper() else c for c in name[1:])

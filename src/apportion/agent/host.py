"""What the kernel says of the machine: processors, memory, where GPUs hang, and which boot it is.

``root`` is the folder that `/proc` and `/sys` are read below, so that a simulated machine has its
own.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT_VARIABLE: Final = "APPORTION_HOST_ROOT"
HUGEPAGE_FOLDERS: Final = {"2Mi": "hugepages-2048kB", "1Gi": "hugepages-1048576kB"}
_BUS: Final = re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine without its GPUs. ``hugepages`` counts pages, by size."""

    logical_cpus: int
    memory_mib: int
    hugepages: dict[str, int]
    boot_id: str


def host_root() -> Path:
    """Return where this machine's `/proc` and `/sys` are."""
    return Path(os.environ.get(ROOT_VARIABLE, "/"))


def read_host(root: Path) -> Host:
    """Read what the machine has; OSError where the kernel does not say."""
    return Host(
        logical_cpus=len(cpu_numbers((root / "sys/devices/system/cpu/online").read_text())),
        memory_mib=_total_memory((root / "proc/meminfo").read_text()) // 1024,
        hugepages={
            size: _number(root / f"sys/kernel/mm/hugepages/{folder}/nr_hugepages")
            for size, folder in HUGEPAGE_FOLDERS.items()
        },
        boot_id=(root / "proc/sys/kernel/random/boot_id").read_text().strip(),
    )


def pcie_root(root: Path, pci_address: str) -> str | None:
    """Return the root of the PCIe tree that a device hangs on, such as `pci0000:16`."""
    try:
        real = (root / "sys/bus/pci/devices" / _kernel_address(pci_address)).resolve(strict=True)
    except OSError:
        return None
    return next((part for part in real.parts if _BUS.fullmatch(part)), None)


def numa_node(root: Path, pci_address: str) -> int | None:
    """Return the NUMA node that a device hangs on; None where the machine has no such thing."""
    path = root / "sys/bus/pci/devices" / _kernel_address(pci_address) / "numa_node"
    try:
        node = int(path.read_text())
    except OSError:
        return None
    return None if node < 0 else node


def _kernel_address(pci_address: str) -> str:
    """Give NVML's `00000000:1B:00.0` as the kernel writes it: `0000:1b:00.0`."""
    domain, _, rest = pci_address.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def cpu_numbers(ranges: str) -> frozenset[int]:
    """Return the numbers of the processors in `0-3,8`; none in an empty text."""
    numbers: set[int] = set()
    for part in filter(None, ranges.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def _total_memory(meminfo: str) -> int:
    """Return the KiB of memory that the kernel has."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", meminfo, re.MULTILINE)
    if found is None:
        raise OSError("/proc/meminfo does not say MemTotal")
    return int(found[1])


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except FileNotFoundError:
        return 0

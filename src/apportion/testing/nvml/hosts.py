"""The host around simulated GPUs: what `/proc` and `/sys` would say, in a folder of its own."""

from pathlib import Path
from typing import Final

from apportion.testing.nvml import layout
from apportion.testing.nvml.machines import MachineKind

KERNEL: Final = "6.1.0-simulated"
_CAPABILITIES_MAJOR: Final = 237
_GI_PER_GPU: Final = 15
_CI_PER_GI: Final = 8


def write_host(root: Path, kind: MachineKind, machine: layout.Machine) -> None:
    """Write what does not change: processors, memory, and where GPUs hang."""
    _write(root / "sys/devices/system/cpu/online", f"0-{kind.logical_cpus - 1}\n")
    per_node = kind.logical_cpus // kind.numa_nodes
    for node in range(kind.numa_nodes):
        cpus = f"{node * per_node}-{(node + 1) * per_node - 1}\n"
        _write(root / f"sys/devices/system/node/node{node}/cpulist", cpus)
    _write(root / "proc/meminfo", f"MemTotal:       {kind.memory_mib * 1024} kB\n")
    for size in ("2048kB", "1048576kB"):
        for count in ("nr_hugepages", "free_hugepages", "resv_hugepages"):
            _write(root / f"sys/kernel/mm/hugepages/hugepages-{size}/{count}", "0\n")
    _write_set_up(root, kind)
    for number, gpu in enumerate(machine.gpus[: machine.gpu_count]):
        _write_pci(root, number, gpu)
    write_boot(root, machine)


def _write_set_up(root: Path, kind: MachineKind) -> None:
    """Write how the host is set up: two threads a core, no processor set apart, no IOMMU."""
    cpus = root / "sys/devices/system/cpu"
    _write(cpus / "isolated", "\n")
    _write(cpus / "smt/active", "1\n")
    for node in range(kind.numa_nodes):  # the processors of one go at one speed
        first = node * kind.logical_cpus // kind.numa_nodes
        _write(cpus / f"cpufreq/policy{first}/scaling_governor", "performance\n")
    (root / "sys/class/iommu").mkdir(parents=True, exist_ok=True)
    (root / "sys/module").mkdir(parents=True, exist_ok=True)
    _write(root / "proc/sys/kernel/osrelease", f"{KERNEL}\n")
    _write(root / f"lib/modules/{KERNEL}/modules.builtin", "kernel/fs/ext4/ext4.ko\n")


def _write_pci(root: Path, number: int, gpu: layout.Gpu) -> None:
    """Write a GPU's place: two GPUs behind each root of the PCIe tree."""
    address = f"{gpu.pci.domain:04x}:{gpu.pci.bus:02x}:{gpu.pci.device:02x}.0"
    port = f"0000:{0x16 + 0x20 * gpu.pcie_group:02x}:{1 + number % 2:02x}.0"
    behind = f"pci0000:{0x16 + 0x20 * gpu.pcie_group:02x}/{port}/{address}"
    device = root / "sys/devices" / behind
    _write(device / "numa_node", f"{gpu.numa_node}\n")
    _write(device / "vendor", "0x10de\n")
    _write(device / "device", f"0x{gpu.pci_device_id >> 16:04x}\n")
    _write(device / "class", "0x030200\n")
    link = root / "sys/bus/pci/devices" / address
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(Path("../../../devices") / behind)


def write_boot(root: Path, machine: layout.Machine) -> None:
    """Write what a start of the machine decides: its id, and the numbers of capabilities."""
    _write(root / "proc/sys/kernel/random/boot_id", f"{machine.boot_id.decode()}\n")
    _write(root / "proc/devices", f"Character devices:\n{_CAPABILITIES_MAJOR} nvidia-caps\n")
    lines = ["config 1", "monitor 2"]
    minor = 3 + machine.boots
    for gpu in machine.gpus[: machine.gpu_count]:
        for gi in range(_GI_PER_GPU):
            path = f"gpu{gpu.minor}/gi{gi}"
            lines.append(f"{path}/access {minor}")
            lines += [f"{path}/ci{ci}/access {minor + 1 + ci}" for ci in range(_CI_PER_GI)]
            minor += 1 + _CI_PER_GI
    _write(root / "proc/driver/nvidia-caps/mig-minors", "\n".join(lines) + "\n")


def began(pid: int) -> int | None:
    """Return the tick at which a process of the real host began; None where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)

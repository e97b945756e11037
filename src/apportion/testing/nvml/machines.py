"""Machines that can be simulated: their GPUs, how these are wired, and the host around them."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from apportion.testing.nvml import layout
from apportion.testing.nvml.boards import Model, fill_board

DRIVER_VERSION: Final = "580.95.05"
_CUDA_VERSION: Final = 13000
_VENDOR: Final = 0x10DE
_RESERVED_MIB: Final = 512
_POWER_LIMIT_MW: Final = 400_000
_SWITCH = 2

_A100_40: Final = Model(
    name="NVIDIA A100-SXM4-40GB", board="a100-sxm4-40gb", memory_mib=40960, pci_device_id=0x20B0
)
_A100_80: Final = Model(
    name="NVIDIA A100-SXM4-80GB", board="a100-sxm4-80gb", memory_mib=81920, pci_device_id=0x20B2
)
_A30: Final = Model(name="NVIDIA A30", board="a30-24gb", memory_mib=24576, pci_device_id=0x20B7)
_H100: Final = Model(
    name="NVIDIA H100 80GB HBM3", board="h100-sxm5-80gb", memory_mib=81559, pci_device_id=0x2330
)
_H200: Final = Model(
    name="NVIDIA H200", board="h200-sxm5-141gb", memory_mib=143771, pci_device_id=0x2335
)
_B200: Final = Model(
    name="NVIDIA B200", board="b200-180gb", memory_mib=183359, pci_device_id=0x2901
)
_RTX_PRO_6000: Final = Model(
    name="NVIDIA RTX PRO 6000 Blackwell Server Edition",
    board="rtx-pro-6000-blackwell-server",
    memory_mib=97887,
    pci_device_id=0x2BB5,
)
_L4: Final = Model(name="NVIDIA L4", board=None, memory_mib=23034, pci_device_id=0x27B8)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineKind:
    """A kind of machine. ``switches`` 0: links go from each GPU to its neighbour of a pair."""

    models: Sequence[Model]
    links: int = 0
    switches: int = 0
    logical_cpus: int
    memory_mib: int
    numa_nodes: int = 2


MACHINES: Final[Mapping[str, MachineKind]] = {
    "dgx-h100": MachineKind(
        models=(_H100,) * 8, links=18, switches=4, logical_cpus=224, memory_mib=2097152
    ),
    "a100x8": MachineKind(
        models=(_A100_80,) * 8, links=12, switches=6, logical_cpus=256, memory_mib=1048576
    ),
    "a30x4": MachineKind(models=(_A30,) * 4, links=4, logical_cpus=64, memory_mib=262144),
    "h200x8": MachineKind(
        models=(_H200,) * 8, links=18, switches=4, logical_cpus=224, memory_mib=2097152
    ),
    "b200x8": MachineKind(
        models=(_B200,) * 8, links=18, switches=2, logical_cpus=224, memory_mib=2097152
    ),
    "mixed": MachineKind(
        models=(_A100_40, _A30, _H100, _RTX_PRO_6000), logical_cpus=128, memory_mib=524288
    ),
    "l4x2": MachineKind(models=(_L4,) * 2, logical_cpus=32, memory_mib=131072, numa_nodes=1),
}
"""By the name that `apportion up --simulate` takes."""


def new_state(kind: MachineKind, name: str) -> layout.State:
    """Return the state file of a machine that was never used; all its ids come from its name."""
    state = layout.State(magic=layout.MAGIC, layout=layout.fingerprint())
    distinct = list(dict.fromkeys(kind.models))
    for at, model in enumerate(distinct):
        fill_board(state.boards[at], model)
    machine = state.images[0]
    machine.driver_version = DRIVER_VERSION.encode()
    machine.nvml_version = f"13.{DRIVER_VERSION}".encode()
    machine.cuda_version = _CUDA_VERSION
    machine.gpu_count = len(kind.models)
    machine.boot_id = str(derived(name, "boot", 0)).encode()
    for at, model in enumerate(kind.models):
        _fill_gpu(machine.gpus[at], kind, name, at, model)
        machine.gpus[at].board = distinct.index(model)
    return state


def derived(name: str, what: str, number: int) -> uuid.UUID:
    """Return the id of a thing of the machine of that name, always the same one."""
    return uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}/{what}/{number}")


def pci_address(number: int) -> tuple[int, int, int]:
    """Return domain, bus and device of a machine's GPU."""
    return 0, 0x1B + 0x10 * number, 0


def _fill_gpu(gpu: layout.Gpu, kind: MachineKind, name: str, at: int, model: Model) -> None:
    gpu.uuid = f"GPU-{derived(name, 'gpu', at)}".encode()
    gpu.serial_number = f"{derived(name, 'serial', at).int % 10**13:013d}".encode()
    gpu.minor = at
    gpu.pci = pci_address(at)
    gpu.pci_device_id = model.pci_device_id << 16 | _VENDOR
    gpu.pci_subsystem_id = _VENDOR
    gpu.pcie_group = at // 2
    gpu.numa_node = at * kind.numa_nodes // len(kind.models)
    gpu.memory_mib = model.memory_mib
    gpu.reserved_mib = _RESERVED_MIB
    gpu.persistence = gpu.ecc = gpu.ecc_pending = 1
    gpu.power_limit_mw = _POWER_LIMIT_MW
    gpu.link_count = kind.links
    for link in range(kind.links):
        if kind.switches:
            gpu.links[link] = (1, _SWITCH, (0, 0x05 + link % kind.switches, 0))
        else:
            gpu.links[link] = (1, 0, pci_address(at ^ 1))

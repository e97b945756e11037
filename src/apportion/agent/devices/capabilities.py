"""Device nodes: which numbers the kernel gave to the driver's GPUs, instances and controls."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from apportion.agent.devices.faults import HeldUpError

_GPUS_MAJOR: Final = 195
"""NVIDIA's registered major number."""
_CONTROL_MINOR: Final = 255


@dataclass(frozen=True, slots=True)
class Node:
    """A character device; with its numbers a runtime makes it, whether or not the host has it."""

    path: str
    major: int
    minor: int


def control_nodes(root: Path) -> tuple[Node, ...]:
    """Return what every process on a GPU opens beside it, as far as the driver is loaded."""
    majors = _majors(root)
    nodes = [Node("/dev/nvidiactl", _GPUS_MAJOR, _CONTROL_MINOR)]
    if (major := majors.get("nvidia-uvm")) is not None:
        nodes.append(Node("/dev/nvidia-uvm", major, 0))
        nodes.append(Node("/dev/nvidia-uvm-tools", major, 1))
    return tuple(nodes)


def gpu_node(minor: int) -> Node:
    """Return the node of a GPU, the parent of its instances; its minor may change at a reboot."""
    return Node(f"/dev/nvidia{minor}", _GPUS_MAJOR, minor)


def instance_nodes(root: Path, gpu_minor: int, gi_id: int, ci_id: int) -> tuple[Node, ...]:
    """Return the two capabilities that open one compute instance; with one alone CUDA has none.

    The numbers are read anew each time: they change with the driver and at a reboot. HeldUpError
    ``capability_missing`` names those that the driver does not list.
    """
    major = _majors(root).get("nvidia-caps")
    if major is None:
        raise HeldUpError("capability_missing", "the driver lists no major number of nvidia-caps")
    instance = f"gpu{gpu_minor}/gi{gi_id}"
    wanted = (f"{instance}/access", f"{instance}/ci{ci_id}/access")
    minors = _minors(root)
    missing = [name for name in wanted if name not in minors]
    if missing:
        raise HeldUpError("capability_missing", f"the driver lists no {' and no '.join(missing)}")
    return tuple(
        Node(f"/dev/nvidia-caps/nvidia-cap{minors[name]}", major, minors[name]) for name in wanted
    )


def _majors(root: Path) -> dict[str, int]:
    rows = re.findall(r"^\s*(\d+) (\S+)$", _text(root / "proc/devices"), re.MULTILINE)
    return {name: int(major) for major, name in rows}


def _minors(root: Path) -> dict[str, int]:
    text = _text(root / "proc/driver/nvidia-caps/mig-minors")
    rows = re.findall(r"^(\S+) (\d+)$", text, re.MULTILINE)
    return {name: int(minor) for name, minor in rows}


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace")
    except OSError as error:
        raise HeldUpError("capability_missing", f"{path}: {error.strerror}") from error

"""What sharing asks of the driver; `apportion.agent.nvml` answers it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

ComputeMode = Literal["default", "exclusive_thread", "prohibited", "exclusive_process"]

DEFAULT: Final[ComputeMode] = "default"
EXCLUSIVE: Final[ComputeMode] = "exclusive_process"
PROHIBITED: Final[ComputeMode] = "prohibited"


@dataclass(frozen=True, slots=True)
class SharedGpu:
    """A GPU as its driver reports it: memory in MiB, and whether it is in MIG mode."""

    uuid: str
    index: int
    memory_mib: int
    mig: bool


class Driver(Protocol):
    """The driver of this node's GPUs. Each method raises Hindered where the driver refuses."""

    def gpus(self) -> Sequence[SharedGpu]:
        """Return every GPU that answers."""
        ...

    def compute_mode(self, uuid: str) -> ComputeMode:
        """Return who may have contexts on the GPU."""
        ...

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        """Set it; needs root. It lasts until the driver is unloaded."""
        ...

    def processes(self, uuid: str) -> Sequence[int]:
        """Return the pids of all processes with a context on the GPU, MPS servers included."""
        ...

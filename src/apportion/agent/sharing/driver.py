"""What sharing asks of the driver: which GPUs there are, who may be on them, and who is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from apportion.agent.nvml import Driver, DriverError
from apportion.agent.sharing.faults import Hindered

ComputeMode = Literal["default", "exclusive_thread", "prohibited", "exclusive_process"]

DEFAULT: Final[ComputeMode] = "default"
PROHIBITED: Final[ComputeMode] = "prohibited"
EXCLUSIVE: Final[ComputeMode] = "exclusive_process"

_BY_NUMBER: Final[tuple[ComputeMode, ...]] = (DEFAULT, "exclusive_thread", PROHIBITED, EXCLUSIVE)
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class SharedGpu:
    """A GPU as its driver reports it: memory in MiB, and whether it is, or will be, in MIG mode."""

    uuid: str
    index: int
    memory_mib: int
    mig: bool


class SharingDriver:
    """The driver, as sharing needs it. Each method raises Hindered ``driver_…`` if it refuses."""

    def __init__(self, driver: Driver) -> None:
        """Use a driver that is open."""
        self._driver = driver

    def gpus(self) -> list[SharedGpu]:
        """Return every GPU that answers."""
        found: list[SharedGpu] = []
        for index in range(_asked(self._driver.gpu_count)):
            try:
                found.append(self._gpu(self._driver.uuid(index), index))
            except DriverError as error:
                if error.reason != "gpu_lost":
                    raise _hindered(error) from error
        return found

    def compute_mode(self, uuid: str) -> ComputeMode:
        """Return who may have contexts on the GPU."""
        return _BY_NUMBER[_asked(lambda: self._driver.compute_mode(uuid))]

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        """Set it; needs root. It lasts until the driver is unloaded."""
        _asked(lambda: self._driver.set_compute_mode(uuid, _BY_NUMBER.index(mode)))

    def processes(self, uuid: str) -> list[int]:
        """Return the pids of all processes on the GPU, MPS servers and their clients included."""
        return sorted({one.pid for one in _asked(lambda: self._driver.processes(uuid))})

    def _gpu(self, uuid: str, index: int) -> SharedGpu:
        mode = self._driver.mig_mode(uuid)
        mig = mode is not None and (mode.current or mode.pending)
        return SharedGpu(uuid, index, self._driver.memory(uuid).total_mib, mig)


def _asked(call: Callable[[], _Answer]) -> _Answer:
    try:
        return call()
    except DriverError as error:
        raise _hindered(error) from error


def _hindered(error: DriverError) -> Hindered:
    reason = error.reason if error.reason.startswith("driver_") else f"driver_{error.reason}"
    return Hindered(reason, error.message)

"""The driver's answers, typed: the only door to NVML, and to the little that only nvidia-smi can.

    with open_driver() as driver:
        for index in range(driver.gpu_count()):
            print(driver.facts(driver.uuid(index)))

A GPU is named by its UUID, an instance by its GPU and its id: handles go stale, names do not.
Sizes are MiB. Every call raises DriverError, whose ``reason`` scripts can rely on.
"""

from apportion.agent.nvml.answers import (
    ComputeInstance,
    DriverError,
    Engines,
    Event,
    GpuFacts,
    GpuInstance,
    Link,
    Memory,
    MemoryHealth,
    MigMode,
    Place,
    Process,
    Profile,
    Versions,
)
from apportion.agent.nvml.door import Driver, open_driver
from apportion.agent.nvml.listening import Watch
from apportion.agent.nvml.smi import reset_gpu

__all__ = [
    "ComputeInstance",
    "Driver",
    "DriverError",
    "Engines",
    "Event",
    "GpuFacts",
    "GpuInstance",
    "Link",
    "Memory",
    "MemoryHealth",
    "MigMode",
    "Place",
    "Process",
    "Profile",
    "Versions",
    "Watch",
    "open_driver",
    "reset_gpu",
]

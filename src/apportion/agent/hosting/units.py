"""The units of a host, put together."""

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

from apportion.agent.hosting.cluster import look_at_cluster
from apportion.agent.hosting.comparing import Compared
from apportion.agent.hosting.cpu import look_at_cpu
from apportion.agent.hosting.gpus import look_at_gpus
from apportion.agent.hosting.hugepages import HugePages
from apportion.agent.hosting.iommu import look_at_iommu
from apportion.agent.hosting.modules import KernelModules
from apportion.agent.nvml import Driver
from apportion.agent.units import Unit

_CLUSTER_EVERY: Final = timedelta(minutes=1)  # it is asked over the network
GPU_UNIT: Final = "gpu"


def host_units(root: Path, node: str) -> list[Unit]:
    """Return the units of a host that need no driver: a module may be what brings one."""
    return [
        KernelModules(root),
        HugePages(root),
        Compared("cpu", partial(look_at_cpu, root)),
        Compared("iommu", partial(look_at_iommu, root)),
        Compared("kubernetes", partial(look_at_cluster, root, node), every=_CLUSTER_EVERY),
    ]


def gpu_unit(driver: Driver) -> Unit:
    """Return the unit that compares how GPUs are set up."""
    return Compared(GPU_UNIT, partial(look_at_gpus, driver))

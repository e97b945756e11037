"""The host beside its GPUs: what the pool's policy asks of it, made so or compared with it.

    hugepages, kernelModules         made so, as far as the kernel lets us
    cpu, iommu, gpu, kubernetes      compared: what differs is told, and nothing is changed

Nothing here writes outside `/sys` and leaves nothing behind: after a restart of the machine the
agent makes it so again.
"""

from apportion.agent.hosting.hugepages import HugePages
from apportion.agent.hosting.modules import KernelModules
from apportion.agent.hosting.units import GPU_UNIT, gpu_unit, host_units

__all__ = ["GPU_UNIT", "HugePages", "KernelModules", "gpu_unit", "host_units"]

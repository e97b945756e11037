"""A driver that is not there: NVML's own library interface over a machine that a file describes.

    machine = Simulation.create(folder, "dgx-h100")
    subprocess.run([…], env={**os.environ, **machine.environment()})

The child loads `libnvidia-ml.so.1` as it would the vendor's, through an unmodified `nvidia-ml-py`
or anything else; `nvidia-smi` resets GPUs. Whoever holds a `Simulation` makes things happen to the
machine: faults, errors, processes, resets and reboots. All state is in the folder, so processes may
be killed and started again.
"""

from apportion.testing.nvml.building import build_library
from apportion.testing.nvml.layout import KILL_AFTER, KILL_BEFORE, KILL_WHILE
from apportion.testing.nvml.machines import MACHINES, MachineKind
from apportion.testing.nvml.simulation import Simulation

__all__ = [
    "KILL_AFTER",
    "KILL_BEFORE",
    "KILL_WHILE",
    "MACHINES",
    "MachineKind",
    "Simulation",
    "build_library",
]

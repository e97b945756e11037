"""What a process needs in its environment to be a holder of a part of a shared GPU. Pure.

A process with no or another pipe directory does not fail by itself: it would run beside MPS, on the
whole GPU. That it does fail here is the exclusive compute mode, which the GPU is in while it is
shared so.
"""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Final

from apportion.agent.sharing.limits import limits_of

CLIENTS_MAX: Final = 48
"""Contexts that MPS serves on one GPU; a holder's processes may take several."""


_DIGITS: Final = 16


def mps_root(state: Path, gpu_uuid: str) -> Path:
    """Return the directory of one GPU's MPS daemon below the agent's ``state`` directory.

    It is named by the first half of the UUID's digits: the path of a socket in it has 107 bytes.
    """
    return state / "mps" / gpu_uuid.removeprefix("GPU-").replace("-", "")[:_DIGITS]


def pipe_directory(state: Path, gpu_uuid: str) -> Path:
    """Return where the GPU's daemon has its sockets. A container needs it at the same path."""
    return mps_root(state, gpu_uuid) / "pipe"


def log_directory(state: Path, gpu_uuid: str) -> Path:
    """Return where the GPU's daemon and its servers write their logs."""
    return mps_root(state, gpu_uuid) / "log"


def slot_environment(
    *, state: Path, gpu_uuid: str, memory_mib: int, share: Fraction
) -> Mapping[str, str]:
    """Return the MPS variables for a holder of ``share`` (above 0, at most 1) of one GPU.

    ``memory_mib`` is the GPU's memory as its driver reports it. The memory limit names this GPU
    alone and by its UUID: one entry about a GPU that the process cannot see voids all entries, and
    ordinals are counted anew inside. A process can only lower what its daemon allows it, and can
    leave these variables out: the daemon's own limits and the compute mode are what holds.

    Raises InvalidInputError for a share that MPS cannot limit a process to.
    """
    limits = limits_of(share, memory_mib)
    return {
        "CUDA_MPS_PIPE_DIRECTORY": str(pipe_directory(state, gpu_uuid)),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(limits.percentage),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{gpu_uuid}={limits.memory_mib}M",
    }

"""What a process needs in its environment to see its allocation, and nothing else. Pure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from apportion.agent.devices.assignments import Assignment
from apportion.agent.devices.journal import Device
from apportion.agent.sharing.environment import slot_environment

MARK: Final = "APPORTION_ALLOCATION"
"""By this holders of one GPU are told apart: what they do to a device itself tells nobody."""


def environment_of(
    assignment: Assignment, device: Device, *, state: Path, mps_memory_mib: int | None
) -> dict[str, str]:
    """Return the variables; ``mps_memory_mib`` is the GPU's memory where MPS shares it, else None.

    Raises InvalidInputError for a share that MPS cannot limit a process to.
    """
    variables = {
        "NVIDIA_VISIBLE_DEVICES": device.uuid,
        "CUDA_VISIBLE_DEVICES": device.uuid,
        MARK: assignment.allocation_id,
        "APPORTION_RESERVATION": assignment.reservation_id,
    }
    if mps_memory_mib is not None:
        variables |= slot_environment(
            state=state,
            gpu_uuid=assignment.gpu,
            memory_mib=mps_memory_mib,
            share=assignment.share,
        )
    return variables


def inside_container(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the same for a container, which gets its devices from the CDI spec alone.

    The vendor's older hook would add devices by NVIDIA_VISIBLE_DEVICES; ``void`` stops it.
    """
    return {**variables, "NVIDIA_VISIBLE_DEVICES": "void"}


def env_file(variables: Mapping[str, str]) -> str:
    """Return the file for ``docker --env-file`` and systemd's EnvironmentFile: a line each."""
    return "".join(f"{name}={value}\n" for name, value in variables.items())

"""What NVML has no call for: nvidia-smi resets a GPU."""

import shutil
import subprocess
from typing import Final

from apportion.agent.nvml.answers import DriverError

_LONGEST_SECONDS: Final = 300


def reset_gpu(uuid: str) -> None:
    """Reset a GPU that nobody uses. Its instances are gone then, and a pending mode is in force.

    DriverError: ``in_use``, ``reset_failed``, or ``not_supported`` where there is no nvidia-smi.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        raise DriverError("not_supported", "nvidia-smi is not on the path, and only it resets GPUs")
    try:
        done = subprocess.run(  # noqa: S603 - no part of it comes from outside
            [program, "--gpu-reset", "-i", uuid],
            capture_output=True,
            text=True,
            timeout=_LONGEST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DriverError("reset_failed", f"no end after {_LONGEST_SECONDS} seconds") from error
    if done.returncode != 0:
        said = " ".join((done.stdout + done.stderr).split())
        raise DriverError("in_use" if "in use" in said.lower() else "reset_failed", said[:500])

"""One look at this machine from outside the agent: what its next report would say."""

import os
import re
import socket
from pathlib import Path
from typing import Any, Final

from apportion.agent.host import host_root, read_host
from apportion.agent.inventory import inventory
from apportion.agent.nvml import DriverError, open_driver
from apportion.agent.remembered import Remembered
from apportion.errors import UnavailableError

NODE_VARIABLE: Final = "APPORTION_NODE"
GPUS_FILE: Final = "gpus.json"
"""What the agent remembers of GPUs, in its state directory."""


def look(node: str, state: Path | None = None) -> dict[str, Any]:
    """Return the inventory document of this machine, also where it has no driver.

    ``state`` is the agent's state directory, for what it remembers. UnavailableError where the
    kernel does not say what the machine has.
    """
    root = host_root()
    try:
        boot_id = read_host(root).boot_id
        remembered = Remembered.glance(None if state is None else state / GPUS_FILE, boot_id)
        try:
            with open_driver() as driver:
                return inventory(driver, remembered, root, node=node)
        except DriverError as error:
            return inventory(None, remembered, root, node=node, problem=error.message)
    except OSError as error:
        raise UnavailableError(f"what this machine has cannot be read: {error}") from error


def host_name() -> str:
    """Return what this machine is called: APPORTION_NODE, or the host's name as a node's can be."""
    name = re.sub(r"[^a-z0-9.-]+", "-", socket.gethostname().lower())[:63].strip(".-")
    return os.environ.get(NODE_VARIABLE) or name or "node"

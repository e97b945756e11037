"""The CDI spec of one allocation: pure. A container runtime gives its container that device alone.

The driver's libraries and programs are left to the runtime's own spec, which is the same for all.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from apportion.agent.devices.capabilities import Node

VERSION: Final = "0.5.0"
"""The oldest version of the format that says all of this: every runtime since then reads it."""
KIND: Final = "apportion.io/gpu"


def cdi_spec(
    allocation_id: str,
    *,
    devices: Sequence[Node],
    controls: Sequence[Node],
    environment: Mapping[str, str],
    mounts: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the document; the device is ``apportion.io/gpu=ALLOCATION_ID``.

    ``mounts`` are directories that have to be at the same path inside.
    """
    edits: dict[str, Any] = {
        "env": [f"{name}={value}" for name, value in environment.items()],
        "deviceNodes": [_node(each) for each in devices],
    }
    if mounts:
        edits["mounts"] = [
            {"hostPath": path, "containerPath": path, "options": ["rw", "nosuid", "nodev", "bind"]}
            for path in mounts
        ]
    return {
        "cdiVersion": VERSION,
        "kind": KIND,
        "devices": [{"name": allocation_id, "containerEdits": edits}],
        "containerEdits": {"deviceNodes": [_node(each) for each in controls]},
    }


def device_name(allocation_id: str) -> str:
    """Return what a container is started with: ``--device apportion.io/gpu=…``."""
    return f"{KIND}={allocation_id}"


def spec_file(allocation_id: str) -> str:
    """Return the name of an allocation's file, by which files of others are told from ours."""
    return f"apportion-{allocation_id}.json"


def _node(node: Node) -> dict[str, Any]:
    return {
        "path": node.path,
        "type": "c",
        "major": node.major,
        "minor": node.minor,
        "permissions": "rw",
    }

"""What an import hands from step to step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apportion.nodes.schemas import Inventory
from apportion.nodes.specs import GpuSpec

NodeRows = Mapping[str, Mapping[str, Any]]
"""The written rows (id, uid, joined) by node name."""


@dataclass(frozen=True, slots=True)
class Derived:
    """A report and what follows from it."""

    document: Inventory
    gpus: tuple[GpuSpec, ...]
    health: str
    health_reason: str | None

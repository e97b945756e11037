"""Asks for parts of GPUs, the mechanism that meets each, and how they pack. Pure.

Each name is loaded when it is first used: `apportion plan` must start in a few hundredths of a
second, and packing, accounting and geometry are none of its business.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from apportion.planning.accounting import Ledger, UsageRecord, fractional_gpu_hours, record_of
    from apportion.planning.asks import FractionalAsk, parse_ask
    from apportion.planning.capabilities import ASSUMED_MODEL, ClusterGpuCaps
    from apportion.planning.isolation import Isolation, Mechanism, parse_isolation
    from apportion.planning.mechanisms import MechanismChoice, Refusal, decide, select_mechanism
    from apportion.planning.packing import (
        PackedGpu,
        PackResult,
        PlacedAsk,
        Proof,
        Unplaced,
        bin_pack,
    )
    from apportion.planning.render import kubernetes_manifest, slurm_options

__all__ = [
    "ASSUMED_MODEL",
    "ClusterGpuCaps",
    "FractionalAsk",
    "Isolation",
    "Ledger",
    "Mechanism",
    "MechanismChoice",
    "PackResult",
    "PackedGpu",
    "PlacedAsk",
    "Proof",
    "Refusal",
    "Unplaced",
    "UsageRecord",
    "bin_pack",
    "decide",
    "fractional_gpu_hours",
    "kubernetes_manifest",
    "parse_ask",
    "parse_isolation",
    "record_of",
    "select_mechanism",
    "slurm_options",
]

_HOMES = {
    "accounting": ("Ledger", "UsageRecord", "fractional_gpu_hours", "record_of"),
    "asks": ("FractionalAsk", "parse_ask"),
    "capabilities": ("ASSUMED_MODEL", "ClusterGpuCaps"),
    "isolation": ("Isolation", "Mechanism", "parse_isolation"),
    "mechanisms": ("MechanismChoice", "Refusal", "decide", "select_mechanism"),
    "packing": ("PackedGpu", "PackResult", "PlacedAsk", "Proof", "Unplaced", "bin_pack"),
    "render": ("kubernetes_manifest", "slurm_options"),
}


def __getattr__(name: str) -> object:
    """Load the module that holds an exported name."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

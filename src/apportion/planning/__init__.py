"""Asks for parts of GPUs, the mechanism that meets each, and how they pack. Pure."""

from apportion.planning.accounting import Ledger, UsageRecord, fractional_gpu_hours
from apportion.planning.asks import FractionalAsk, parse_ask
from apportion.planning.capabilities import ASSUMED_MODEL, ClusterGpuCaps
from apportion.planning.isolation import Isolation, Mechanism, parse_isolation
from apportion.planning.mechanisms import MechanismChoice, Refusal, decide, select_mechanism
from apportion.planning.packing import PackedGpu, PackResult, PlacedAsk, Unplaced, bin_pack
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
    "Refusal",
    "Unplaced",
    "UsageRecord",
    "bin_pack",
    "decide",
    "fractional_gpu_hours",
    "kubernetes_manifest",
    "parse_ask",
    "parse_isolation",
    "select_mechanism",
    "slurm_options",
]

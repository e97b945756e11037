"""What an offer costs those who come later: GPUs that are free but that their host cannot serve.

A node is built with so much CPU and memory per GPU. When less than that is left beside a free
GPU, part of the GPU is stranded: it is free and nobody can use it. Between offers of several
pools the one that strands least is taken, and among equals the one that leaves least of its GPUs.
The measure has no constant to tune: each node is compared with its own build.
"""

from typing import Final

from apportion.placement.asks import Ask
from apportion.placement.offers import Offer
from apportion.placement.state import GpuState, NodeState
from apportion.quantities.units import WHOLE

_STEP: Final = 10
"""Hundredths of a GPU that are told apart: finer, and chance decides instead of tightness."""


def cost(node: NodeState, ask: Ask, offer: Offer) -> tuple[int, int]:
    """Return how many tenths of a GPU the offer strands, and the units that its GPUs keep free.

    ``offer`` is for ``ask`` on ``node``, not yet held. The first number is negative when the ask
    takes GPU that was stranded already. Lower is better; compare as tuples.
    """
    gpus = {gpu.id: gpu for gpu in node.gpus}
    free = sum(_hundredths(gpu, gpu.idle) for gpu in node.gpus)
    taken = sum(_taken(gpus[piece.gpu], piece.units) for piece in offer.pieces)
    before = _stranded(node, free, node.vcpu_free, node.memory_free)
    after = _stranded(
        node, free - taken, node.vcpu_free - ask.vcpu_milli, node.memory_free - ask.memory_mib
    )
    return (after - before) // _STEP, offer.leftover


def _stranded(node: NodeState, free: int, vcpu_milli: int, memory_mib: int) -> int:
    """Return the hundredths of free GPU for which the host has not what the node was built with."""
    built = 100 * len(node.gpus)
    served = free
    if node.vcpu_milli:
        served = min(served, max(0, vcpu_milli) * built // node.vcpu_milli)
    if node.memory_mib:
        served = min(served, max(0, memory_mib) * built // node.memory_mib)
    return free - served


def _hundredths(gpu: GpuState, idle: int) -> int:
    whole = len(gpu.atoms) if gpu.split == "mig" else gpu.ruler
    return 100 * idle // whole if whole else 0


def _taken(gpu: GpuState, units: int) -> int:
    if gpu.split == "mig":
        return 100 if units == WHOLE else _hundredths(gpu, 1)
    return _hundredths(gpu, (units & gpu.capacity).bit_count())

"""Which allocations cannot be held at one time: by what they are made of, not by their names."""

from collections.abc import Sequence

from apportion.agent.devices.assignments import Assignment
from apportion.agent.devices.journal import Device, Record

_HUNDREDTHS = 100


def in_the_way(wanted: Assignment, device: Device, held: Sequence[Record]) -> list[Record]:
    """Return those held that have a part of what is wanted.

    A whole GPU overlaps all of it; instances where their memory slices meet; slots where they are
    the same. Hundredths overlap nobody in particular: all are in the way once they add up to more
    than there is.
    """
    same_gpu = [
        each
        for each in held
        if each.assignment.gpu == wanted.gpu and each.id != wanted.allocation_id
    ]
    found = [each for each in same_gpu if _overlap(wanted, device, each)]
    shares = [each for each in same_gpu if each.assignment.hundredths is not None]
    if (
        sum(each.assignment.hundredths or 0 for each in shares) + (wanted.hundredths or 0)
        > _HUNDREDTHS
    ):
        found += [each for each in shares if each not in found]
    return found


def _overlap(wanted: Assignment, device: Device, held: Record) -> bool:
    other = held.assignment
    if wanted.class_ != other.class_:
        # Whole and part; instance and slot, of which one is a leftover of what the GPU was before.
        return True
    match wanted.class_:
        case "gpu":
            return True
        case "gpu.mig":
            mine, its = device.place, held.device.place
            return mine is None or its is None or (mine[0] < its[1] and its[0] < mine[1])
        case "gpu.slot":
            return not {*wanted.slots}.isdisjoint(other.slots)
        case "gpu.share":
            return False
